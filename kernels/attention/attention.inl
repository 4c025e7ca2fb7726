// Attention of every dtype without matrix units, compiled once per ISA.
#include "kernels/attention/engine_f32.h"
#if defined(TANDEM_ISA_avx2) || defined(TANDEM_ISA_avx512)
#include "kernels/attention/few_queries.h"
#endif
#ifdef TANDEM_ISA_avx512_bf16
#include "kernels/attention/engine_bf16.h"
#endif

namespace tandem {
namespace {

#if defined(TANDEM_ISA_avx2) || defined(TANDEM_ISA_avx512)
constexpr int kFewQueries = kMaxFewQueries;
#else
constexpr int kFewQueries = 0;  // one lane is never idle, and pairs of bf16 have other chains
#endif

/// All of a task in f32, its keys stored as T.
template <class T>
void run_in_f32(const AttentionParams& p, const AttentionPlan& plan, const AttentionTask& t,
                void* scratch) {
#if defined(TANDEM_ISA_avx2) || defined(TANDEM_ISA_avx512)
  if (t.n_queries <= kFewQueries) return run_task<FewQueries<T>>(p, plan, t, scratch);
#endif
  run_task<EngineF32<T>>(p, plan, t, scratch);
}

#ifndef TANDEM_ISA_avx512_bf16
void run_f32(const AttentionParams& p, const AttentionPlan& plan, Range tasks, void* scratch) {
  for (int i = tasks.begin; i < tasks.end; ++i) run_in_f32<float>(p, plan, plan.tasks[i], scratch);
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
    run_in_f32<bf16>(p, plan, plan.tasks[i], scratch);
  }
}

}  // namespace

#ifndef TANDEM_ISA_avx512_bf16  // nothing to gain in f32
const AttentionKernel TANDEM_ISA_FN(attention_f32) = {run_f32, merge_tasks<kFewQueries>,
                                                      kQueryBlock};
#endif
const AttentionKernel TANDEM_ISA_FN(attention_bf16) = {run_bf16, merge_tasks<kFewQueries>,
                                                       kQueryBlock};

}  // namespace tandem
