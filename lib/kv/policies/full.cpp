#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/spread.h"
#include "kv/policies/policies.h"

namespace tandem::kv {
namespace {

/// Tokens of a text that stay near the forward: those that may not have been copied to host memory
/// yet, in whole pages.
int near_begin(int length) { return std::max(0, length - kPageTokens) / kPageTokens * kPageTokens; }

/// Everything, or the model's own sliding window. Keys in host memory: those of layers that read
/// whole texts.
class Full final : public Policy, public HostedIndex {
 public:
  Full(const recipe::Cache& cache, const Bounds& bounds)
      : geometry_(bounds.geometry),
        needs_(needs_of(cache)),
        hosted_(bounds.hosted),
        quantized_(bounds.quantized),
        cpu_attends_(cache.cpu_attends()),
        is_far_(static_cast<size_t>(geometry_.n_layers)),
        range_begin_(static_cast<size_t>(bounds.max_seqs)) {
    needs_.retention = geometry_.dense_retention();
    if (!bounds.hosted) return;
    std::vector<int> whole;  // layers that read whole texts
    for (int layer = 0; layer < geometry_.n_layers; ++layer)
      if (geometry_.window(layer) == 0) whole.push_back(layer);
    const int n = static_cast<int>(whole.size());
    if (cache.n_resident() > n)
      throw recipe_error("cache.resident_layers",
                         "is {}, but only {} layers of this model can keep keys in host memory",
                         cache.n_resident(), n)
          .hint("set it to auto to keep as many layers on the GPU as fit");
    for (const int i : spread_layers(n, n - cache.n_resident()))
      is_far_[static_cast<size_t>(whole[static_cast<size_t>(i)])] = 1;
  }

  void select(int layer, const Step& step, const Tensor&, AttendPlan& plan) override {
    if (quantized_ && geometry_.window(layer) == 0) {
      plan.far =
          std::ranges::any_of(step.near_begin, [](int begin) { return begin > kPageTokens; });
      plan.add({.key_hi = kPageTokens});
      plan.add({.seq_key_lo = step.near_begin.data()});
      return;
    }
    plan.far = cpu_attends_ && is_hosted(layer) &&
               std::ranges::any_of(step.near_begin, [](int32_t begin) { return begin > 0; });
    if (plan.far)
      plan.add({.seq_key_lo = step.near_begin.data()});
    else
      plan.add({.window = geometry_.window(layer)});
  }

  void on_prompt(int slot, const PagedStore& store) override {
    begin_of(slot) = near_begin(store.length(slot));
  }
  void on_commit(std::span<const int32_t> slots, const PagedStore& store) override {
    for (const int32_t slot : slots) begin_of(slot) = near_begin(store.length(slot));
  }
  void on_fork(int from, int to) override { begin_of(to) = begin_of(from); }
  void on_release(int slot) override { begin_of(slot) = 0; }
  void on_truncate(int slot, int n, const PagedStore&) override {
    if (n < begin_of(slot)) begin_of(slot) = near_begin(n);
  }

  std::vector<int> hosted_layers() const override {
    std::vector<int> layers;
    for (int layer = 0; layer < geometry_.n_layers; ++layer)
      if (is_hosted(layer)) layers.push_back(layer);
    return layers;
  }
  int range_begin(int slot) const override { return range_begin_[static_cast<size_t>(slot)]; }
  int most_ranged() const override { return 2 * kPageTokens; }
  const HostedIndex* hosted() const override { return hosted_ ? this : nullptr; }

  Needs needs() const override { return needs_; }

  KeysRead keys_read(int layer, int length) const override {
    return {.total = geometry_.visible(layer, length)};
  }

 private:
  bool is_hosted(int layer) const { return is_far_[static_cast<size_t>(layer)] != 0; }
  int& begin_of(int slot) { return range_begin_[static_cast<size_t>(slot)]; }

  Geometry geometry_;
  Needs needs_;
  bool hosted_, quantized_, cpu_attends_;
  std::vector<uint8_t> is_far_;   // [layers] whether their keys are in host memory
  std::vector<int> range_begin_;  // [slots] first token that is near
};

}  // namespace

std::unique_ptr<Policy> make_full(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<Full>(cache, bounds);
}

}  // namespace tandem::kv
