#pragma once
// Key codes on a GPU: pages, queries, an index, and what choices of keys leave.
#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "base/convert.h"
#include "base/rng.h"
#include "gpu/eight_bit_pools.h"
#include "kernels/code/choose_coded.h"
#include "kernels/code/tail_means.h"
#include "ops/selection.h"

namespace tandem::test::coded {

inline constexpr int kSinks = 4;
inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

struct Setting {
  int d = 64, bits = 3, group = 4, n_kv_heads = 2;
  DType dtype = DType::bf16;
  std::vector<int> indexed = {1000};  // keys of each sequence
  std::vector<int> rows = {1};        // of each
  int padding = 0;                    // rows of no sequence behind them
  int capacity = 32768;               // of a block
  double refine = 0.06, exact = 0.025;
  double mass = 0;          // above 0: the share that chosen keys hold
  bool shared = false;      // one set for the heads of a KV head
  bool by_cluster = false;  // masses are by cluster, and no scores are left
  bool equal_keys = false;  // many
  bool held = false;        // keys and values are such that eight bits hold them
  bool eight_bit = false;   // and the index is made from these
  bool clustered = false;   // the best keys lie where samples are taken, and few others come near
};

/// Few and many keys, rows of several sequences and of none, every number of bits, sets of all
/// keys, and equal keys.
inline std::vector<Setting> usual_shapes() {
  return {{},
          {.d = 128,
           .group = 4,
           .indexed = {3000, 5, 64, 65, 0, 700},
           .rows = {1, 1, 2, 1, 1, 3},
           .padding = 2},
          {.d = 64, .bits = 1, .group = 8, .indexed = {1500, 300}, .rows = {1, 1}},
          {.d = 80,
           .group = 5,
           .dtype = DType::f32,
           .indexed = {2300, 900},
           .rows = {2, 1},
           .capacity = 1024},
          {.d = 32, .group = 2, .indexed = {5000}, .rows = {1}, .exact = 0.3},
          {.d = 256, .bits = 2, .group = 2, .indexed = {1300}, .rows = {1}},
          {.d = 64, .group = 4, .indexed = {1000}, .rows = {1}, .exact = 1},
          {.d = 64, .group = 3, .indexed = {1000, 100}, .rows = {1, 1}, .refine = 1},
          {.d = 64, .group = 2, .indexed = {129, 150, 1900}, .rows = {1, 2, 1}},
          {.d = 64, .group = 4, .indexed = {2000}, .rows = {1}, .equal_keys = true},
          {.d = 64, .bits = 1, .group = 4, .indexed = {2000}, .rows = {1}, .equal_keys = true}};
}

/// Keys and values in pages, queries, and an index of them on the GPU.
struct Case {
  Setting x;
  int dims, n_heads, n_rows = 0, max_keys, max_blocks, max_pages;
  std::vector<float> keys, values, queries, signs;
  std::vector<int32_t> table, row_begin = {0}, slots, ends, blocks;
  std::vector<uint8_t> clusters;  // [blocks, KV heads, cluster_room]
  DeviceBuffer k, v, q, pages, begins, slot, end, block, rotation;
  int n_blocks;
  int64_t group_bytes, low_bytes, runs, cluster_room;
  DeviceBuffer groups, low, frames, means, sums, ring, cluster_ids;
  std::optional<EightBitPools> narrowed;

