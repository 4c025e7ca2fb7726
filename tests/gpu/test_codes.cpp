// Key codes on a GPU: the index that kernels make of pages, and the keys that rows choose by it.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/convert.h"
#include "base/rng.h"
#include "gpu/device_buffer.h"
#include "kernels/code/choose_coded.h"
#include "kernels/code/group_rank.h"
#include "kernels/code/tail_means.h"
#include "kernels/selection/select_top.h"
#include "ops/selection.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kSinks = 4;
constexpr float kInf = std::numeric_limits<float>::infinity();

size_t at(int64_t i) { return static_cast<size_t>(i); }

struct Setting {
  int d = 64, bits = 3, group = 4, n_kv_heads = 2;
  DType dtype = DType::bf16;
  std::vector<int> indexed = {1000};  // keys of each sequence
  std::vector<int> rows = {1};        // of each
  int padding = 0;                    // rows of no sequence behind them
  int capacity = 32768;               // of a block
  double refine = 0.06, exact = 0.025;
  bool shared = false;      // one set for the heads of a KV head
  bool equal_keys = false;  // many
  bool clustered = false;   // the best keys lie where samples are taken, and few others come near
};

/// Keys and values in pages, queries, and an index of them on the GPU.
struct Case {
  Setting x;
  int dims, n_heads, n_rows = 0, max_keys, max_blocks, max_pages;
  std::vector<float> keys, values, queries, signs;
  std::vector<int32_t> table, row_begin = {0}, slots, ends, blocks;
  DeviceBuffer k, v, q, pages, begins, slot, end, block, rotation;
  int n_blocks;
  int64_t group_bytes, low_bytes, runs;
  DeviceBuffer groups, low, frames, means, sums, ring;

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
        groups(at(n_blocks * x.n_kv_heads * group_bytes)),
        low(std::max<size_t>(16, at(n_blocks * x.n_kv_heads * low_bytes))),
        frames(at(int64_t(s.indexed.size()) * x.n_kv_heads * frame_floats()) * sizeof(float)),
        means(at(n_blocks * x.n_kv_heads * runs * x.d) * sizeof(bf16)),
        sums(at(int64_t{kFrameSplits} * x.n_kv_heads * x.d) * sizeof(double)),
        ring(fill_ring()) {
    for (size_t i = 0; i < x.indexed.size(); ++i) index(static_cast<int>(i));
  }

