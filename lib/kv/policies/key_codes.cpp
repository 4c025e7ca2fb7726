#include "kv/policies/key_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/convert.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "kv/policies/centered_keys.h"

namespace tandem::kv {
namespace {

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

template <class T>
void copy_cells(T* data, size_t to, size_t from, size_t n_cells, int64_t cell) {
  const auto size = static_cast<size_t>(cell);
  std::memcpy(data + to * size, data + from * size, n_cells * size * sizeof(T));
}

}  // namespace

KeyCodes::KeyCodes(int bits, uint64_t seed, const Bounds& bounds, const TokenIndex& index,
                   HeadGrid grid)
    : bits_(bits),
      dims_(static_cast<int>(divide_up(bounds.geometry.head_dim, kCodeDims)) * kCodeDims),
      seed_(seed),
      geometry_(bounds.geometry),
      index_(index),
      grid_(grid),
      frames_(bounds, grid, dims_, bits),
      signs_(2 * dims()) {
  PhiloxStream draw(seed_, 0xc0de);
  for (float& sign : signs_) sign = (draw.next() & 1) != 0 ? -1.0f : 1.0f;
}

int64_t KeyCodes::group_bytes() const {
  return divide_up(index_.capacity(), kCodeKeys) * code_group_bytes(dims_);
}
int64_t KeyCodes::low_bytes() const { return index_.capacity() * code_low_bytes(dims_, bits_); }
int64_t KeyCodes::mean_rows() const { return divide_up(index_.capacity(), kMeanKeys); }

void KeyCodes::plan(MemoryPlan& plan, const std::string& prefix) const {
  const size_t cells = grid_.cells(index_.n_blocks());
  plan.add(prefix + ".codes", cells * static_cast<size_t>(group_bytes()));
  if (bits_ > 1) plan.add(prefix + ".low_bits", cells * static_cast<size_t>(low_bytes()));
  plan.add(prefix + ".value_means",
           cells * static_cast<size_t>(mean_rows() * geometry_.head_dim) * sizeof(bf16));
  frames_.plan(plan, prefix);
}

void KeyCodes::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse == 0) return;
  groups_ = static_cast<uint8_t*>(arena.take(prefix + ".codes"));
  if (bits_ > 1) low_ = static_cast<uint8_t*>(arena.take(prefix + ".low_bits"));
  means_ = static_cast<bf16*>(arena.take(prefix + ".value_means"));
  frames_.allocate(arena, prefix);
}

void KeyCodes::index_tokens(int slot, std::span<const TokenIndex::Piece> pieces,
                            std::span<const int> layers, bool fresh, const PagedStore& store,
                            const QueryRing* queries) {
  if (fresh) frames_.set(slot, layers, index_.begin(), index_.end(slot), store, queries);
  const int heads = geometry_.n_kv_heads;
  for (const TokenIndex::Piece& piece : pieces) {
    if (piece.copy_of >= 0) {
      const size_t to = grid_.cells(piece.block), from = grid_.cells(piece.copy_of);
      copy_cells(groups_, to, from, grid_.cells(1), group_bytes());
      if (bits_ > 1) copy_cells(low_, to, from, grid_.cells(1), low_bytes());
      copy_cells(means_, to, from, grid_.cells(1), mean_rows() * geometry_.head_dim);
    }
    parallel_for(grid_.n_sparse * heads, [&](int task) {
      const int ordinal = task / heads, head = task % heads;
      const int layer = layers[static_cast<size_t>(ordinal)];
      const int32_t* pages = store.pages(slot).data();
      const size_t cell = grid_.cell(piece.block, ordinal, head);
      code(piece, KeyRows(store.k(layer), pages, head), frame(slot, ordinal, head), cell);
      average(piece, KeyRows(store.v(layer), pages, head), cell);
    });
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

CodeQuery KeyCodes::query(const CodeFrame& frame, std::span<const float> q, float* rotated,
                          uint8_t* sums, int8_t* q8) const {
  const float share = dot_of(q, {frame.axis, q.size()});
  for (size_t c = 0; c < q.size(); ++c) rotated[c] = q[c] - share * frame.axis[c];
  std::fill(rotated + q.size(), rotated + dims(), 0.0f);
  ops::rotate_rows({.rows = rotated, .signs = signs_.data(), .dims = dims_}, {0, 1});
  const float weight = 1.0f / std::sqrt(static_cast<float>(q.size()));
  return code_query(rotated, share, weight, frame.units, dims_, bits_, sums, q8);
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

int KeyCodes::means(int slot, int ordinal, int kv_head, MeanRows* rows) const {
  int n_rows = 0;
  for_blocks(slot, ordinal, kv_head, [&](int, size_t cell, int n) {
    const size_t first = cell * static_cast<size_t>(mean_rows() * geometry_.head_dim);
    rows[n_rows++] = {means_ + first, static_cast<int>(divide_up(n, kMeanKeys))};
  });
  return n_rows;
}

}  // namespace tandem::kv
