// bf16 attention on AMX tiles; f32 has no use for them.
#include "kernels/attention/few_amx.h"

namespace tandem {
namespace {

void run_bf16(const AttentionParams& p, const AttentionPlan& plan, Range tasks, void* scratch) {
  configure_tiles();
  for (int i = tasks.begin; i < tasks.end; ++i) {
    const AttentionTask& t = plan.tasks[i];
    if (t.n_queries <= kMaxFewQueries)
      run_task<FewAmx>(p, plan, t, scratch);
    else
      run_task<EngineAmx>(p, plan, t, scratch);
  }
  _tile_release();
}

}  // namespace

const AttentionKernel attention_bf16_amx = {run_bf16, merge_tasks<kMaxFewQueries>, kMaxQueries};

}  // namespace tandem
