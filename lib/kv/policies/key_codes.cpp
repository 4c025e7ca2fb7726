#include "kv/policies/key_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/convert.h"
#include "base/divide_up.h"
#include "base/parallel.h"
#include "kernels/code/device_codes.h"
#include "kv/policies/centered_keys.h"
#include "kv/policies/scratch.h"

namespace tandem::kv {
namespace {

/// Copies `n` bytes within one device's memory.
void copy_bytes(void* to, const void* from, int64_t n, const Exec& exec) {
  const auto bytes = static_cast<size_t>(n);
  if (exec.on_gpu())
    exec.queue->copy_within(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace

struct KeyCodes::Coding {
  ScratchCutter cutter;
  float* signs;  // of the rotation
  double* sums;  // of its keys

  Coding(std::byte* base, const KeyCodes& codes)
      : cutter(base),
        signs(cutter.take<float>(codes.signs_.size())),
        sums(cutter.take<double>(static_cast<size_t>(kFrameSplits * codes.geometry_.n_kv_heads *
                                                     codes.geometry_.head_dim))) {}
};

KeyCodes::KeyCodes(const recipe::Hybrid& spec, uint64_t seed, const Bounds& bounds,
                   const TokenIndex& index, HeadGrid grid)
    : bits_(spec.bits),
      dims_(static_cast<int>(divide_up(bounds.geometry.head_dim, kCodeDims)) * kCodeDims),
      bounds_(bounds),
      geometry_(bounds.geometry),
      index_(index),
      grid_(grid),
      frames_(bounds, grid, dims_, spec.bits),
      signs_(rotation_signs(dims_, seed)) {
  if (spec.tail == recipe::HybridTail::clusters) clusters_.emplace(bounds, index, grid);
}

int64_t KeyCodes::group_bytes() const {
  return divide_up(index_.capacity(), kCodeKeys) * code_group_bytes(dims_);
}
int64_t KeyCodes::low_bytes() const { return index_.capacity() * code_low_bytes(dims_, bits_); }
int64_t KeyCodes::mean_rows() const { return divide_up(index_.capacity(), kMeanKeys); }

void KeyCodes::plan(MemoryPlan& plan, const std::string& prefix) const {
  const size_t cells = grid_.cells(index_.n_blocks());
  const Device device = bounds_.device;
  plan.add(prefix + ".codes", cells * static_cast<size_t>(group_bytes()), device);
  if (bits_ > 1) plan.add(prefix + ".low_bits", cells * static_cast<size_t>(low_bytes()), device);
  if (clusters_)
    clusters_->plan(plan, prefix);
  else
    plan.add(prefix + ".value_means",
             cells * static_cast<size_t>(mean_rows() * geometry_.head_dim) * sizeof(bf16), device);
  frames_.plan(plan, prefix);
  if (bounds_.on_gpu()) plan.add(prefix + ".coding", Coding(nullptr, *this).cutter.bytes(), device);
}

void KeyCodes::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse == 0) return;
  groups_ = static_cast<uint8_t*>(arena.take(prefix + ".codes"));
  if (bits_ > 1) low_ = static_cast<uint8_t*>(arena.take(prefix + ".low_bits"));
  if (clusters_)
    clusters_->allocate(arena, prefix);
  else
    means_ = static_cast<bf16*>(arena.take(prefix + ".value_means"));
  frames_.allocate(arena, prefix);
  if (bounds_.on_gpu()) coding_ = static_cast<std::byte*>(arena.take(prefix + ".coding"));
}

void KeyCodes::copy_block(const TokenIndex::Piece& piece) {
  const auto copy = [&](auto* data, int64_t cell) {
    const auto size = static_cast<size_t>(cell);
    copy_bytes(data + grid_.cells(piece.block) * size, data + grid_.cells(piece.copy_of) * size,
               static_cast<int64_t>(grid_.cells(1) * size * sizeof(*data)), exec_);
  };
  copy(groups_, group_bytes());
  if (bits_ > 1) copy(low_, low_bytes());
  if (clusters_)
    clusters_->copy_block(piece);
  else
    copy(means_, mean_rows() * geometry_.head_dim);
}

void KeyCodes::index_tokens(const TokenIndex::Work& work, std::span<const int> layers,
                            const PagedStore& store, const QueryRing* queries,
                            const int32_t* device_pages) {
  const auto& [slot, length, pieces, fresh, ordinals] = work;
  if (layers.empty()) return;
  for (const TokenIndex::Piece& piece : pieces)
    if (piece.copy_of >= 0 && ordinals.begin == 0) copy_block(piece);
  if (clusters_) clusters_->index_tokens(work, layers, store, device_pages);
  if (bounds_.on_gpu()) return index_on_gpu(work, layers, store, queries, device_pages);
  if (fresh && queries != nullptr) queries->fetch(slot);
  if (fresh) frames_.set(work, layers, index_.begin(), index_.end(slot), store, queries);
  const int heads = geometry_.n_kv_heads;
  for (const TokenIndex::Piece& piece : pieces) {
    parallel_for((ordinals.end - ordinals.begin) * heads, [&](int task) {
      const int ordinal = work.ordinals.begin + task / heads, head = task % heads;
      const int layer = layers[static_cast<size_t>(ordinal)];
      const size_t cell = grid_.cell(piece.block, ordinal, head);
      code(piece, store.keys(layer, work.slot, head), frame(work.slot, ordinal, head), cell);
      if (!clusters_) average(piece, store.values(layer, work.slot, head), cell);
    });
  }
}

void KeyCodes::run_on(const Exec& exec) {
  exec_ = exec;
  if (clusters_) clusters_->run_on(exec);
  if (coding_ != nullptr)
    exec.queue->copy_in(Coding(coding_, *this).signs, signs_.data(), signs_.size() * sizeof(float));
}

DeviceCodes KeyCodes::device_codes(int ordinal) const {
  const size_t cell = grid_.cell(0, ordinal, 0);
  const auto block_cells = static_cast<int64_t>(grid_.cells(1));
  return {.groups = groups_ + cell * static_cast<size_t>(group_bytes()),
          .low = low(cell),
          .frames = frames_.frames(ordinal),
          .group_block_stride = block_cells * group_bytes(),
          .group_head_stride = group_bytes(),
          .low_block_stride = block_cells * low_bytes(),
          .low_head_stride = low_bytes(),
          .frame_slot_stride = frames_.slot_stride(),
          .frame_head_stride = frames_.head_stride(),
          .signs = Coding(coding_, *this).signs,
          .d = geometry_.head_dim,
          .dims = dims_,
          .bits = bits_,
          .block_shift =
              static_cast<int>(std::bit_width(static_cast<unsigned>(index_.capacity() - 1)))};
}

ListTails KeyCodes::device_tails(int ordinal, const DeviceIndex& device_index) const {
  if (clusters_) {
    ListTails tails = clusters_->device_tails(ordinal);
    tails.ends = device_index.ends();
    tails.begin = index_.begin();
    return tails;
  }
  const int64_t cell = mean_rows() * geometry_.head_dim;
  return {.means = means_ + static_cast<int64_t>(grid_.cell(0, ordinal, 0)) * cell,
          .block_stride = static_cast<int64_t>(grid_.cells(1)) * cell,
          .head_stride = cell,
          .blocks = device_index.blocks(),
          .max_blocks = device_index.max_blocks(),
          .block_runs = static_cast<int>(mean_rows()),
          .ends = device_index.ends(),
          .begin = index_.begin()};
}

void KeyCodes::index_on_gpu(const TokenIndex::Work& work, std::span<const int> layers,
                            const PagedStore& store, const QueryRing* queries,
                            const int32_t* pages) {
  const auto& [slot, length, pieces, fresh, ordinals] = work;
  const Coding coding(coding_, *this);
  const auto last = std::min(queries->end(slot), length);
  const int first = std::max(queries->begin(slot), last - CodeFrames::kAxisQueries);
  for (int ordinal = ordinals.begin; ordinal < ordinals.end; ++ordinal) {
    const int layer = layers[static_cast<size_t>(ordinal)];
    const DeviceCodes codes = device_codes(ordinal);
    IndexedTokens tokens{.k_pool = store.k(layer).raw(),
                         .v_pool = store.v(layer).raw(),
                         .pages = pages,
                         .n_kv_heads = geometry_.n_kv_heads,
                         .dtype = geometry_.dtype,
                         .token = index_.begin(),
                         .n = index_.end(slot) - index_.begin(),
                         .scales = store.scales(layer)};
    if (fresh)
      ops::code_frames({.codes = codes,
                        .tokens = tokens,
                        .slot = slot,
                        .queries = queries->rows(slot, layer),
                        .first_query = first,
                        .n_queries = std::max(0, last - first),
                        .ring_capacity = queries->spec().capacity(),
                        .n_heads = geometry_.n_heads,
                        .sums = coding.sums},
                       exec_.stream());
    for (const TokenIndex::Piece& piece : pieces) {
      tokens.token = piece.token;
      tokens.n = piece.n;
      const int64_t cell = mean_rows() * geometry_.head_dim;
      ops::code_keys(
          {.codes = codes,
           .tokens = tokens,
           .slot = slot,
           .block = piece.block,
           .offset = piece.offset,
           .means = clusters_
                        ? nullptr
                        : means_ + static_cast<int64_t>(grid_.cell(piece.block, ordinal, 0)) * cell,
           .mean_head_stride = cell},
          exec_.stream());
    }
  }
}

void KeyCodes::code(const TokenIndex::Piece& piece, const KeyRows& keys, const CodeFrame& frame,
                    size_t cell) const {
  constexpr int kRows = 64;
  const auto d = static_cast<size_t>(geometry_.head_dim);
  std::vector<float> centered(kRows * d), norms(kRows), rows(kRows * dims()), shares(kRows);
  for (int begin = 0; begin < piece.n; begin += kRows) {
    const int n = std::min(kRows, piece.n - begin);
    read_centered(keys, piece.token + begin, n, {frame.center, d}, centered.data(), norms.data());
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const float* key = centered.data() + i * d;
      shares[i] = dot_of({key, d}, {frame.axis, d});
      float* row = rows.data() + i * dims();
      for (size_t c = 0; c < d; ++c) row[c] = key[c] - shares[i] * frame.axis[c];
      std::fill(row + d, row + dims(), 0.0f);
    }
    ops::rotate_rows({.rows = rows.data(), .signs = signs_.data(), .dims = dims_}, {0, n});
    code_rows({.groups = groups_ + cell * static_cast<size_t>(group_bytes()),
               .low = low(cell),
               .rows = rows.data(),
               .shares = shares.data(),
               .units = frame.units,
               .dims = dims_,
               .bits = bits_,
               .first = piece.offset + begin},
              {0, n});
  }
}

void KeyCodes::average(const TokenIndex::Piece& piece, const KeyRows& values, size_t cell) const {
  const auto d = static_cast<size_t>(geometry_.head_dim);
  std::vector<float> value(d);
  const int end = piece.offset + piece.n;
  // A run that the block held in part begins before the piece.
  for (int run = piece.offset / kMeanKeys; run * kMeanKeys < end; ++run) {
    const int first = run * kMeanKeys, last = std::min(end, first + kMeanKeys);
    const int token = piece.token - piece.offset;
    mean_of_keys(values, token + first, token + last, value);
    bf16* mean = means_ + (cell * static_cast<size_t>(mean_rows()) + static_cast<size_t>(run)) * d;
    for (size_t c = 0; c < d; ++c) mean[c] = to_bf16(value[c]);
  }
}

CodeQuery KeyCodes::query(const CodeFrame& frame, std::span<const float> q, ops::ScoreScale scale,
                          float* rotated, uint8_t* sums, int8_t* q8) const {
  const float share = dot_of(q, {frame.axis, q.size()});
  for (size_t c = 0; c < q.size(); ++c) rotated[c] = q[c] - share * frame.axis[c];
  std::fill(rotated + q.size(), rotated + dims(), 0.0f);
  ops::rotate_rows({.rows = rotated, .signs = signs_.data(), .dims = dims_}, {0, 1});
  return code_query(rotated, share, scale.f32(), frame.units, dims_, bits_, sums, q8);
}

int64_t KeyCodes::score_room() const {
  const int64_t capacity = index_.capacity();
  return divide_up(divide_up(bounds_.max_tokens, capacity) * capacity, kCodeKeys) * kCodeKeys;
}

template <class DoBlock>
void KeyCodes::for_blocks(int slot, int ordinal, int kv_head, const DoBlock& do_block) const {
  const std::vector<int>& blocks = index_.blocks(slot);
  for (size_t i = 0; i < blocks.size(); ++i)
    do_block(static_cast<int>(i), grid_.cell(blocks[i], ordinal, kv_head),
             index_.block_tokens(slot, static_cast<int>(i)));
}

void KeyCodes::scan(int slot, int ordinal, int kv_head, std::span<const CodeQuery> queries,
                    float* scores, int64_t score_stride) const {
  for_blocks(slot, ordinal, kv_head, [&](int i, size_t cell, int n) {
    ops::code_scan({.scores = scores + int64_t{i} * index_.capacity(),
                    .score_stride = score_stride,
                    .groups = groups_ + cell * static_cast<size_t>(group_bytes()),
                    .queries = queries.data(),
                    .n_queries = static_cast<int>(queries.size()),
                    .dims = dims_},
                   {0, n});
  });
}

void KeyCodes::refine(int slot, int ordinal, int kv_head, const CodeQuery& query,
                      std::span<const int32_t> keys, float* scores, float* refined) const {
  size_t done = 0;
  for_blocks(slot, ordinal, kv_head, [&](int i, size_t cell, int n) {
    const int first = i * index_.capacity();
    const auto rest = keys.subspan(done);
    const auto in_block =
        static_cast<size_t>(std::ranges::lower_bound(rest, first + n) - rest.begin());
    ops::code_refine({.refined = refined + done,
                      .scores = scores,
                      .keys = rest.data(),
                      .n = static_cast<int>(in_block),
                      .first = first,
                      .groups = groups_ + cell * static_cast<size_t>(group_bytes()),
                      .low = low(cell),
                      .query = &query,
                      .dims = dims_,
                      .bits = bits_});
    done += in_block;
  });
}

double KeyCodes::tail_bytes(int n) const {
  const double row = geometry_.head_dim * sizeof(bf16);
  return clusters_ ? n + kValueClusters * row : (n + kMeanKeys - 1) / kMeanKeys * row;
}

int KeyCodes::means(int slot, int ordinal, int kv_head, MeanRows* rows) const {
  if (clusters_) {
    *rows = clusters_->means(slot, ordinal, kv_head);
    return 1;
  }
  int n_rows = 0;
  for_blocks(slot, ordinal, kv_head, [&](int, size_t cell, int n) {
    const size_t first = cell * static_cast<size_t>(mean_rows() * geometry_.head_dim);
    rows[n_rows++] = {means_ + first, static_cast<int>(divide_up(n, kMeanKeys))};
  });
  return n_rows;
}

}  // namespace tandem::kv
