// Hash tables on a GPU: codes, tables that grow, and collisions.
#include <algorithm>
#include <cmath>

#include "base/page.h"
#include "gpu/device_buffer.h"
#include "kernels/lsh/hash_tables.h"
#include "kernels/lsh/lsh_cuda.h"
#include "kernels/lsh/sign_project.h"
#include "kv/policies/centered_keys.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kKvHeads = 2, kHeads = 6, kCapacity = 192, kBlocks = 3, kBegin = 4;
constexpr int kTokens = kBegin + 2 * kCapacity + 70, kPages = (kTokens + 63) / 64;

struct Case {
  int d, tables, bits;
  DType dtype;
  ActBuffer k;
  std::vector<int32_t> pages;
  std::vector<float> w, centers, columns;
  std::vector<ProjectionPart> parts;
  int64_t stride;
  float longest;

  Case(int dim, int n_tables, int code_bits, DType type)
      : d(dim),
        tables(n_tables),
        bits(code_bits),
        dtype(type),
        k(type, static_cast<size_t>(kPages * kKvHeads * kPageTokens * dim)),
        stride((n_tables + 63) / 64 * 64 * code_bits) {
    PhiloxStream stream(8, static_cast<uint32_t>(dim));
    fill(k, stream, 1.0f);
    for (int i = 0; i < kPages; ++i) pages.push_back((i * 3 + 1) % kPages);
    for (int64_t i = 0; i < stride * d; ++i) w.push_back(random_float(stream, 1.0f));
    for (int i = 0; i < kKvHeads * d; ++i) centers.push_back(random_float(stream, 0.3f));
    split();
  }
  void split() {
    const auto n = static_cast<int>(stride);
    columns.resize(static_cast<size_t>(n * projection_dims(d)));
    parts.resize(projection_parts(d, n));
    longest = split_projections({.parts = parts.data(),
                                 .columns = columns.data(),
                                 .w = w.data(),
                                 .w_stride = stride,
                                 .d = d,
                                 .n_columns = n});
  }
  size_t at(int head, int token, int c) const {
    const int page = pages[static_cast<size_t>(token / kPageTokens)];
    return static_cast<size_t>(((page * kKvHeads + head) * kPageTokens + token % kPageTokens) * d +
                               c);
  }
  size_t block_elements() const {
    return static_cast<size_t>(tables) * static_cast<size_t>((1 << bits) + 1 + kCapacity);
  }
  /// Codes of rows [n, d]: n x tables.
  std::vector<uint16_t> codes_of(const std::vector<float>& rows) const {
    const int n = static_cast<int>(rows.size()) / d, n_bits = tables * bits;
    const auto words = static_cast<size_t>((n_bits + 63) / 64);
    std::vector<uint64_t> signs(static_cast<size_t>(n) * words);
    sign_project_ref({.bits = signs.data(),
                      .x = rows.data(),
                      .w = w.data(),
                      .w_stride = stride,
                      .d = d,
                      .n_bits = n_bits},
                     {0, n});
    std::vector<uint16_t> codes(static_cast<size_t>(n * tables));
    for (int i = 0; i < n; ++i)
      hash_codes({.codes = codes.data() + i * tables,
                  .code_stride = 1,
                  .bits = signs.data() + static_cast<size_t>(i) * words,
                  .words = static_cast<int64_t>(words),
                  .code_bits = bits,
                  .n_tokens = 1},
                 {0, tables});
    return codes;
  }
};

/// Projections in the GPU's memory.
struct DeviceRule {
  explicit DeviceRule(const Case& c)
      : w(c.w),
        columns(c.columns),
        parts(c.parts),
        rule{.w = w.as<float>(),
             .w_stride = c.stride,
             .parts = parts.as<ProjectionPart>(),
             .columns = columns.as<float>(),
             .longest = c.longest,
             .tables = c.tables,
             .code_bits = c.bits} {}

  DeviceBuffer w, columns, parts;
  HashRule rule;
};

size_t n_different(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
  REQUIRE(a.size() == b.size());
  size_t n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += a[i] != b[i] ? 1 : 0;
  return n;
}

