#include "kv/attention_observer.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kv/cache.h"

namespace tandem::kv {
namespace {

/// Whether a plan is that of full attention in a layer of this window.
bool reads_all(const AttendPlan& plan, int window) {
  const KeyRange &range = plan.sources[0], dense{.window = window};
  return plan.n == 1 && plan.selector == nullptr && range.key_lo == dense.key_lo &&
         range.key_hi == dense.key_hi && range.window == window && range.sinks == 0 &&
         range.q_position_max < 0 && range.seq_key_lo == nullptr;
}

/// The first token that the ranges of a plan with lists read for a sequence.
int32_t first_fixed(const AttendPlan& plan, int b) {
  int32_t first = std::numeric_limits<int32_t>::max();
  for (int i = 0; i < plan.n; ++i) {
    const KeyRange& range = plan.sources[static_cast<size_t>(i)];
    first = std::min(first, range.seq_key_lo == nullptr ? range.key_lo : range.seq_key_lo[b]);
  }
  return first;
}

}  // namespace

void Cache::observe(AttentionObserver* observer) {
  TANDEM_CHECK(!exec_.on_gpu(), "observing attention is not supported on a GPU");
  observer_ = observer;
}

KeyUsage Cache::attend_as(Reading reading, int layer, const Step& step, const Tensor& q,
                          const AttendAs& to) {
  TANDEM_CHECK(observer_ != nullptr && step.phase == Phase::extend,
               "no observer is set, or the step is not an extend step");
  for (const int slot : step.slot)
    TANDEM_CHECK(readers_of(slot).has(reading.keys), "slot {} has no attention policy {}", slot,
                 reading.keys);
  AttendPlan plan;
  Policy& policy = *policies_[static_cast<size_t>(reading.keys)];
  policy.select(layer, step, q, plan);
  std::vector<int32_t> fixed_from;  // [R]
  for (int b = 0; b < step.n_seqs; ++b)
    fixed_from.insert(fixed_from.end(), static_cast<size_t>(step.rows_of(b)), first_fixed(plan, b));
  const ListVisitor on_list = [&](int row, int head, const KeyList& list) {
    to.on_list(row, head, list, fixed_from[static_cast<size_t>(row)]);
  };
  KeyUsage usage;
  const Tensor out(to.o, DType::f32, {q.rows(), q.size(1), q.size(2)});
  const Parts parts = attend_parts({.layer = layer,
                                    .step = step,
                                    .plan = plan,
                                    .out = out,
                                    .q = q,
                                    .lse = to.lse,
                                    .usage = usage,
                                    .on_list = to.on_list ? &on_list : nullptr});
  merge_parts(parts, step, out, to.lse);
  if (plan.selector != nullptr)
    count_fixed(step, plan.bounds(), usage);
  else if (!reads_all(plan, spec_.geometry.window(layer)))
    for (const int32_t pos : step.pos) {
      const double heads = spec_.geometry.n_heads, keys = policy.keys_read(layer, pos + 1).total;
      usage.queries += heads;
      usage.visible += heads * (pos + 1);
      usage.fixed += heads * keys;
      usage.key_bytes += spec_.geometry.token_bytes() * keys;
    }
  return usage;
}

}  // namespace tandem::kv
