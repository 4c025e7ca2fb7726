#include "kv/policies/value_clusters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/convert.h"
#include "base/parallel.h"
#include "ops/selection.h"

namespace tandem::kv {
namespace {

constexpr auto kClusters = static_cast<size_t>(kValueClusters);

/// Copies within one device's memory.
void copy_bytes(void* to, const void* from, size_t n, const Exec& exec) {
  if (exec.on_gpu())
    exec.queue->copy_within(to, from, n);
  else
    std::memcpy(to, from, n);
}

void to_numbers(std::span<float> values, float unit) {
  for (float& x : values) x = std::clamp(std::nearbyint(x / unit), -kMostValue, kMostValue);
}

/// Centers as kernels read them.
struct Centers {
  std::vector<float> columns;  // [d, kValueClusters]
  std::array<float, kClusters> squares{};

  Centers(const int8_t* centers, size_t d) : columns(d * kClusters) {
    for (size_t i = 0; i < kClusters; ++i)
      for (size_t c = 0; c < d; ++c) {
        const float x = centers[i * d + c];
        columns[c * kClusters + i] = x;
        squares[i] += x * x;
      }
  }
  void nearest(std::span<const float> numbers, size_t d, uint8_t* ids) const {
    ops::nearest_clusters({.ids = ids,
                           .numbers = numbers.data(),
                           .centers = columns.data(),
                           .squares = squares.data(),
                           .n = static_cast<int>(numbers.size() / d),
                           .d = static_cast<int>(d)});
  }
};

}  // namespace

ValueClusters::ValueClusters(const Bounds& bounds, const TokenIndex& index, HeadGrid grid)
    : bounds_(bounds), geometry_(bounds.geometry), index_(index), grid_(grid) {}

size_t ValueClusters::scratch_bytes() const {
  return static_cast<size_t>(geometry_.n_kv_heads) * kClusterSample *
         static_cast<size_t>(4 * cluster_words(geometry_.head_dim));
}

void ValueClusters::plan(MemoryPlan& plan, const std::string& prefix) const {
  const Device device = bounds_.device;
  plan.add(prefix + ".value_means", grid_.cells(bounds_.max_seqs) * cell_bytes(), device);
  plan.add(prefix + ".value_clusters", grid_.cells(index_.n_blocks()) * id_room(), device);
  if (bounds_.on_gpu()) plan.add(prefix + ".value_sample", scratch_bytes(), device);
}

void ValueClusters::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse == 0) return;
  cells_ = static_cast<uint8_t*>(arena.take(prefix + ".value_means"));
  ids_ = static_cast<uint8_t*>(arena.take(prefix + ".value_clusters"));
  if (bounds_.on_gpu()) scratch_ = static_cast<int8_t*>(arena.take(prefix + ".value_sample"));
}

ValueClusters::Cell ValueClusters::cell(int slot, int ordinal, int kv_head) const {
  uint8_t* const at = cells_ + grid_.cell(slot, ordinal, kv_head) * cell_bytes();
  const size_t numbers = kClusters * static_cast<size_t>(geometry_.head_dim);
  return {reinterpret_cast<bf16*>(at), reinterpret_cast<int8_t*>(at + 2 * numbers),
          reinterpret_cast<float*>(at + 3 * numbers)};
}

DeviceClusters ValueClusters::device(int ordinal) const {
  const auto layer = static_cast<int64_t>(grid_.cells(1));
  return {.cells = reinterpret_cast<uint8_t*>(cell(0, ordinal, 0).means),
          .slot_stride = layer,
          .head_stride = 1,
          .ids = ids(0, ordinal, 0),
          .id_block_stride = layer * static_cast<int64_t>(id_room()),
          .id_head_stride = static_cast<int64_t>(id_room())};
}

ListTails ValueClusters::device_tails(int ordinal) const {
  const auto row = static_cast<int64_t>(cell_bytes() / sizeof(bf16));
  return {.means = cell(0, ordinal, 0).means,
          .block_stride = static_cast<int64_t>(grid_.cells(1)) * row,
          .head_stride = row,
          .clusters = kValueClusters};
}

void ValueClusters::copy_block(const TokenIndex::Piece& piece) {
  copy_bytes(ids(piece.block, 0, 0), ids(piece.copy_of, 0, 0), grid_.cells(1) * id_room(), exec_);
}

void ValueClusters::on_fork(int from, int to) {
  if (cells_ == nullptr) return;
  copy_bytes(cell(to, 0, 0).means, cell(from, 0, 0).means, grid_.cells(1) * cell_bytes(), exec_);
}

