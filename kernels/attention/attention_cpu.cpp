#include "kernels/attention/attention_cpu.h"

#include <omp.h>

#include "base/parallel.h"
#include "kernels/cpu_table.h"

namespace tandem {

void attention_with(const AttentionKernel& kernel, const AttentionParams& p, void* workspace,
                    int threads) {
  const AttentionPlan plan = attention_plan(p, kernel, threads, workspace);
  char* scratch = static_cast<char*>(workspace);
  const size_t bytes = attention_scratch_bytes(p.head_dim);
#pragma omp parallel num_threads(threads) if (plan.n_tasks > 1)
  {
    void* mine = scratch + static_cast<size_t>(omp_get_thread_num()) * bytes;
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < plan.n_tasks; ++i) {
      if (plan.tasks[i].follows) continue;
      int end = i + 1;
      while (end < plan.n_tasks && plan.tasks[end].follows) ++end;
      kernel.run(p, plan, {i, end}, mine);
    }
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < plan.n_merges; ++i) kernel.merge(p, plan, {i, i + 1}, mine);
  }
}

void attention_cpu(const AttentionParams& p, void* workspace) {
  const CpuTable& table = cpu_table();
  const AttentionKernel* kernel =
      p.dtype == DType::f32 ? table.attention_f32 : table.attention_bf16;
  attention_with(*kernel, p, workspace, max_threads());
}

}  // namespace tandem