  int64_t frame_floats() const { return 2 * x.d + 2; }
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
    IndexedTokens tokens{.k_pool = k.raw(),
                         .v_pool = v.raw(),
                         .pages = pages.as<int32_t>() + s * max_pages,
                         .n_kv_heads = x.n_kv_heads,
                         .dtype = x.dtype,
                         .token = kSinks,
                         .n = n};
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

CpuCodes codes_of(const Case& c, int seq, int head) {
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

struct Frame {
  std::vector<float> center, axis;
  CodeUnits units;
};
Frame frame_of(const Case& c, int seq, int head) {
  const auto all = c.frames.vector<float>();
  const auto first = all.begin() + (int64_t{seq} * c.x.n_kv_heads + head) * c.frame_floats();
  const int d = c.x.d;
  return {{first, first + d}, {first + d, first + 2 * d}, {first[2 * d], first[2 * d + 1]}};
}

/// A key or query in the frame's rotated coordinates.
std::vector<float> rotated(const Case& c, const Frame& frame, std::vector<float> row, bool centre,
                           float& share) {
  share = 0;
  for (int i = 0; i < c.x.d; ++i) {
    if (centre) row[at(i)] -= frame.center[at(i)];
    share += row[at(i)] * frame.axis[at(i)];
  }
  for (int i = 0; i < c.x.d; ++i) row[at(i)] -= share * frame.axis[at(i)];
  row.resize(at(c.dims));
  rotate_rows_ref({.rows = row.data(), .signs = c.signs.data(), .dims = c.dims}, {0, 1});
  return row;
}

/// What the GPU chose for all rows of a case.
struct Choice {
  std::vector<int32_t> ids, count;
  std::vector<float> masses, origin;
  std::vector<DeviceCodeQuery> queries;
  std::vector<int8_t> q;
  std::vector<float> references;  // of heads that share a set
  int64_t stride, mass_stride;

  std::vector<int32_t> list(int number) const {
    const auto first = ids.begin() + number * stride;
    return {first, first + count[at(number)]};
  }
};

Choice choose(const Case& c) {
  const int64_t keys = (c.max_keys + kRegionKeys - 1) / kRegionKeys * kRegionKeys,
                runs = keys / kMeanKeys, regions = keys / kRegionKeys;
  const int lists = c.n_lists(), stride = kSinks + c.max_keys;
  const DeviceBuffer ids(at(int64_t{lists} * stride) * 4), count(at(lists) * 4),
      masses(at(lists * runs) * 4), origin(at(lists) * 4),
      queries(at(lists) * sizeof(DeviceCodeQuery)), q8(at(int64_t{lists} * c.dims)),
      scores(at(lists * keys) * 4), numbers(at(lists * keys) * 2), counts(at(lists * regions) * 4),
      kept(at(lists * keys) * 4), number(at(lists * keys) * 4), references(at(lists) * 4);
  ops::choose_coded({.ids = ids.as<int32_t>(),
                     .count = count.as<int32_t>(),
                     .stride = stride,
                     .masses = masses.as<float>(),
                     .origin = origin.as<float>(),
                     .mass_stride = runs,
                     .codes = c.codes(),
                     .blocks = c.block.as<int32_t>(),
                     .ends = c.end.as<int32_t>(),
                     .max_blocks = c.max_blocks,
                     .begin = kSinks,
                     .q = c.q.raw(),
                     .dtype = c.x.dtype,
                     .slot = c.slot.as<int32_t>(),
                     .row_begin = c.begins.as<int32_t>(),
                     .n_seqs = static_cast<int>(c.x.indexed.size()),
                     .n_heads = c.n_heads,
                     .n_kv_heads = c.x.n_kv_heads,
                     .first_row = 0,
                     .n_rows = c.n_rows + c.x.padding,
                     .max_keys = c.max_keys,
                     .refine = c.x.refine,
                     .exact = c.x.exact,
                     .least_exact = 64,
                     .shared = c.x.shared,
                     .scratch = {.queries = queries.as<DeviceCodeQuery>(),
                                 .q = q8.as<int8_t>(),
                                 .scores = scores.as<float>(),
                                 .keys = numbers.as<uint16_t>(),
                                 .counts = counts.as<int32_t>(),
                                 .kept = kept.as<float>(),
                                 .number = number.as<uint32_t>(),
                                 .key_stride = keys,
                                 .region_stride = regions,
                                 .references = references.as<float>(),
                                 .group_scores = scores.as<float>(),
                                 .group_keys = numbers.as<uint16_t>()}},
                    queue().stream());
  return {ids.vector<int32_t>(),
          count.vector<int32_t>(),
          masses.vector<float>(),
          origin.vector<float>(),
          queries.vector<DeviceCodeQuery>(),
          q8.vector<int8_t>(),
          references.vector<float>(),
          stride,
          runs};
}

/// The choice of the CPU's references by the GPU's codes and whole numbers.
struct Expected {
  std::vector<int32_t> ids;
  std::vector<double> masses;  // relative to exp(threshold)
  float threshold = 0;
  int reach = 0;  // keys that reach the GPU's floor
};

Expected expect(const Case& c, const Choice& got, const CpuCodes& codes, int number, int n) {
  const DeviceCodeQuery& query = got.queries[at(number)];
  const int8_t* q = got.q.data() + int64_t{number} * c.dims;
  CodeQuery on_cpu{.sums = nullptr,
                   .q = q,
                   .bias = 0,
                   .total = static_cast<int32_t>(query.total),
                   .sign_gain = query.sign_gain,
                   .gain = query.gain,
                   .axis_gain = query.axis_gain};
  CHECK(on_cpu.total == std::accumulate(q, q + c.dims, 0));
  std::vector<float> scores(at(n + kCodeKeys));
  code_scan_ref({.scores = scores.data(),
                 .score_stride = n,
                 .groups = codes.groups.data(),
                 .queries = &on_cpu,
                 .n_queries = 1,
                 .dims = c.dims},
                {0, n});
  scores.resize(at(n));
  Expected e;
  for (const float score : scores) e.reach += score >= query.floor ? 1 : 0;
  const int wanted = std::min(n, std::max(64, static_cast<int>(std::lround(c.x.exact * n))));
  e.ids.resize(kSinks);
  std::iota(e.ids.begin(), e.ids.end(), 0);
  e.masses.resize(at((n + kMeanKeys - 1) / kMeanKeys));
  if (wanted == n) {
    e.ids.resize(at(kSinks + n));
    std::iota(e.ids.begin(), e.ids.end(), 0);
    return e;
  }
  const int m = std::min(n, std::max(2 * wanted, static_cast<int>(std::lround(c.x.refine * n))));
  std::vector<int32_t> candidates(at(n + 16)), best(at(n + 16));
  std::vector<float> refined(at(m)), scratch(at(n + 16));
  select_top_ref({.ids = candidates.data(),
                  .threshold = &e.threshold,
                  .scores = scores.data(),
                  .n = n,
                  .m = m,
                  .first_id = 0,
                  .scratch = scratch.data()});
  if (c.x.bits > 1)
    code_refine_ref({.refined = refined.data(),
                     .scores = scores.data(),
                     .keys = candidates.data(),
                     .n = m,
                     .first = 0,
                     .groups = codes.groups.data(),
                     .low = codes.low.data(),
                     .query = &on_cpu,
                     .dims = c.dims,
                     .bits = c.x.bits});
  else
    for (int i = 0; i < m; ++i) refined[at(i)] = scores[at(candidates[at(i)])];
  select_top_ref({.ids = best.data(),
                  .threshold = &e.threshold,
                  .scores = refined.data(),
                  .n = m,
                  .m = wanted,
                  .first_id = 0,
                  .scratch = scratch.data()});
  for (int i = 0; i < wanted; ++i) {
    const int32_t key = candidates[at(best[at(i)])];
    e.ids.push_back(kSinks + key);
    scores[at(key)] = -kInf;
  }
  for (int i = 0; i < n; ++i)
    e.masses[at(i / kMeanKeys)] += std::exp(std::min(0.0, double{scores[at(i)]} - e.threshold));
  return e;
}

/// Checks every list of a case. Returns how many floors too few keys reached.
int check_choice(const Case& c) {
  const Choice got = choose(c);
  int too_few = 0;
  for (int row = 0; row < c.n_rows + c.x.padding; ++row)
    for (int head = 0; head < c.n_heads; ++head) {
      CAPTURE(row);
      CAPTURE(head);
      const int number = row * c.n_heads + head;
      const int slot = row < c.n_rows ? c.slots[at(c.seq_of_row(row))] : -1;
      const int n = slot < 0 ? 0 : c.x.indexed[at(slot)];
      if (n == 0) {
        CHECK(got.count[at(number)] == 0);
        CHECK(got.origin[at(number)] == -kInf);
        continue;
      }
      const int kv_head = head / c.x.group;
      const Expected e = expect(c, got, codes_of(c, slot, kv_head), number, n);
      CHECK(got.list(number) == e.ids);
      const int m = static_cast<int>(std::lround(c.x.refine * n));
      too_few += e.reach < m ? 1 : 0;
      double worst = 0, most = 0;
      for (size_t r = 0; r < e.masses.size(); ++r) {
        const double mass = got.masses[at(number * got.mass_stride) + r];
        worst = worse(worst, std::abs(mass - e.masses[r]));
        most = std::max(most, e.masses[r]);
      }
      CHECK(worst <= 1e-5 * most);
      if (most > 0)
        CHECK(got.origin[at(number)] ==
              doctest::Approx(e.threshold + got.queries[at(number)].center));
    }
  return too_few;
}

}  // namespace

TEST_SUITE("gpu/codes") {
  TEST_CASE("codes: the bits of keys are the CPU's") {
    for (const auto& [d, bits, dtype] : {std::tuple{64, 3, DType::bf16},
                                         {128, 3, DType::bf16},
                                         {80, 2, DType::f32},
                                         {32, 1, DType::bf16},
                                         {256, 2, DType::bf16},
                                         {16, 3, DType::f32}}) {
      CAPTURE(d);
      CAPTURE(bits);
      const Case c({.d = d,
                    .bits = bits,
                    .dtype = dtype,
                    .indexed = {1700, 0, 129},
                    .rows = {1, 1, 1},
                    .capacity = 1024});
      int64_t wrong = 0, total = 0, scales_off = 0;
      for (const int seq : {0, 2})
        for (int head = 0; head < c.x.n_kv_heads; ++head) {
          const int n = c.x.indexed[at(seq)];
          const Frame frame = frame_of(c, seq, head);
          double off = 0;
          float most_norm = 0, most_share = 0;
          std::vector<double> mean(at(d));
          std::vector<float> rows, shares;
          for (int i = 0; i < n; ++i) {
            const std::vector<float> key = c.key(seq, head, kSinks + i);
            for (int j = 0; j < d; ++j) mean[at(j)] += key[at(j)] / static_cast<float>(n);
            float share = 0, norm = 0;
            const std::vector<float> row = rotated(c, frame, key, true, share);
            for (const float v : row) norm += v * v;
            most_norm = std::max(most_norm, std::sqrt(norm));
            most_share = std::max(most_share, std::abs(share));
            rows.insert(rows.end(), row.begin(), row.end());
            shares.push_back(share);
          }
          for (int j = 0; j < d; ++j) off = worse(off, std::abs(mean[at(j)] - frame.center[at(j)]));
          CHECK(off <= 1e-5);
          CHECK(frame.units.scale ==
                doctest::Approx(code_scale_unit(most_norm, c.dims, bits)).epsilon(1e-4));
          CHECK(frame.units.axis == doctest::Approx(1.5f * most_share / 127).epsilon(1e-4));
          const CpuCodes got = codes_of(c, seq, head);
          CpuCodes want{std::vector<uint8_t>(got.groups.size()),
                        std::vector<uint8_t>(got.low.size())};
          code_rows({.groups = want.groups.data(),
                     .low = want.low.data(),
                     .rows = rows.data(),
                     .shares = shares.data(),
                     .units = frame.units,
                     .dims = c.dims,
                     .bits = bits,
                     .first = 0},
                    {0, n});
          for (size_t i = 0; i < got.groups.size(); ++i) {
            const bool scale = int64_t(i) % code_group_bytes(c.dims) >= 16 * c.dims;
            const int difference = got.groups[i] ^ want.groups[i];
            if (scale)
              scales_off += difference != 0 ? 1 : 0;
            else
              wrong += __builtin_popcount(static_cast<unsigned>(difference));
          }
          for (size_t i = 0; i < got.low.size(); ++i)
            wrong += __builtin_popcount(static_cast<unsigned>(got.low[i] ^ want.low[i]));
          total += int64_t{n} * c.dims * bits;
          // Means of values.
          const auto means = c.means.vector<bf16>();
          double worst = 0;
          for (int run = 0; run * kMeanKeys < n; ++run)
            for (int j = 0; j < d; ++j) {
              const int end = std::min(n, (run + 1) * kMeanKeys);
              double sum = 0;
              for (int i = run * kMeanKeys; i < end; ++i)
                sum += c.value(seq, head, kSinks + i)[at(j)];
              const int block =
                  c.blocks[at(int64_t{seq} * c.max_blocks + run * kMeanKeys / c.x.capacity)];
              const int64_t mean_at = ((int64_t{block} * c.x.n_kv_heads + head) * c.runs +
                                       run * kMeanKeys % c.x.capacity / kMeanKeys) *
                                          d +
                                      j;
              worst = worse(worst,
                            std::abs(to_float(means[at(mean_at)]) - sum / (end - run * kMeanKeys)));
            }
          CHECK(worst <= 0.005);
        }
      // One step number of a coordinate at a bound may turn several of its bits.
      CHECK(wrong <= std::max<int64_t>(3, total / 100000));
      CHECK(scales_off <= 3);
      MESSAGE("d " << d << ", " << bits << " bits: " << wrong << " of " << total << " bits differ");
    }
  }

  TEST_CASE("choice: from equal codes the CPU's sets, in every shape") {
    for (const Setting& s : std::vector<Setting>{
             {},
             {.d = 128,
             .group = 4,
             .indexed = {3000, 5, 64, 65, 0, 700},
             .rows = {1, 1, 2, 1, 1, 3},
             .padding = 2},
             {.d = 128, .bits = 2, .group = 1, .indexed = {2500}, .rows = {3}},
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
             {.d = 64, .group = 4, .indexed = {2000}, .rows = {1}, .equal_keys = true},
             {.d = 64,
             .bits = 1,
             .group = 4,
             .indexed = {2000},
             .rows = {1},
             .equal_keys = true}}) {
      CAPTURE(s.d);
      CAPTURE(s.bits);
      CAPTURE(s.group);
      (void)check_choice(Case(s));
    }
  }

  TEST_CASE("choice: long texts, whose scores below a floor are not kept") {
    for (const Setting& s : std::vector<Setting>{
             {.d = 64, .group = 4, .n_kv_heads = 1, .indexed = {40000}, .rows = {1}},
             {.d = 128, .group = 3, .n_kv_heads = 1, .indexed = {20000, 33000}, .rows = {1, 1}}}) {
      const Case c(s);
      CHECK(check_choice(c) == 0);
    }
  }

  TEST_CASE("choice: a floor that too few keys reach") {
    const Case c(
        {.d = 64, .group = 2, .n_kv_heads = 1, .indexed = {20000}, .rows = {1}, .clustered = true});
    CHECK(check_choice(c) > 0);
  }

  TEST_CASE("choice: the same bits on every run") {
    const Case c({.d = 64, .indexed = {3000, 700}, .rows = {1, 2}});
    const Choice a = choose(c), b = choose(c);
    CHECK(a.ids == b.ids);
    CHECK(a.masses == b.masses);
    CHECK(a.origin == b.origin);
  }

  TEST_CASE("tails: means by mass, next to lists") {
    const Case c({.d = 64, .indexed = {3000, 700, 0}, .rows = {1, 2, 1}, .padding = 1});
    const Choice got = choose(c);
    const int rows = c.n_rows + c.x.padding, lists = c.n_lists();
    const int most = kSinks + 75, parts = attend_lists_parts(most, true);
    const DeviceBuffer o(at(int64_t{parts} * lists * c.x.d) * 4),
        lse(at(int64_t{parts} * lists) * 4), ids(got.ids), count(got.count), masses(got.masses),
        origin(got.origin);
    ops::attend_lists({.o = o.as<float>(),
                       .lse = lse.as<float>(),
                       .q = c.q.raw(),
                       .k_pool = c.k.raw(),
                       .v_pool = c.v.raw(),
                       .page_table = c.pages.as<int32_t>(),
                       .slot = c.slot.as<int32_t>(),
                       .row_begin = c.begins.as<int32_t>(),
                       .n_rows = rows,
                       .n_seqs = 3,
                       .max_pages = c.max_pages,
                       .n_heads = c.n_heads,
                       .n_kv_heads = c.x.n_kv_heads,
                       .d = c.x.d,
                       .dtype = c.x.dtype,
                       .scale = 0.125f,
                       .rows = {0, rows},
                       .lists = {.ids = ids.as<int32_t>(),
                                 .count = count.as<int32_t>(),
                                 .stride = got.stride,
                                 .most = most},
                       .tails = {.masses = masses.as<float>(),
                                 .origin = origin.as<float>(),
                                 .mass_stride = got.mass_stride,
                                 .means = c.means.as<bf16>(),
                                 .block_stride = c.x.n_kv_heads * c.runs * c.x.d,
                                 .head_stride = c.runs * c.x.d,
                                 .blocks = c.block.as<int32_t>(),
                                 .max_blocks = c.max_blocks,
                                 .block_runs = static_cast<int>(c.runs),
                                 .ends = c.end.as<int32_t>(),
                                 .begin = kSinks}},
                      queue().stream());
    const auto all_o = o.vector<float>(), all_lse = lse.vector<float>();
    const auto means = c.means.vector<bf16>();
    double worst = 0;
    for (int number = 0; number < lists; ++number) {
      const int row = number / c.n_heads, head = number % c.n_heads, kv_head = head / c.x.group;
      const int slot = row < c.n_rows ? c.slots[at(c.seq_of_row(row))] : -1;
      const int n = slot < 0 ? 0 : c.x.indexed[at(slot)];
      const size_t state = at(int64_t{parts - 1} * lists + number);
      if (n == 0) {
        for (int part = 0; part < parts; ++part)
          CHECK(all_lse[at(int64_t{part} * lists + number)] == -kInf);
        continue;
      }
      double sum = 0;
      std::vector<double> want(at(c.x.d));
      for (int run = 0; run * kMeanKeys < n; ++run) {
        const double mass = got.masses[at(number * got.mass_stride + run)];
        const int64_t block = c.blocks[at(int64_t{slot} * c.max_blocks)];
        sum += mass;
        for (int j = 0; j < c.x.d; ++j)
          want[at(j)] +=
              mass *
              to_float(means[at(((block * c.x.n_kv_heads + kv_head) * c.runs + run) * c.x.d + j)]);
      }
      CHECK(all_lse[state] ==
            doctest::Approx(got.origin[at(number)] + std::log(sum)).epsilon(1e-5));
      for (int j = 0; j < c.x.d; ++j)
        worst = worse(worst, std::abs(all_o[state * at(c.x.d) + at(j)] - want[at(j)] / sum));
    }
    CHECK(worst <= 1e-5);
  }
}

namespace {

/// The choice of a KV head's heads together by the CPU's references: ids, and of each head its
/// masses and threshold. Returns how many keys' ranks reach the GPU's floor.
int expect_shared(const Case& c, const Choice& got, const CpuCodes& codes, int first, int n,
                  std::vector<Expected>& heads) {
  const int group = c.x.group, stride = n + kCodeKeys;
  std::vector<CodeQuery> queries;
  for (int h = 0; h < group; ++h) {
    const DeviceCodeQuery& query = got.queries[at(first + h)];
    queries.push_back({.sums = nullptr,
                       .q = got.q.data() + int64_t{first + h} * c.dims,
                       .bias = 0,
                       .total = static_cast<int32_t>(query.total),
                       .sign_gain = query.sign_gain,
                       .gain = query.gain,
                       .axis_gain = query.axis_gain});
  }
  std::vector<float> scores(at(int64_t{group} * stride)), ranks(at(n + 16)), scratch(at(n + 16)),
      refined(scores.size());
  code_scan_ref({.scores = scores.data(),
                 .score_stride = stride,
                 .groups = codes.groups.data(),
                 .queries = queries.data(),
                 .n_queries = group,
                 .dims = c.dims},
                {0, n});
  const int wanted = std::min(n, std::max(64, static_cast<int>(std::lround(c.x.exact * n))));
  heads.assign(at(group), {});
  std::vector<int32_t> ids(at(kSinks));
  std::iota(ids.begin(), ids.end(), 0);
  for (Expected& e : heads) e.masses.resize(at((n + kMeanKeys - 1) / kMeanKeys));
  if (wanted == n) {
    ids.resize(at(kSinks + n));
    std::iota(ids.begin(), ids.end(), 0);
    for (Expected& e : heads) e.ids = ids;
    return n;
  }
  std::vector<float> references;
  for (int h = 0; h < group; ++h) {
    references.push_back(group_reference(scores.data() + h * stride, n, wanted));
    CHECK(got.references[at(first + h)] == references.back());
  }
  const auto rank = [&](const std::vector<float>& of, int m) {
    group_ranks({.ranks = ranks.data(),
                 .scores = of.data(),
                 .stride = stride,
                 .references = references.data(),
                 .n_heads = group,
                 .n = m});
  };
  rank(scores, n);
  const float floor = got.queries[at(first)].floor;
  const auto reach = static_cast<int>(
      std::count_if(ranks.begin(), ranks.begin() + n, [&](float r) { return r >= floor; }));
  const int m = std::min(n, std::max(2 * wanted, static_cast<int>(std::lround(c.x.refine * n))));
  std::vector<int32_t> candidates(at(n + 16)), best(at(n + 16));
  float least = 0;
  select_top_ref({.ids = candidates.data(),
                  .threshold = &least,
                  .scores = ranks.data(),
                  .n = n,
                  .m = m,
                  .first_id = 0,
                  .scratch = scratch.data()});
  for (int h = 0; h < group; ++h) {
    float* of_head = scores.data() + h * stride;
    if (c.x.bits > 1)
      code_refine_ref({.refined = refined.data() + h * stride,
                       .scores = of_head,
                       .keys = candidates.data(),
                       .n = m,
                       .first = 0,
                       .groups = codes.groups.data(),
                       .low = codes.low.data(),
                       .query = &queries[at(h)],
                       .dims = c.dims,
                       .bits = c.x.bits});
    else
      for (int i = 0; i < m; ++i) refined[at(h * stride + i)] = of_head[candidates[at(i)]];
  }
  rank(refined, m);
  select_top_ref({.ids = best.data(),
                  .threshold = &least,
                  .scores = ranks.data(),
                  .n = m,
                  .m = wanted,
                  .first_id = 0,
                  .scratch = scratch.data()});
  std::vector<bool> chosen(at(n));
  for (int i = 0; i < wanted; ++i) {
    const int32_t key = candidates[at(best[at(i)])];
    ids.push_back(kSinks + key);
    chosen[at(key)] = true;
  }
  for (int h = 0; h < group; ++h) {
    Expected& e = heads[at(h)];
    e.ids = ids;
    e.threshold = references[at(h)] + least;
    for (int i = 0; i < n; ++i)
      if (!chosen[at(i)])
        e.masses[at(i / kMeanKeys)] +=
            std::exp(std::min(0.0, double{scores[at(h * stride + i)]} - e.threshold));
  }
  return reach;
}

/// Checks every list of a case whose heads share sets. Returns how many floors too few keys
/// reached.
int check_shared(const Case& c) {
  const Choice got = choose(c);
  int too_few = 0;
  for (int row = 0; row < c.n_rows + c.x.padding; ++row)
    for (int kv_head = 0; kv_head < c.x.n_kv_heads; ++kv_head) {
      CAPTURE(row);
      CAPTURE(kv_head);
      const int number = row * c.x.n_kv_heads + kv_head, first = number * c.x.group;
      const int slot = row < c.n_rows ? c.slots[at(c.seq_of_row(row))] : -1;
      const int n = slot < 0 ? 0 : c.x.indexed[at(slot)];
      if (n == 0) {
        CHECK(got.count[at(number)] == 0);
        for (int h = 0; h < c.x.group; ++h) CHECK(got.origin[at(first + h)] == -kInf);
        continue;
      }
      std::vector<Expected> heads;
      const int reach = expect_shared(c, got, codes_of(c, slot, kv_head), first, n, heads);
      CHECK(got.list(number) == heads[0].ids);
      too_few += reach < static_cast<int>(std::lround(c.x.refine * n)) ? 1 : 0;
      for (int h = 0; h < c.x.group; ++h) {
        const Expected& e = heads[at(h)];
        double worst = 0, most = 0;
        for (size_t r = 0; r < e.masses.size(); ++r) {
          const double mass = got.masses[at((first + h) * got.mass_stride) + r];
          worst = worse(worst, std::abs(mass - e.masses[r]));
          most = std::max(most, e.masses[r]);
        }
        CHECK(worst <= 1e-5 * most);
        if (most > 0)
          CHECK(got.origin[at(first + h)] ==
                doctest::Approx(e.threshold + got.queries[at(first + h)].center));
      }
    }
  return too_few;
}

Setting sharing(Setting s) {
  s.shared = true;
  return s;
}

}  // namespace

TEST_SUITE("gpu/codes_shared") {
  TEST_CASE("choice: from equal codes the CPU's shared sets, in every shape") {
    for (const Setting& s : std::vector<Setting>{
             {},
             {.d = 128,
             .group = 4,
             .indexed = {3000, 5, 64, 65, 0, 700},
             .rows = {1, 1, 2, 1, 1, 3},
             .padding = 2},
             {.d = 128, .bits = 2, .group = 3, .indexed = {2500}, .rows = {3}},
             {.d = 64, .bits = 1, .group = 8, .indexed = {1500, 300}, .rows = {1, 1}},
             {.d = 80,
             .group = 5,
             .dtype = DType::f32,
             .indexed = {2300, 900},
             .rows = {2, 1},
             .capacity = 1024},
             {.d = 32, .group = 2, .indexed = {5000}, .rows = {1}, .exact = 0.3},
             {.d = 256, .bits = 2, .group = 7, .indexed = {1300}, .rows = {1}},
             {.d = 64, .group = 4, .indexed = {1000}, .rows = {1}, .exact = 1},
             {.d = 64, .group = 4, .indexed = {2000}, .rows = {1}, .equal_keys = true},
             {.d = 64, .bits = 1, .indexed = {2000}, .rows = {1}, .equal_keys = true}}) {
      CAPTURE(s.d);
      CAPTURE(s.bits);
      CAPTURE(s.group);
      (void)check_shared(Case(sharing(s)));
    }
  }

  TEST_CASE("choice: long texts, keys below a floor of ranks are not kept") {
    for (const Setting& s : std::vector<Setting>{
             {.d = 64, .group = 4, .n_kv_heads = 1, .indexed = {40000}, .rows = {1}},
             {.d = 128, .group = 3, .n_kv_heads = 1, .indexed = {20000, 33000}, .rows = {1, 1}},
             {.d = 128, .group = 8, .n_kv_heads = 1, .indexed = {18000}, .rows = {1}}})
      CHECK(check_shared(Case(sharing(s))) == 0);
  }

  TEST_CASE("choice: a floor of ranks that too few keys reach") {
    for (const int group : {2, 6})
      CHECK(check_shared(Case(sharing({.d = 64,
                                       .group = group,
                                       .n_kv_heads = 1,
                                       .indexed = {20000},
                                       .rows = {1},
                                       .clustered = true}))) > 0);
  }

  TEST_CASE("choice: the same bits on every run") {
    const Case c(sharing({.d = 64, .indexed = {3000, 700}, .rows = {1, 2}}));
    const Choice a = choose(c), b = choose(c);
    CHECK(a.count == b.count);
    for (int i = 0; i < c.n_rows * c.x.n_kv_heads; ++i) CHECK(a.list(i) == b.list(i));
    CHECK(a.masses == b.masses);
    CHECK(a.origin == b.origin);
  }
}
