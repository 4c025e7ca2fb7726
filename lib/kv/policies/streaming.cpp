#include <algorithm>

#include "kv/policies/policies.h"

namespace tandem::kv {
namespace {

/// StreamingLLM (arXiv 2309.17453): the first `sinks` tokens and the last `recent`. The prompt is
/// prefilled densely and cut afterwards. Keys keep their rotation by true positions, so recent
/// distances are exact either way; `reposition` makes sinks look as close as in the paper's cache,
/// where positions count slots (rotating q by the difference equals re-rotating every cached key).
class Streaming final : public Policy {
 public:
  Streaming(const recipe::Cache& cache, const Geometry& g)
      : geometry_(g),
        sinks_(static_cast<int>(cache.sinks)),
        recent_(static_cast<int>(cache.recent)),
        reposition_(cache.reposition),
        needs_(needs_of(cache)) {
    needs_.retention = {.sinks = sinks_, .recent = recent_};
  }

  void select(int layer, const Step&, const Tensor&, AttendPlan& plan) override {
    const int window = recent(layer);
    if (!reposition_ || sinks_ == 0) return plan.add({.sinks = sinks_, .window = window});
    plan.add({.key_hi = sinks_, .q_position_max = sinks_ + window - 1});
    plan.add({.key_lo = sinks_, .window = window});
  }

  Needs needs() const override { return needs_; }

  KeysRead keys_read(int layer, int length) const override {
    return {.total = std::min(length, sinks_ + recent(layer))};
  }

 private:
  /// The model's own window binds a policy too: keys beyond it were never meant to be seen.
  int recent(int layer) const {
    const int window = geometry_.window(layer);
    return window == 0 ? recent_ : std::min(recent_, window);
  }

  Geometry geometry_;
  int sinks_, recent_;
  bool reposition_;
  Needs needs_;
};

}  // namespace

std::unique_ptr<Policy> make_streaming(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<Streaming>(cache, bounds.geometry);
}

}  // namespace tandem::kv
