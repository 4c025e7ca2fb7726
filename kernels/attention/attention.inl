// Attention of every dtype without matrix units, compiled once per ISA.
#include "kernels/attention/engine_f32.h"
#ifdef TANDEM_ISA_avx512_bf16
#include "kernels/attention/engine_bf16.h"
#endif

namespace tandem {
namespace {

#ifndef TANDEM_ISA_avx512_bf16
void run_f32(const AttentionParams& p, const AttentionPlan& plan, Range tasks, void* scratch) {
  for (int i = tasks.begin; i < tasks.end; ++i)
    run_task<EngineF32<float>>(p, plan, plan.tasks[i], scratch);
}
#endif

void run_bf16(const AttentionParams& p, const AttentionPlan& plan, Range tasks, void* scratch) {
  for (int i = tasks.begin; i < tasks.end; ++i) {
#ifdef TANDEM_ISA_avx512_bf16
    if (p.head_dim % 2 == 0) {
      run_task<EngineBf16>(p, plan, plan.tasks[i], scratch);
      continue;
    }
#endif
    run_task<EngineF32<bf16>>(p, plan, plan.tasks[i], scratch);
  }
}

}  // namespace

#ifndef TANDEM_ISA_avx512_bf16  // nothing to gain in f32
const AttentionKernel TANDEM_ISA_FN(attention_f32) = {run_f32, merge_tasks, 64};
#endif
const AttentionKernel TANDEM_ISA_FN(attention_bf16) = {run_bf16, merge_tasks, 64};

}  // namespace tandem
