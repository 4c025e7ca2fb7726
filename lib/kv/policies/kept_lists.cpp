#include "kv/policies/kept_lists.h"

#include <algorithm>

namespace tandem::kv {

KeptLists::KeptLists(std::vector<int> layers, int capacity, int run, const Bounds& bounds)
    : layers_(std::move(layers)), capacity_(capacity), run_(run), bounds_(bounds) {}

size_t KeptLists::layer_ids() const {
  return static_cast<size_t>(bounds_.geometry.n_kv_heads) * static_cast<size_t>(capacity_);
}

size_t KeptLists::n_counts() const {
  return static_cast<size_t>(bounds_.max_seqs) * static_cast<size_t>(bounds_.geometry.n_kv_heads);
}

void KeptLists::plan(MemoryPlan& plan, const std::string& prefix) const {
  plan.add(prefix + ".lists", static_cast<size_t>(bounds_.max_seqs) * slot_ids() * sizeof(int32_t),
           bounds_.device);
  if (bounds_.on_gpu())
    plan.add(
        prefix + ".counts",
        (n_counts() + static_cast<size_t>(bounds_.max_seqs) + layers_.size()) * sizeof(int32_t),
        bounds_.device);
}

void KeptLists::allocate(Arena& arena, const std::string& prefix) {
  if (slot_ids() > 0) ids_ = static_cast<int32_t*>(arena.take(prefix + ".lists"));
  if (bounds_.on_gpu()) counts_ = static_cast<int32_t*>(arena.take(prefix + ".counts"));
}

void KeptLists::run_on(const Exec& exec) {
  exec_ = exec;
  if (counts_ == nullptr || layers_.empty()) return;
  const std::vector<int32_t> layers(layers_.begin(), layers_.end());
  exec_.queue->copy_in(device_layers(), layers.data(), layers.size() * sizeof(int32_t));
}

void KeptLists::fork(int from, int to) {
  if (slot_ids() == 0) return;
  if (!bounds_.on_gpu()) {
    std::copy_n(at(from, 0, 0), slot_ids(), at(to, 0, 0));
    return;
  }
  cuda::Queue& queue = *exec_.queue;
  const int heads = bounds_.geometry.n_kv_heads;
  queue.copy_within(at(to, 0, 0), at(from, 0, 0), slot_ids() * sizeof(int32_t));
  queue.copy_within(counts_ + to * heads, counts_ + from * heads,
                    static_cast<size_t>(heads) * sizeof(int32_t));
  queue.copy_within(rests() + to, rests() + from, sizeof(int32_t));
}

void KeptLists::set_rest(int slot, int rest, int n) {
  const auto heads = static_cast<size_t>(bounds_.geometry.n_kv_heads);
  const std::vector<int32_t> count(heads, rest > 0 ? n : 0);
  const int32_t begin = rest;
  cuda::Queue& queue = *exec_.queue;
  queue.copy_in(counts_ + static_cast<size_t>(slot) * heads, count.data(), heads * sizeof(int32_t));
  queue.copy_in(rests() + slot, &begin, sizeof(begin));
}

int KeptLists::rest(int slot) const {
  int32_t rest = 0;
  exec_.queue->copy_out(&rest, rests() + slot, sizeof(rest));
  exec_.queue->wait();
  return rest;
}

KeyLists KeptLists::of_layer(int ordinal) const {
  return {.ids = at(0, ordinal, 0),
          .count = counts_,
          .rest = rests(),
          .row_stride = static_cast<int64_t>(slot_ids()),
          .head_stride = capacity_,
          .count_stride = bounds_.geometry.n_kv_heads,
          .run = run_};
}

}  // namespace tandem::kv
