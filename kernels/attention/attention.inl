// Attention of every dtype without matrix units, compiled once per ISA.
#include "kernels/attention/engine_f32.h"
#ifndef TANDEM_ISA_scalar
#include "kernels/attention/few_queries.h"
#endif
#ifdef TANDEM_ISA_avx512_bf16
#include "kernels/attention/few_pairs.h"
#endif

namespace tandem {
namespace {

#ifdef TANDEM_ISA_scalar
constexpr int kFewQueries = 0;  // one lane is never idle
#else
constexpr int kFewQueries = kMaxFewQueries;
#endif

/// All of a task in f32, its keys stored as T.
template <class T>
void run_in_f32(const AttentionParams& p, const AttentionPlan& plan, const AttentionTask& t,
                void* scratch) {
#ifndef TANDEM_ISA_scalar
  if (t.n_queries <= kFewQueries) return run_task<FewQueries<InF32<T>>>(p, plan, t, scratch);
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
    const AttentionTask& t = plan.tasks[i];
#ifdef TANDEM_ISA_avx512_bf16
    if (p.head_dim % 2 == 0) {
      if (t.n_queries <= kFewQueries)
        run_task<FewQueries<InPairs>>(p, plan, t, scratch);
      else
        run_task<EngineBf16>(p, plan, t, scratch);
      continue;
    }
#endif
    run_in_f32<bf16>(p, plan, t, scratch);
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
