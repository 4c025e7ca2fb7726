#include "ffn/policies/policies.h"

namespace tandem::ffn {
namespace {

/// The channels of the largest gate and up rows for any text: the others are measured
/// against.
class Magnitude final : public Policy {
 public:
  Magnitude(const recipe::Sparse& sparse, const Bounds& bounds)
      : bounds_(bounds), keep_(n_kept(sparse.keep, bounds.shape.ffn_dim)) {}

  std::string_view name() const override { return "magnitude"; }
  Needs needs() const override { return {}; }
  int most_channels() const override { return keep_; }

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    const auto layers = static_cast<size_t>(bounds_.shape.n_layers);
    plan.add(prefix + ".lists", layers * static_cast<size_t>(keep_) * sizeof(int32_t),
             bounds_.device);
    plan.add(prefix + ".counts", layers * sizeof(int32_t), bounds_.device);
    plan.add(prefix + ".norms", static_cast<size_t>(bounds_.shape.ffn_dim) * sizeof(float),
             bounds_.device);
  }
  void allocate(Arena& arena, const std::string& prefix) override {
    ids_ = static_cast<int32_t*>(arena.take(prefix + ".lists"));
    n_ = static_cast<int32_t*>(arena.take(prefix + ".counts"));
    norms_ = static_cast<float*>(arena.take(prefix + ".norms"));
  }
  void read_weights(int layer, const LayerWeights& weights) override {
    ops::channel_norms_gate_up(norms_, weights.gate_up, exec_.stream());
    ops::choose_channels({.ids = ids_ + layer * int64_t{keep_},
                          .n = n_ + layer,
                          .scores = norms_,
                          .n_channels = bounds_.shape.ffn_dim,
                          .keep = keep_},
                         exec_.stream());
  }
  Selection select(int layer, const kv::Step&, const Tensor&) override {
    return {.kind = Selection::Kind::step,
            .list = {ids_ + layer * int64_t{keep_}, n_ + layer, keep_}};
  }

 private:
  Bounds bounds_;
  int keep_;
  int32_t *ids_ = nullptr, *n_ = nullptr;  // [n_layers, keep], [n_layers]
  float* norms_ = nullptr;                 // [F] of a layer
};

}  // namespace

std::unique_ptr<Policy> make_magnitude(const recipe::Sparse& sparse, const Bounds& bounds) {
  return std::make_unique<Magnitude>(sparse, bounds);
}

}  // namespace tandem::ffn