void ValueClusters::index_tokens(const TokenIndex::Work& work, std::span<const int> layers,
                                 const PagedStore& store, const int32_t* device_pages) {
  const int begin = index_.begin(), end = index_.end(work.slot), heads = geometry_.n_kv_heads;
  if (!bounds_.on_gpu()) {
    parallel_for((work.ordinals.end - work.ordinals.begin) * heads, [&](int task) {
      const int ordinal = work.ordinals.begin + task / heads, head = task % heads;
      const KeyRows values = store.values(layers[static_cast<size_t>(ordinal)], work.slot, head);
      const Cell at = cell(work.slot, ordinal, head);
      if (work.fresh) make(at, values, begin, end);
      for (const TokenIndex::Piece& piece : work.pieces)
        assign(at, values, piece.token, piece.n, ids(piece.block, ordinal, head) + piece.offset);
    });
    return;
  }
  for (int ordinal = work.ordinals.begin; ordinal < work.ordinals.end; ++ordinal) {
    const int layer = layers[static_cast<size_t>(ordinal)], d = geometry_.head_dim;
    IndexedTokens tokens{.k_pool = store.k(layer).raw(),
                         .v_pool = store.v(layer).raw(),
                         .pages = device_pages,
                         .n_kv_heads = heads,
                         .dtype = geometry_.dtype,
                         .token = begin,
                         .n = end - begin,
                         .scales = store.scales(layer)};
    if (work.fresh)
      ops::make_clusters({.clusters = device(ordinal),
                          .tokens = tokens,
                          .slot = work.slot,
                          .d = d,
                          .numbers = scratch_},
                         exec_.stream());
    for (const TokenIndex::Piece& piece : work.pieces) {
      tokens.token = piece.token;
      tokens.n = piece.n;
      ops::assign_clusters({.clusters = device(ordinal),
                            .tokens = tokens,
                            .slot = work.slot,
                            .d = d,
                            .block = piece.block,
                            .offset = piece.offset},
                           exec_.stream());
    }
  }
}

void ValueClusters::make(const Cell& cell, const KeyRows& values, int begin, int end) const {
  const auto d = static_cast<size_t>(geometry_.head_dim);
  const auto n = static_cast<size_t>(std::min(end - begin, kClusterSample));
  std::vector<float> numbers(n * d);
  double square = 0;
  for (size_t i = 0; i < n; ++i) {
    values.read(begin + cluster_sample(static_cast<int>(i), static_cast<int>(n), end - begin),
                &numbers[i * d]);
    for (size_t c = 0; c < d; ++c) square += double{numbers[i * d + c]} * numbers[i * d + c];
  }
  *cell.unit = cluster_unit(square / static_cast<double>(n * d));
  to_numbers(numbers, *cell.unit);
  for (size_t i = 0; i < kClusters; ++i)
    for (size_t c = 0; c < d; ++c)
      cell.centers[i * d + c] = static_cast<int8_t>(numbers[i * n / kClusters * d + c]);
  std::vector<uint8_t> ids(n);
  std::vector<int> sums(kClusters * d), counts(kClusters);
  for (int round = 0; round <= kClusterRounds; ++round) {
    Centers(cell.centers, d).nearest(numbers, d, ids.data());
    std::ranges::fill(sums, 0);
    std::ranges::fill(counts, 0);
    for (size_t i = 0; i < n; ++i) {
      ++counts[ids[i]];
      for (size_t c = 0; c < d; ++c) sums[ids[i] * d + c] += static_cast<int>(numbers[i * d + c]);
    }
    for (size_t i = 0; i < kClusters * d; ++i)
      if (round < kClusterRounds)
        cell.centers[i] = next_center(cell.centers[i], sums[i], counts[i / d]);
      else
        cell.means[i] = to_bf16(cluster_mean(cell.centers[i], sums[i], counts[i / d]) * *cell.unit);
  }
}

void ValueClusters::assign(const Cell& cell, const KeyRows& values, int token, int n,
                           uint8_t* to) const {
  constexpr int kRows = 64;
  const auto d = static_cast<size_t>(geometry_.head_dim);
  const Centers centers(cell.centers, d);
  std::vector<float> numbers(kRows * d);
  for (int begin = 0; begin < n; begin += kRows) {
    const int rows = std::min(kRows, n - begin);
    const auto part = std::span(numbers).first(static_cast<size_t>(rows) * d);
    for (int i = 0; i < rows; ++i)
      values.read(token + begin + i, part.data() + static_cast<size_t>(i) * d);
    to_numbers(part, *cell.unit);
    centers.nearest(part, d, to + begin);
  }
}

void ValueClusters::add_masses(int slot, int ordinal, int kv_head, const float* scores, float most,
                               float origin, float* masses) const {
  const std::vector<int>& blocks = index_.blocks(slot);
  for (size_t i = 0; i < blocks.size(); ++i)
    ops::cluster_masses({.masses = masses,
                         .scores = scores + static_cast<int64_t>(i) * index_.capacity(),
                         .ids = ids(blocks[i], ordinal, kv_head),
                         .n = index_.block_tokens(slot, static_cast<int>(i)),
                         .most = most,
                         .origin = origin});
}

}  // namespace tandem::kv