void check(Case c, int min_hits) {
  CAPTURE(c.d);
  CAPTURE(c.tables);
  CAPTURE(c.bits);
  CAPTURE(min_hits);
  const auto table_elements = c.block_elements();
  const DeviceRule projections(c);
  const HashRule& rule = projections.rule;
  const DeviceBuffer k = on_device(c.k), pages(c.pages), centers(c.centers),
                     tables(kBlocks * kKvHeads * table_elements * sizeof(uint16_t)),
                     norms(size_t{kBlocks} * kKvHeads * kCapacity * sizeof(float)),
                     codes(static_cast<size_t>(kKvHeads * c.tables * kCapacity) * 2),
                     mean(static_cast<size_t>(kKvHeads * c.d) * sizeof(float)),
                     sums(static_cast<size_t>(kMeanParts * kKvHeads * c.d) * sizeof(double));
  const HashBlocks blocks{.at = tables.as<uint16_t>(),
                          .head_stride = static_cast<int64_t>(table_elements),
                          .capacity = kCapacity,
                          .tables = c.tables,
                          .code_bits = c.bits};
  cuda_table().mean_keys({.mean = mean.as<float>(),
                          .sums = sums.as<double>(),
                          .k_pool = k.raw(),
                          .pages = pages.as<int32_t>(),
                          .tokens = {kBegin, kTokens},
                          .n_kv_heads = kKvHeads,
                          .d = c.d,
                          .dtype = c.dtype},
                         queue().stream());
  cuda::launched("mean_keys", queue().stream());
  const std::vector<float> means = mean.vector<float>();
  for (int head = 0; head < kKvHeads; ++head)
    for (int e = 0; e < c.d; ++e) {
      double sum = 0;
      for (int t = kBegin; t < kTokens; ++t) sum += c.k.get(c.at(head, t, e));
      CHECK(std::abs(sum / (kTokens - kBegin) - means[static_cast<size_t>(head * c.d + e)]) <=
            1e-6);
    }
  // Blocks in another order than their tokens, filled in steps.
  const std::vector<int32_t> ids = {2, 0, 1};
  std::vector<uint16_t> key_codes[kKvHeads];  // [tokens, tables]
  for (auto& of : key_codes) of.resize(static_cast<size_t>((kTokens - kBegin) * c.tables));
  for (int token = kBegin; token < kTokens;) {
    const int held = (token - kBegin) % kCapacity, block = (token - kBegin) / kCapacity;
    const int steps[] = {1, 100, kCapacity};
    const int n = std::min({held == 0 ? steps[block % 3] : 50, kCapacity - held, kTokens - token});
    const auto id = static_cast<size_t>(ids[static_cast<size_t>(block)]);
    const KeyHashes hashes{codes.as<uint16_t>(), int64_t{c.tables} * n, n};
    cuda_table().hash_keys({.codes = hashes,
                            .norms = norms.as<float>() + id * kKvHeads * kCapacity + held,
                            .norm_stride = kCapacity,
                            .k_pool = k.raw(),
                            .pages = pages.as<int32_t>(),
                            .centers = centers.as<float>(),
                            .rule = rule,
                            .token = token,
                            .n = n,
                            .n_kv_heads = kKvHeads,
                            .d = c.d,
                            .heads = {0, kKvHeads},
                            .dtype = c.dtype},
                           queue().stream());
    cuda::launched("hash_keys", queue().stream());
    HashBlocks to = blocks;
    to.at += id * kKvHeads * table_elements;
    cuda_table().hash_append(
        {.block = to, .codes = hashes, .n_old = held, .n = n, .heads = {0, kKvHeads}},
        queue().stream());
    cuda::launched("hash_append", queue().stream());
    const std::vector<uint16_t> got = codes.vector<uint16_t>();
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<float> rows;
      for (int i = 0; i < n; ++i)
        for (int e = 0; e < c.d; ++e)
          rows.push_back(c.k.get(c.at(head, token + i, e)) -
                         c.centers[static_cast<size_t>(head * c.d + e)]);
      std::vector<uint16_t> mine;  // [n, tables]
      for (int i = 0; i < n; ++i)
        for (int t = 0; t < c.tables; ++t)
          mine.push_back(got[static_cast<size_t>((head * c.tables + t) * n + i)]);
      // Where a projection lies within rounding of 0, its sign may differ.
      CHECK(n_different(mine, c.codes_of(rows)) <= 1 + mine.size() / 2000);
      std::ranges::copy(mine, key_codes[head].begin() + (token - kBegin) * c.tables);
      const std::vector<float> all_norms = norms.vector<float>();
      size_t wrong_norms = 0;
      for (int i = 0; i < n; ++i)
        wrong_norms +=
            kv::norm_of({&rows[static_cast<size_t>(i * c.d)], static_cast<size_t>(c.d)}) ==
                    all_norms[(id * kKvHeads + static_cast<size_t>(head)) * kCapacity +
                              static_cast<size_t>(held + i)]
                ? 0
                : 1;
      CHECK(wrong_norms == 0);
    }
    token += n;
  }

  // Tables hold every token once, in its bucket.
  const std::vector<uint16_t> all = tables.vector<uint16_t>();
  const int buckets = 1 << c.bits;
  bool sorted = true;
  for (int block = 0; block < kBlocks; ++block)
    for (int head = 0; head < kKvHeads; ++head)
      for (int t = 0; t < c.tables; ++t) {
        const uint16_t* base =
            &all[static_cast<size_t>(ids[static_cast<size_t>(block)] * kKvHeads + head) *
                 table_elements];
        const uint16_t* offsets = base + t * (buckets + 1);
        const uint16_t* in = base + c.tables * (buckets + 1) + t * kCapacity;
        const int first = block * kCapacity, n = std::min(kCapacity, kTokens - kBegin - first);
        sorted &= offsets[0] == 0 && offsets[buckets] == n;
        std::vector<int> seen(static_cast<size_t>(n));
        for (int code = 0; sorted && code < buckets; ++code)
          for (int i = offsets[code]; i < offsets[code + 1]; ++i) {
            sorted &= i < n && in[i] < n &&
                      key_codes[head][static_cast<size_t>((first + in[i]) * c.tables + t)] == code;
            if (sorted) ++seen[in[i]];
          }
        sorted &= std::ranges::all_of(seen, [](int times) { return times == 1; });
      }
  REQUIRE(sorted);

  // Two slots, the first without an index; rows of the second, the last without a sequence.
  const std::vector<int32_t> slot = {1, 0}, row_begin = {0, 2, 3}, pos = {800, 801, 3, 0},
                             ends = {kBegin, kTokens}, table = {0, 0, 0, 2, 0, 1};
  constexpr int kRows = 4, kLists = kRows * kHeads, kStride = kTokens + 5;
  PhiloxStream stream(9);
  ActBuffer q(c.dtype, static_cast<size_t>(kRows * kHeads * c.d));
  fill(q, stream, 1.0f);
  std::vector<float> slot_centers(static_cast<size_t>(kKvHeads * c.d), 0.0f);
  slot_centers.insert(slot_centers.end(), c.centers.begin(), c.centers.end());
  const DeviceBuffer dq = on_device(q), dslot(slot), dbegin(row_begin), dpos(pos), dends(ends),
                     dtable(table), dcenters(slot_centers),
                     q_codes(static_cast<size_t>(kLists * c.tables) * 2),
                     queries(kLists * 2 * sizeof(float)), out(kLists * kStride * sizeof(int32_t)),
                     out_norms(kLists * kStride * sizeof(float)), count(kLists * sizeof(int32_t)),
                     hits(size_t{kLists} * kBlocks * kCapacity * 2),
                     n_hits(size_t{kLists} * kBlocks * sizeof(int32_t));
  const ChoosingRows choosing{.slot = dslot.as<int32_t>(),
                              .row_begin = dbegin.as<int32_t>(),
                              .pos = dpos.as<int32_t>(),
                              .n_seqs = 2,
                              .rows = {0, kRows}};
  cuda_table().hash_queries({.codes = q_codes.as<uint16_t>(),
                             .queries = queries.as<float>(),
                             .q = dq.raw(),
                             .centers = dcenters.as<float>(),
                             .center_stride = kKvHeads * c.d,
                             .rule = rule,
                             .choosing = choosing,
                             .n_heads = kHeads,
                             .n_kv_heads = kKvHeads,
                             .d = c.d,
                             .dtype = c.dtype},
                            queue().stream());
  cuda::launched("hash_queries", queue().stream());
  cuda_table().collide({.ids = out.as<int32_t>(),
                        .norms = out_norms.as<float>(),
                        .count = count.as<int32_t>(),
                        .id_stride = kStride,
                        .hits = hits.as<uint16_t>(),
                        .n_hits = n_hits.as<int32_t>(),
                        .codes = q_codes.as<uint16_t>(),
                        .blocks = blocks,
                        .block_stride = static_cast<int64_t>(kKvHeads * table_elements),
                        .key_norms = norms.as<float>(),
                        .norm_block_stride = kKvHeads * kCapacity,
                        .ends = dends.as<int32_t>(),
                        .table = dtable.as<int32_t>(),
                        .choosing = choosing,
                        .begin = kBegin,
                        .max_blocks = kBlocks,
                        .min_hits = min_hits,
                        .n_heads = kHeads,
                        .n_kv_heads = kKvHeads},
                       queue().stream());
  cuda::launched("collide", queue().stream());
  const std::vector<uint16_t> got_codes = q_codes.vector<uint16_t>();
  const std::vector<int32_t> got = out.vector<int32_t>(), counts = count.vector<int32_t>();
  const std::vector<float> got_norms = out_norms.vector<float>(), of_q = queries.vector<float>(),
                           all_norms = norms.vector<float>();
  size_t n_found = 0;
  for (int list = 0; list < kLists; ++list) {
    const auto i = static_cast<size_t>(list);
    const int row = list / kHeads, head = list % kHeads / (kHeads / kKvHeads);
    if (row >= 2) {  // without an index, or without a sequence
      CHECK(counts[i] == 0);
      continue;
    }
    std::vector<float> x;
    double norm = 0, dot = 0;
    for (int e = 0; e < c.d; ++e) {
      x.push_back(q.get(static_cast<size_t>(list * c.d + e)));
      norm += double{x.back()} * x.back();
      dot += double{x.back()} * c.centers[static_cast<size_t>(head * c.d + e)];
    }
    CHECK(std::abs(std::sqrt(norm) - of_q[2 * i]) <= 1e-5);
    CHECK(std::abs(dot - of_q[2 * i + 1]) <= 1e-5);
    const uint16_t* mine = &got_codes[i * static_cast<size_t>(c.tables)];
    CHECK(n_different({mine, mine + c.tables}, c.codes_of(x)) <= 1);
    std::vector<int32_t> want;
    std::vector<float> want_norms(kBegin, -1.0f);
    for (int t = 0; t < kBegin; ++t) want.push_back(t);
    for (int t = 0; t < kTokens - kBegin; ++t) {
      int same = 0;
      for (int j = 0; j < c.tables; ++j)
        same += key_codes[head][static_cast<size_t>(t * c.tables + j)] == mine[j] ? 1 : 0;
      if (same < min_hits) continue;
      want.push_back(kBegin + t);
      const auto id = ids[static_cast<size_t>(t / kCapacity)];
      want_norms.push_back(
          all_norms[static_cast<size_t>((id * kKvHeads + head) * kCapacity + t % kCapacity)]);
    }
    n_found += want.size() - kBegin;
    REQUIRE(counts[i] == static_cast<int32_t>(want.size()));
    const auto at = static_cast<std::ptrdiff_t>(i * kStride);
    CHECK(std::equal(want.begin(), want.end(), got.begin() + at));
    CHECK(std::equal(want_norms.begin(), want_norms.end(), got_norms.begin() + at));
  }
  MESSAGE(n_found << " collisions");
  CHECK(n_found > 0);
}