  explicit Case(const Setting& s)
      : x(s),
        dims((s.d + kCodeDims - 1) / kCodeDims * kCodeDims),
        n_heads(s.group * s.n_kv_heads),
        max_keys(*std::ranges::max_element(s.indexed)),
        max_blocks((max_keys + s.capacity - 1) / s.capacity),
        max_pages((max_keys + kSinks) / kPageTokens + 1),
        k(fill(1)),
        v(fill(2)),
        q(fill_queries()),
        pages(table),
        begins(row_begin),
        slot(slots),
        end(ends),
        block(lay_out_blocks()),
        rotation(signs),
        n_blocks(static_cast<int>(s.indexed.size()) * max_blocks),
        group_bytes((std::min(max_keys, s.capacity) + kCodeKeys - 1) / kCodeKeys *
                    code_group_bytes(dims)),
        low_bytes(std::min(max_keys, s.capacity) * code_low_bytes(dims, s.bits)),
        runs((std::min(max_keys, s.capacity) + kMeanKeys - 1) / kMeanKeys),
        cluster_room((std::min(max_keys, s.capacity) + kCodeKeys - 1) / kCodeKeys * kCodeKeys),
        groups(at(n_blocks * x.n_kv_heads * group_bytes)),
        low(std::max<size_t>(16, at(n_blocks * x.n_kv_heads * low_bytes))),
        frames(at(int64_t(s.indexed.size()) * x.n_kv_heads * frame_floats()) * sizeof(float)),
        means(at(n_blocks * x.n_kv_heads * runs * x.d) * sizeof(bf16)),
        sums(at(int64_t{kFrameSplits} * x.n_kv_heads * x.d) * sizeof(double)),
        ring(fill_ring()),
        cluster_ids(fill_clusters()) {
    if (x.eight_bit) narrowed.emplace(keys, values, x.d);
    for (size_t i = 0; i < x.indexed.size(); ++i) index(static_cast<int>(i));
  }

  int64_t frame_floats() const { return 2 * x.d + 2; }
  /// Masses of n keys, and the one that a key counts for.
  int n_masses(int n) const {
    return x.by_cluster ? kValueClusters : (n + kMeanKeys - 1) / kMeanKeys;
  }
  int mass_of(int seq, int kv_head, int key) const {
    if (!x.by_cluster) return key / kMeanKeys;
    const int64_t block_of_key = blocks[at(int64_t{seq} * max_blocks + key / x.capacity)];
    return clusters[at((block_of_key * x.n_kv_heads + kv_head) * cluster_room + key % x.capacity)];
  }
  /// How far masses of n keys may lie from exact ones.
  double mass_tolerance(int n, double most) const {
    return 1e-5 * most + (x.by_cluster ? 1e-7 * n : 0.0);
  }
  int n_lists() const { return (n_rows + x.padding) * n_heads; }
  size_t element() const { return dtype_bytes(x.dtype); }

  DeviceCodes codes() const {
    return {.groups = groups.as<uint8_t>(),
            .low = low.as<uint8_t>(),
            .frames = frames.as<float>(),
            .group_block_stride = x.n_kv_heads * group_bytes,
            .group_head_stride = group_bytes,
            .low_block_stride = x.n_kv_heads * low_bytes,
            .low_head_stride = low_bytes,
            .frame_slot_stride = x.n_kv_heads * frame_floats(),
            .frame_head_stride = frame_floats(),
            .signs = rotation.as<float>(),
            .d = x.d,
            .dims = dims,
            .bits = x.bits,
            .block_shift = __builtin_ctz(static_cast<unsigned>(x.capacity))};
  }

  /// Key or value of a token of a sequence, as it is stored.
  std::vector<float> key(int seq, int head, int token) const {
    return vector_of(keys, seq, head, token);
  }
  std::vector<float> value(int seq, int head, int token) const {
    return vector_of(values, seq, head, token);
  }
  std::vector<float> query(int row, int head) const {
    const auto first = queries.begin() + (int64_t{row} * n_heads + head) * x.d;
    return {first, first + x.d};
  }
  int seq_of_row(int row) const {
    int seq = 0;
    while (row_begin[at(seq) + 1] <= row) ++seq;
    return seq;
  }

 private:
  static float rounded(float v, DType dtype) {
    return dtype == DType::bf16 ? to_float(to_bf16(v)) : v;
  }
  DeviceBuffer upload(const std::vector<float>& from) const {
    if (x.dtype == DType::f32) return DeviceBuffer(from);
    std::vector<bf16> narrow(from.size());
    for (size_t i = 0; i < from.size(); ++i) narrow[i] = to_bf16(from[i]);
    return DeviceBuffer(narrow);
  }
  int64_t place(int seq, int head, int token) const {
    const int64_t page = table[at(int64_t{seq} * max_pages + token / kPageTokens)];
    return ((page * x.n_kv_heads + head) * kPageTokens + token % kPageTokens) * x.d;
  }
  std::vector<float> vector_of(const std::vector<float>& from, int seq, int head, int token) const {
    const auto first = from.begin() + place(seq, head, token);
    return {first, first + x.d};
  }

