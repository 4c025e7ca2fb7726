#include "kernels/attention/attention_cpu.h"

#include "base/parallel.h"
#include "kernels/cpu_table.h"

namespace tandem {

void attention_with(const AttentionKernel& kernel, const AttentionParams& p, void* workspace,
                    int threads) {
  const AttentionPlan plan = attention_plan(p, kernel, threads, workspace);
  char* scratch = static_cast<char*>(workspace);
  const size_t bytes = attention_scratch_bytes(p.head_dim);
  parallel_for(plan.n_tasks, threads, [&](int i, int thread) {
    if (plan.tasks[i].follows) return;
    int end = i + 1;
    while (end < plan.n_tasks && plan.tasks[end].follows) ++end;
    kernel.run(p, plan, {i, end}, scratch + static_cast<size_t>(thread) * bytes);
  });
  parallel_for(plan.n_merges, threads, [&](int i, int thread) {
    kernel.merge(p, plan, {i, i + 1}, scratch + static_cast<size_t>(thread) * bytes);
  });
}

void attention_cpu(const AttentionParams& p, void* workspace) {
  const CpuTable& table = cpu_table();
  const AttentionKernel* kernel =
      p.dtype == DType::f32 ? table.attention_f32 : table.attention_bf16;
  attention_with(*kernel, p, workspace, max_threads());
}

}  // namespace tandem
