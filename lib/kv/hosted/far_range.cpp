#include "kv/hosted/far_range.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::kv {
namespace {

constexpr const char* kWorkspace = "workspace/far range";

}  // namespace

void FarRange::plan(const AttentionBounds& bounds, MemoryPlan& plan) {
  plan.add(kWorkspace, ops::attention_workspace_bytes({}, bounds));
}

FarRange::FarRange(const AttentionBounds& bounds, Arena& arena)
    : workspace_(ops::attention_workspace({}, bounds, arena.take(kWorkspace))) {}

void FarRange::attend(const Call& call) {
  const Step& step = call.step;
  ops::StepArrays arrays{.n_seqs = step.n_seqs,
                         .n_rows = step.n_rows,
                         .max_pages = call.tables.max_pages(),
                         .slot = step.slot.data(),
                         .row_begin = step.row_begin.data(),
                         // Near tokens count as not committed, and rows are on no path: they see
                         // all tokens before, and neither each other nor later ones.
                         .base = step.near_begin.data(),
                         .pos = step.pos.data(),
                         .page_table = call.tables.cells()};
  for (int b = 0; b < step.n_seqs; ++b)
    arrays.max_rows_a_seq = std::max(arrays.max_rows_a_seq, step.rows_of(b));
  arrays.mask_words = (arrays.max_rows_a_seq + 63) / 64;
  no_path_.assign(static_cast<size_t>(step.n_rows) * static_cast<size_t>(arrays.mask_words), 0);
  arrays.tree_mask = no_path_.data();
  const int64_t heads = call.q.size(1), d = call.q.size(2);
  ops::attention({.out = Tensor(call.o, DType::f32, {step.n_rows, heads, d}),
                  .lse = call.lse,
                  .q = call.q.slice(0, step.n_rows),
                  .k = call.far.k(call.layer),
                  .v = call.far.v(call.layer),
                  .step = arrays,
                  .key_hi = std::numeric_limits<int32_t>::max(),
                  .scale = call.scale},
                 workspace_);
}

}  // namespace tandem::kv
