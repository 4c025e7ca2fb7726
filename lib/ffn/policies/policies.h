#pragma once
#include "ffn/policy.h"

// What make_policy chooses from, and what policies share.
namespace tandem::ffn {

/// Copies memory of the policies' device, in the order of the queue.
void copy(void* to, const void* from, size_t bytes, const Exec& exec);

std::unique_ptr<Policy> make_griffin(const recipe::Sparse& sparse, const Bounds& bounds);
std::unique_ptr<Policy> make_magnitude(const recipe::Sparse& sparse, const Bounds& bounds);
/// With thresholds too.
std::unique_ptr<Policy> make_cats(const recipe::Sparse& sparse, const Bounds& bounds);

/// What rows have added to, of every slot and layer.
class LayerSums {
 public:
  explicit LayerSums(const Bounds& bounds) : bounds_(bounds) {}

  void plan(MemoryPlan& plan, const std::string& prefix) const {
    plan.add(prefix + ".statistic", count(bounds_.shape.ffn_dim) * sizeof(float), bounds_.device);
    plan.add(prefix + ".rows", count(1) * sizeof(float), bounds_.device);
  }
  void allocate(Arena& arena, const std::string& prefix) {
    sums_ = static_cast<float*>(arena.take(prefix + ".statistic"));
    rows_ = static_cast<float*>(arena.take(prefix + ".rows"));
  }
  ops::ChannelSums of(int layer) const {
    return {.sums = sums_ + layer * int64_t{bounds_.shape.ffn_dim},
            .rows = rows_ + layer,
            .slot_stride = slot_stride(),
            .rows_stride = bounds_.shape.n_layers};
  }
  /// Of all layers of a slot.
  const float* sums(int slot) const { return sums_ + slot * slot_stride(); }
  /// Work on the queue.
  void fork(int from, int to, const Exec& exec) const;
  void clear(int slot, const Exec& exec) const { fork(bounds_.max_seqs, slot, exec); }

 private:
  int64_t slot_stride() const { return int64_t{bounds_.shape.n_layers} * bounds_.shape.ffn_dim; }
  size_t count(int each) const {
    // One slot more, whose zeros others get.
    return static_cast<size_t>(bounds_.max_seqs + 1) * static_cast<size_t>(bounds_.shape.n_layers) *
           static_cast<size_t>(each);
  }

  Bounds bounds_;
  float *sums_ = nullptr, *rows_ = nullptr;
};

}  // namespace tandem::ffn
