#include <algorithm>

#include "kv/policies/policies.h"

namespace tandem::kv {
namespace {

/// Everything, or the model's own sliding window.
class Full final : public Policy {
 public:
  explicit Full(const Geometry& g) : geometry_(g) {}

  std::string_view name() const override { return "full"; }

  void select(int layer, const Step&, const Tensor&, AttendPlan& plan) override {
    plan.add({.window = geometry_.window(layer)});
  }

  void commit(const Step& step, std::span<const int>, PagedStore& store) override {
    // A page stands for all layers: it can go only when every layer's window has passed it.
    if (geometry_.sliding_window == 0 || geometry_.sliding_window_from > 0) return;
    for (const int slot : step.slot) drop_behind_window(store, slot, 0, geometry_.sliding_window);
  }

  int recent_needed() const override {
    return geometry_.sliding_window == 0 || geometry_.sliding_window_from > 0
               ? Policy::recent_needed()
               : geometry_.sliding_window;
  }

  int keys_read(int layer, int length) const override { return geometry_.visible(layer, length); }

 private:
  Geometry geometry_;
};

}  // namespace

std::unique_ptr<Policy> make_full(const Bounds& bounds) {
  return std::make_unique<Full>(bounds.geometry);
}

}  // namespace tandem::kv
