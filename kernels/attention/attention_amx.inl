// bf16 attention on AMX tiles; f32 has no use for them.
#include "kernels/attention/engine_amx.h"

namespace tandem {
namespace {

void run_bf16(const AttentionParams& p, const AttentionPlan& plan, Range tasks, void* scratch) {
  configure_tiles();
  for (int i = tasks.begin; i < tasks.end; ++i)
    run_task<EngineAmx>(p, plan, plan.tasks[i], scratch);
  _tile_release();
}

}  // namespace

const AttentionKernel attention_bf16_amx = {run_bf16, merge_tasks<0>, kMaxQueries};

}  // namespace tandem