/// Codes of keys against f32 multiply-adds in order, whose every sign they are to have; of keys
/// that are `near` many planes, too.
void check_exact(Case c, bool near) {
  CAPTURE(c.d);
  CAPTURE(c.tables);
  CAPTURE(c.bits);
  CAPTURE(near);
  PhiloxStream stream(11);
  constexpr float kScales[] = {1, 1e-18f, 0, 1e15f, 1e-3f};
  for (int token = 0; token < kTokens; ++token)
    for (int head = 0; head < kKvHeads; ++head)
      for (int e = 0; e < c.d; ++e) {
        const auto i = static_cast<size_t>(head * c.d + e);
        const bool in_pair = e < 2;
        // Projections have the same first two coordinates: pairs of opposite ones add up to 0, or
        // to what rounding and a small third coordinate leave.
        const float x = !near     ? kScales[token % 5] * random_float(stream, 1.0f)
                        : in_pair ? (e == 0 ? 1.0f : -1.0f) * static_cast<float>(token % 7 + 1)
                        : token % 3 > 0 ? random_float(stream, 1e-5f)
                                        : 0.0f;
        if (near) c.centers[i] = 0;
        c.k.set(c.at(head, token, e), c.centers[i] + x);
      }
  for (int64_t j = 0; near && j < c.stride; ++j)
    c.w[static_cast<size_t>(c.stride + j)] = c.w[static_cast<size_t>(j)];
  c.split();
  const DeviceRule projections(c);
  const int n = kTokens - kBegin;
  const DeviceBuffer k = on_device(c.k), pages(c.pages), centers(c.centers),
                     codes(static_cast<size_t>(kKvHeads * c.tables * n) * sizeof(uint16_t)),
                     norms(static_cast<size_t>(kKvHeads * n) * sizeof(float));
  cuda_table().hash_keys({.codes = {codes.as<uint16_t>(), int64_t{c.tables} * n, n},
                          .norms = norms.as<float>(),
                          .norm_stride = n,
                          .k_pool = k.raw(),
                          .pages = pages.as<int32_t>(),
                          .centers = centers.as<float>(),
                          .rule = projections.rule,
                          .token = kBegin,
                          .n = n,
                          .n_kv_heads = kKvHeads,
                          .d = c.d,
                          .heads = {0, kKvHeads},
                          .dtype = c.dtype},
                         queue().stream());
  cuda::launched("hash_keys", queue().stream());
  const std::vector<uint16_t> got = codes.vector<uint16_t>();
  size_t wrong = 0;
  for (int head = 0; head < kKvHeads; ++head)
    for (int i = 0; i < n; ++i)
      for (int t = 0; t < c.tables; ++t) {
        int code = 0;
        for (int bit = 0; bit < c.bits; ++bit) {
          float sum = 0;
          for (int e = 0; e < c.d; ++e)
            sum = std::fma(
                c.k.get(c.at(head, kBegin + i, e)) - c.centers[static_cast<size_t>(head * c.d + e)],
                c.w[static_cast<size_t>(e * c.stride + t * c.bits + bit)], sum);
          code |= (sum > 0 ? 1 : 0) << bit;
        }
        wrong += got[static_cast<size_t>((head * c.tables + t) * n + i)] == code ? 0 : 1;
      }
  CHECK(wrong == 0);
}

}  // namespace

TEST_SUITE("gpu/kernels/lsh") {
  TEST_CASE("codes, tables and collisions are those of the CPU's definitions") {
    check({64, 40, 4, DType::f32}, 2);
    check({128, 150, 5, DType::bf16}, 4);
    check({96, 33, 1, DType::f32}, 20);
    check({32, 300, 8, DType::bf16}, 2);
  }
  TEST_CASE("every sign is that of the CPU's sums, next to planes and at any scale too") {
    for (const bool near : {false, true}) {
      check_exact({128, 70, 10, DType::bf16}, near);
      check_exact({40, 33, 5, DType::f32}, near);
      check_exact({640, 40, 3, DType::f32}, near);    // fewer keys a block
      check_exact({16, 130, 16, DType::bf16}, near);  // several passes
    }
  }
  TEST_CASE("more buckets than are counted at a time") { check({64, 65, 13, DType::f32}, 1); }
}