  DeviceBuffer fill(int which) {
    const int n_seqs = static_cast<int>(x.indexed.size()), n_pages = n_seqs * max_pages;
    if (which == 1) {
      table.resize(at(n_pages));
      for (int i = 0; i < n_pages; ++i) table[at(i)] = (i * 11 + 3) % n_pages;
      REQUIRE(std::set<int32_t>(table.begin(), table.end()).size() == table.size());
      for (int i = 0; i < n_seqs; ++i) {
        slots.push_back(n_seqs - 1 - i);  // slots are not the sequences' numbers
        row_begin.push_back(row_begin.back() + x.rows[at(i)]);
      }
      n_rows = row_begin.back();
      ends.resize(at(n_seqs));
      for (int i = 0; i < n_seqs; ++i) ends[at(i)] = kSinks + x.indexed[at(i)];
      signs.resize(at(2 * dims));
      PhiloxStream draw(3, 9);
      for (float& sign : signs) sign = (draw.next() & 1) != 0 ? -1.0f : 1.0f;
    }
    std::vector<float>& to = which == 1 ? keys : values;
    to.resize(at(int64_t{n_pages} * x.n_kv_heads * kPageTokens * x.d));
    PhiloxStream draw(5, static_cast<uint32_t>(which));
    for (float& number : to)
      number = rounded(static_cast<float>(draw.uniform() + draw.uniform() + draw.uniform() - 1.2),
                       x.dtype);
    if (which == 1 && x.equal_keys)
      for (size_t i = 0; i < to.size(); ++i)
        if (i / at(x.d) % 3 != 0) to[i] = to[i % at(x.d)];
    for (int64_t row = 0; x.held && row < std::ssize(to) / x.d; ++row)
      round_to_eight_bits(&to[at(row * x.d)], x.dtype, x.d);
    return upload(to);
  }
  DeviceBuffer fill_queries() {
    queries.resize(at(int64_t{n_rows + x.padding} * n_heads * x.d));
    PhiloxStream draw(6, 1);
    for (float& number : queries)
      number = rounded(static_cast<float>(2 * draw.uniform() - 0.8), x.dtype);
    if (x.clustered) {
      // Keys of the tiles that the sample takes go along with every query, others against.
      for (size_t s = 0; s < x.indexed.size(); ++s)
        for (int i = 0; i < x.indexed[s]; ++i) {
          const int64_t tiles = x.indexed[s] / 16, tile = i / 16;
          const int64_t nearest = (tile * 128 + tiles - 1) / tiles;
          const bool sampled = nearest < 128 && nearest * tiles / 128 == tile;
          for (int h = 0; h < x.n_kv_heads; ++h)
            for (int c = 0; c < x.d; ++c) {
              float& key = keys[at(place(static_cast<int>(s), h, kSinks + i) + c)];
              key = rounded(key + (sampled ? 1.0f : -1.0f) * (c % 2 == 0 ? 2.0f : 1.0f), x.dtype);
            }
        }
      for (size_t i = 0; i < queries.size(); ++i)
        queries[i] = rounded(queries[i] + (i % 2 == 0 ? 1.0f : 0.5f), x.dtype);
      const DeviceBuffer again = upload(keys);
      queue().copy_within(k.raw(), again.raw(), again.bytes());
      queue().wait();
    }
    return upload(queries);
  }
  const std::vector<int32_t>& lay_out_blocks() {
    blocks.resize(at(int64_t(x.indexed.size()) * max_blocks));
    std::iota(blocks.rbegin(), blocks.rend(), 0);
    return blocks;
  }
  /// Queries of the last 8 tokens of each sequence.
  DeviceBuffer fill_clusters() {
    for (int64_t i = 0; i < int64_t{n_blocks} * x.n_kv_heads * cluster_room; ++i)
      clusters.push_back(static_cast<uint8_t>(i * 37 % 101 % kValueClusters));
    return DeviceBuffer(clusters);
  }
  DeviceBuffer fill_ring() const {
    std::vector<float> rows(at(int64_t(x.indexed.size()) * kRing * n_heads * x.d));
    PhiloxStream draw(8, 1);
    for (float& number : rows) number = rounded(static_cast<float>(draw.uniform() - 0.3), x.dtype);
    return upload(rows);
  }

