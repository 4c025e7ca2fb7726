#include <optional>

#include "ffn/policies/policies.h"
#include "ffn/thresholds.h"

namespace tandem::ffn {
namespace {

/// Channels of the largest gates of each step, chosen when these are known: the best of them
/// (Sirius' program), or all beyond a threshold of the layer (CATS, arXiv 2404.08763). `weighted`
/// counts what a gate is multiplied by: up as the prompt had it, and down.
class Cats final : public Policy {
 public:
  Cats(const recipe::Sparse& sparse, const Bounds& bounds)
      : bounds_(bounds),
        by_threshold_(sparse.kind == recipe::SparseKind::cats_threshold),
        keep_(by_threshold_ ? bounds.shape.ffn_dim : n_left(sparse.keep, bounds.shape.ffn_dim)),
        needs_(needs_of(sparse)) {
    if (by_threshold_) thresholds_ = read_thresholds(sparse.thresholds, bounds);
    if (sparse.weighted) up_.emplace(bounds);
  }

  std::string_view name() const override { return by_threshold_ ? "cats_threshold" : "cats"; }
  Needs needs() const override { return needs_; }
  int most_channels() const override { return keep_; }
  double expected_channels() const override {
    return by_threshold_ ? thresholds_.keep * bounds_.shape.ffn_dim : keep_;
  }

  const int64_t* counted() const override { return counted_; }

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    const auto channels = static_cast<size_t>(bounds_.shape.ffn_dim);
    plan.add(prefix + ".scores", channels * sizeof(float), bounds_.device);
    plan.add(prefix + ".list", channels * sizeof(int32_t), bounds_.device);
    plan.add(prefix + ".count", sizeof(int32_t), bounds_.device);
    if (by_threshold_) plan.add(prefix + ".counts", count_bytes(), bounds_.device);
    if (!up_) return;
    up_->plan(plan, prefix);
    plan.add(prefix + ".norms",
             static_cast<size_t>(bounds_.shape.n_layers) * channels * sizeof(float),
             bounds_.device);
  }
  void allocate(Arena& arena, const std::string& prefix) override {
    scores_ = static_cast<float*>(arena.take(prefix + ".scores"));
    ids_ = static_cast<int32_t*>(arena.take(prefix + ".list"));
    n_ = static_cast<int32_t*>(arena.take(prefix + ".count"));
    if (by_threshold_) counted_ = static_cast<int64_t*>(arena.take(prefix + ".counts"));
    if (!up_) return;
    up_->allocate(arena, prefix);
    norms_ = static_cast<float*>(arena.take(prefix + ".norms"));
  }
  void read_weights(int layer, const LayerWeights& weights) override {
    if (up_) ops::channel_norms_down(norms_of(layer), weights.down, exec_.stream());
  }
  void observe(int layer, const kv::Step& step, const Observed& rows) override {
    ops::add_squares({.to = up_->of(layer), .x = rows.gate_up, .first = bounds_.shape.ffn_dim},
                     step.arrays, bounds_.shape.ffn_dim, exec_.stream());
  }

  Selection select(int layer, const kv::Step& step, const Tensor& gate) override {
    ops::score_channels({.scores = scores_,
                         .gate = gate,
                         .largest = by_threshold_,
                         .weights = up_ ? up_->of(layer) : ops::ChannelSums{},
                         .norms = up_ ? norms_of(layer) : nullptr},
                        step.arrays, exec_.stream());
    ops::ChooseChannels choice{.ids = ids_,
                               .n = n_,
                               .scores = scores_,
                               .n_channels = bounds_.shape.ffn_dim,
                               .keep = keep_};
    if (by_threshold_) {
      choice.counted = counted_ + 2 * int64_t{layer};
      ops::channels_above(choice, thresholds_.values[static_cast<size_t>(layer)], exec_.stream());
    } else {
      ops::choose_channels(choice, exec_.stream());
    }
    return {.kind = Selection::Kind::step, .list = {ids_, n_, keep_}};
  }

  void on_fork(int from, int to) override {
    if (up_) up_->fork(from, to, exec_);
  }
  void on_release(int slot) override {
    if (up_) up_->clear(slot, exec_);
  }

 private:
  size_t count_bytes() const {
    return static_cast<size_t>(bounds_.shape.n_layers) * 2 * sizeof(int64_t);
  }
  float* norms_of(int layer) const { return norms_ + layer * int64_t{bounds_.shape.ffn_dim}; }

  Bounds bounds_;
  bool by_threshold_;
  int keep_;
  Needs needs_;
  Thresholds thresholds_;
  std::optional<LayerSums> up_;            // squares of up over prompts
  float* norms_ = nullptr;                 // [n_layers, F] of down
  float* scores_ = nullptr;                // [F] of a step's layer
  int32_t *ids_ = nullptr, *n_ = nullptr;  // its list
  int64_t* counted_ = nullptr;             // [n_layers, 2] of thresholds: lists, channels in them
};

}  // namespace

std::unique_ptr<Policy> make_cats(const recipe::Sparse& sparse, const Bounds& bounds) {
  return std::make_unique<Cats>(sparse, bounds);
}

}  // namespace tandem::ffn
