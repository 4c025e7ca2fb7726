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

  Retention retention() const override { return geometry_.dense_retention(); }
  Needs needs() const override { return {}; }

  int keys_read(int layer, int length) const override { return geometry_.visible(layer, length); }

 private:
  Geometry geometry_;
};

}  // namespace

std::unique_ptr<Policy> make_full(const Bounds& bounds) {
  return std::make_unique<Full>(bounds.geometry);
}

}  // namespace tandem::kv