  static constexpr int kRing = 8;
  void index(int s) {
    const int n = x.indexed[at(s)];
    if (n == 0) return;
    IndexedTokens tokens{.k_pool = narrowed ? narrowed->k.raw() : k.raw(),
                         .v_pool = narrowed ? narrowed->v.raw() : v.raw(),
                         .pages = pages.as<int32_t>() + s * max_pages,
                         .n_kv_heads = x.n_kv_heads,
                         .dtype = x.dtype,
                         .token = kSinks,
                         .n = n,
                         .scales = narrowed ? narrowed->scales.as<float>() : nullptr};
    ops::code_frames({.codes = codes(),
                      .tokens = tokens,
                      .slot = s,
                      .queries = static_cast<std::byte*>(ring.raw()) +
                                 at(int64_t{s} * kRing * n_heads * x.d) * element(),
                      .first_query = n,
                      .n_queries = 5,
                      .ring_capacity = kRing,
                      .n_heads = n_heads,
                      .sums = sums.as<double>()},
                     queue().stream());
    // In pieces of odd lengths, as commits come.
    for (int done = 0; done < n;) {
      const int in_block = done % x.capacity;
      tokens.token = kSinks + done;
      tokens.n =
          std::min({n - done, x.capacity - in_block, done == 0 ? std::max(1, n * 2 / 3) : 333});
      const int id = blocks[at(int64_t{s} * max_blocks + done / x.capacity)];
      ops::code_keys({.codes = codes(),
                      .tokens = tokens,
                      .slot = s,
                      .block = id,
                      .offset = in_block,
                      .means = means.as<bf16>() + id * x.n_kv_heads * runs * x.d,
                      .mean_head_stride = runs * x.d},
                     queue().stream());
      done += tokens.n;
    }
  }
};

/// The codes of a sequence's keys under a head in the CPU's order.
struct CpuCodes {
  std::vector<uint8_t> groups, low;
};

inline CpuCodes codes_of(const Case& c, int seq, int head) {
  const int n = c.x.indexed[at(seq)], dims = c.dims, bits = c.x.bits;
  const auto groups = c.groups.vector<uint8_t>(), low = c.low.vector<uint8_t>();
  CpuCodes to{std::vector<uint8_t>(at((n + kCodeKeys - 1) / kCodeKeys * code_group_bytes(dims))),
              std::vector<uint8_t>(at(n * code_low_bytes(dims, bits)))};
  for (int i = 0; i < n; ++i) {
    const int64_t cell =
        int64_t{c.blocks[at(int64_t{seq} * c.max_blocks + i / c.x.capacity)]} * c.x.n_kv_heads +
        head;
    const int in_block = i % c.x.capacity, k = in_block % kCodeKeys, out = i % kCodeKeys;
    const int64_t from = cell * c.group_bytes + in_block / kCodeKeys * code_group_bytes(dims);
    uint8_t* group = to.groups.data() + i / kCodeKeys * code_group_bytes(dims);
    for (int j = 0; j < dims; ++j) {
      const CodeBitPlace place = device_sign_place(k, j);
      const int bit = groups[at(from + place.byte)] >> place.bit & 1;
      group[j / 4 * 64 + 2 * (out % 32) + out / 32 % 2] |=
          static_cast<uint8_t>(bit << (out / 64 * 4 + j % 4));
      if (bits == 1) continue;
      const CodeBitPlace at_low = device_low_place(j, bits);
      const int field =
          low[at(cell * c.low_bytes + in_block * code_low_bytes(dims, bits) + at_low.byte)] >>
          at_low.bit;
      for (int b = 0; b < bits - 1; ++b)
        to.low[at(i * code_low_bytes(dims, bits) + b * dims / 8 + j / 8)] |=
            static_cast<uint8_t>((field >> (bits - 2 - b) & 1) << (j % 8));
    }
    for (int which = 0; which < 2; ++which)
      group[16 * dims + which * kCodeKeys + out] =
          groups[at(from + 16 * dims + which + device_scale_place(k))];
  }
  return to;
}

}  // namespace tandem::test::coded
