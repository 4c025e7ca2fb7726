#include "speculate/tree/device_trees.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/sample/row_split.h"
#include "ops/transfers.h"

namespace tandem::speculate {
namespace {

constexpr const char* kArrays = "speculation/round";
constexpr const char* kShape = "speculation/tree";
constexpr const char* kRows = "speculation/rows";

/// Bytes of the arrays, which lie one behind the other from `base` on, if that is not null, each
/// where it may be copied from. In front of all is room for the outbox.
size_t place(DeviceTrees::Arrays& a, std::byte* base, const TokenTree& tree,
             const DeviceTrees::Bounds& b) {
  size_t taken = b.outbox_bytes;
  const auto take = [&](auto*& array, size_t n) {
    using T = std::remove_pointer_t<std::remove_reference_t<decltype(array)>>;
    array = base == nullptr ? nullptr : reinterpret_cast<T*>(base + taken);
    taken += Outbox::aligned(n * sizeof(T));
  };
  const auto seqs = static_cast<size_t>(b.max_seqs),
             nodes = seqs * static_cast<size_t>(tree.size());
  take(a.seed, 1);
  take(a.seen_begin, seqs + 1);
  take(a.sequence, seqs);
  take(a.position, seqs);
  take(a.forced, nodes);
  take(a.forced_n, seqs);
  take(a.tokens, nodes);
  take(a.path, nodes);
  take(a.n_accepted, seqs);
  take(a.bonus, seqs);
  take(a.logprobs, nodes);
  take(a.n_rounded, seqs);
  take(a.clock, DeviceTrees::n_moments);
  take(a.seen, seqs * static_cast<size_t>(b.max_tokens));
  return taken;
}

size_t array_bytes(const TokenTree& tree, const DeviceTrees::Bounds& b) {
  DeviceTrees::Arrays a;
  return place(a, nullptr, tree, b);
}

size_t shape_bytes(const TokenTree& tree, const DeviceTrees::Bounds& b) {
  const auto seqs = static_cast<size_t>(b.max_seqs);
  return (3 * seqs * static_cast<size_t>(tree.size()) + seqs + 1) * sizeof(int32_t);
}

/// Of the kernels that work on rows of logits: all sequences' parents of one level draw children,
/// the sequences are verified.
size_t row_bytes(const TokenTree& tree, const DeviceTrees::Bounds& b) {
  const std::vector<int> widths = tree.widths();
  const int widest = *std::ranges::max_element(widths);
  return std::max(cuda::row_memory_bytes(b.gpu, b.vocab, b.max_seqs * widest, 1),
                  cuda::row_memory_bytes(b.gpu, b.vocab, b.max_seqs, 3));
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
  if (const size_t rows = row_bytes(tree, bounds); rows > 0) plan.add(kRows, rows, device);
}

DeviceTrees::DeviceTrees(const TokenTree& tree, const Bounds& bounds, Arena& arena,
                         const Exec& exec)
    : tree_(tree),
      exec_(exec),
      pinned_(std::make_unique<cuda::PinnedBuffer>(array_bytes(tree, bounds))),
      rows_(row_bytes(tree, bounds) > 0 ? arena.take(kRows) : nullptr) {
  auto* const device = static_cast<std::byte*>(arena.take(kArrays));
  place(on_gpu_, device, tree, bounds);
  place(on_host_, pinned_->data(), tree, bounds);
  outbox_ = Outbox(pinned_->data(), device, bounds.outbox_bytes);
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

void DeviceTrees::send_seen(int n_seen) {
  if (n_seen > 0)
    exec_.queue->copy_in(on_gpu_.seen, on_host_.seen,
                         static_cast<size_t>(n_seen) * sizeof(int32_t));
}

void DeviceTrees::send() {
  const Outbox::Part begin = outbox_.all();
  copy(begin.device, begin.host, bytes_between(begin.host, on_host_.path));
}

void DeviceTrees::fetch() {
  copy(on_host_.tokens, on_gpu_.tokens, bytes_between(on_host_.tokens, on_host_.seen));
}

void DeviceTrees::accept_forced() {
  // Paths and their lengths lie in the same order.
  copy(on_gpu_.path, on_gpu_.forced, bytes_between(on_gpu_.forced, on_gpu_.tokens));
}

void DeviceTrees::mark(Moment moment) { ops::read_clock(on_gpu_.clock + moment, exec_.stream()); }

void DeviceTrees::copy(void* to, const void* from, size_t bytes) {
  ops::host_copy({.to = to, .from = from, .bytes = bytes}, exec_.stream());
}

}  // namespace tandem::speculate
