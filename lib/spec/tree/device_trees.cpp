#include "spec/tree/device_trees.h"

#include <vector>

namespace tandem::spec {
namespace {

constexpr const char* kArrays = "speculation/round";
constexpr const char* kShape = "speculation/tree";

/// Bytes of the arrays, which lie one behind the other from `base` on, if that is not null; all
/// elements have 4 bytes.
size_t place(DeviceTrees::Arrays& a, void* base, const TokenTree& tree,
             const DeviceTrees::Bounds& b) {
  size_t taken = 0;
  const auto take = [&](size_t n) {
    int32_t* at = base == nullptr ? nullptr : static_cast<int32_t*>(base) + taken;
    taken += n;
    return at;
  };
  const auto seqs = static_cast<size_t>(b.max_seqs),
             nodes = seqs * static_cast<size_t>(tree.size());
  a.seen = take(seqs * static_cast<size_t>(b.max_tokens));
  a.seen_begin = take(seqs + 1);
  a.sequence = take(seqs);
  a.position = take(seqs);
  a.forced_n = take(seqs);
  a.forced = take(nodes);
  a.tokens = take(nodes);
  a.path = take(nodes);
  a.n_accepted = take(seqs);
  a.bonus = take(seqs);
  a.logprobs = reinterpret_cast<float*>(take(nodes));
  a.n_rounded = take(seqs);
  return taken * sizeof(int32_t);
}

size_t array_bytes(const TokenTree& tree, const DeviceTrees::Bounds& b) {
  DeviceTrees::Arrays a;
  return place(a, nullptr, tree, b);
}

size_t shape_bytes(const TokenTree& tree, const DeviceTrees::Bounds& b) {
  const auto seqs = static_cast<size_t>(b.max_seqs);
  return (3 * seqs * static_cast<size_t>(tree.size()) + seqs + 1) * sizeof(int32_t);
}

size_t bytes_between(const void* begin, const void* end) {
  return static_cast<size_t>(static_cast<const char*>(end) - static_cast<const char*>(begin));
}

}  // namespace

void DeviceTrees::plan(const TokenTree& tree, const Bounds& bounds, Device device,
                       MemoryPlan& plan) {
  const size_t bytes = array_bytes(tree, bounds);
  plan.add(kArrays, bytes, device);
  plan.add("speculation/staging", bytes);
  plan.add(kShape, shape_bytes(tree, bounds), device);
}

DeviceTrees::DeviceTrees(const TokenTree& tree, const Bounds& bounds, Arena& arena,
                         const Exec& exec)
    : tree_(tree),
      exec_(exec),
      pinned_(std::make_unique<cuda::PinnedBuffer>(array_bytes(tree, bounds))),
      fetched_(std::make_unique<cuda::Event>()) {
  place(on_gpu_, arena.take(kArrays), tree, bounds);
  place(on_host_, pinned_->data(), tree, bounds);
  const int n_all = bounds.max_seqs * tree.size();
  std::vector<int32_t> shape;
  for (const std::vector<int>* of : {&tree.first_child, &tree.n_children})
    for (int b = 0; b < bounds.max_seqs; ++b) shape.insert(shape.end(), of->begin(), of->end());
  for (int i = 0; i < n_all; ++i) shape.push_back(i);
  for (int b = 0; b <= bounds.max_seqs; ++b) shape.push_back(b * tree.size());
  auto* at = static_cast<int32_t*>(arena.take(kShape));
  exec_.queue->copy_in(at, shape.data(), shape.size() * sizeof(int32_t));
  exec_.queue->wait();
  shape_ = {.first_child = at,
            .n_children = at + n_all,
            .row = at + 2 * n_all,
            .node_begin = at + 3 * n_all};
}

void DeviceTrees::send(int n_seen) {
  if (n_seen > 0)
    exec_.queue->copy_in(on_gpu_.seen, on_host_.seen,
                         static_cast<size_t>(n_seen) * sizeof(int32_t));
  exec_.queue->copy_in(on_gpu_.seen_begin, on_host_.seen_begin,
                       bytes_between(on_host_.seen_begin, on_host_.path));
}

void DeviceTrees::fetch() {
  exec_.queue->copy_out(on_host_.tokens, on_gpu_.tokens,
                        bytes_between(on_host_.tokens, pinned_->data() + pinned_->size()));
  fetched_->record(*exec_.queue);
}

}  // namespace tandem::spec
