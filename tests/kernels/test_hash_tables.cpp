// Hash tables and their probe against counting equal codes.
#include <algorithm>
#include <numeric>

#include "kernels/lsh/hash_tables.h"
#include "kernels/magicpig_data.h"
#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// The reference and every variant this CPU can run.
std::vector<HashProbeFn*> probes() {
  std::vector<HashProbeFn*> all = {hash_probe_ref};
  for (const Isa isa : usable_isas()) all.push_back(cpu_table(isa).hash_probe);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

/// Codes of n tokens, table-major.
struct Codes {
  int tables, bits, n;
  std::vector<uint16_t> codes;

  Codes(int t, int b, int tokens)
      : tables(t), bits(b), n(tokens), codes(static_cast<size_t>(t) * static_cast<size_t>(n)) {}
  static Codes random(int tables, int bits, int n) {
    static const std::vector<uint16_t> pool = [] {
      std::vector<uint16_t> words(size_t{300} * kHashBlockTokens);
      for (size_t i = 0; i < words.size(); ++i)
        words[i] = static_cast<uint16_t>(splitmix64(1, i / 4) >> (16 * (i % 4)));
      return words;
    }();
    Codes c(tables, bits, n);
    for (size_t i = 0; i < c.codes.size(); ++i)
      c.codes[i] = static_cast<uint16_t>(pool[i] >> (16 - bits));
    return c;
  }
  const uint16_t* table(int t) const { return codes.data() + int64_t{t} * n; }
  /// Codes that token i has in most tables: every third one is another.
  std::vector<uint16_t> query(int i) const {
    std::vector<uint16_t> q;
    for (int t = 0; t < tables; ++t)
      q.push_back(static_cast<uint16_t>((table(t)[i] ^ (t % 3 == 2)) & ((1 << bits) - 1)));
    return q;
  }
  /// In how many tables each token has the query's code.
  std::vector<uint16_t> equal(const std::vector<uint16_t>& q) const {
    std::vector<uint16_t> count(static_cast<size_t>(n));
    for (int t = 0; t < tables; ++t)
      for (int i = 0; i < n; ++i)
        count[static_cast<size_t>(i)] = static_cast<uint16_t>(
            count[static_cast<size_t>(i)] + (table(t)[i] == q[static_cast<size_t>(t)]));
    return count;
  }
};

/// Blocks of kHashBlockTokens over all tokens of the codes.
struct Tables {
  const Codes& codes;
  int capacity, buckets;
  std::vector<std::vector<uint16_t>> offsets, ids;
  std::vector<HashBlock> blocks;

  explicit Tables(const Codes& c, int most = kHashBlockTokens)
      : codes(c), capacity(std::min(c.n, most)), buckets(1 << c.bits) {
    for (int begin = 0; begin < c.n; begin += capacity) {
      const auto rows = static_cast<size_t>(c.tables);
      offsets.emplace_back(rows * static_cast<size_t>(buckets + 1), uint16_t{0xaaaa});
      ids.emplace_back(rows * static_cast<size_t>(capacity), uint16_t{0xaaaa});
      blocks.push_back({offsets.back().data(), ids.back().data(), capacity, 0});
    }
  }
  /// Adds tokens up to `end` of block b.
  void append(size_t b, int end) {
    std::vector<uint32_t> scratch(static_cast<size_t>(buckets + 1 + end));
    HashBlock& block = blocks[b];
    const int first = static_cast<int>(b) * capacity + block.n_tokens;
    const HashAppendParams p{.block = block,
                             .codes = codes.table(0) + first,
                             .code_stride = codes.n,
                             .code_bits = codes.bits,
                             .n_new = end - block.n_tokens,
                             .scratch = scratch.data()};
    hash_append(p, {codes.tables / 2, codes.tables});
    hash_append(p, {0, codes.tables / 2});
    block.n_tokens = end;
  }
  void build() {
    for (size_t b = 0; b < blocks.size(); ++b)
      append(b, std::min(capacity, codes.n - static_cast<int>(b) * capacity));
  }
  std::vector<int32_t> probe(HashProbeFn* fn, const std::vector<uint16_t>& q, int min_hits) const {
    std::vector<int32_t> all;
    struct alignas(64) Line {
      uint8_t bytes[64];
    };
    std::vector<Line> counters(static_cast<size_t>((capacity + 63) / 64));
    for (size_t b = 0; b < blocks.size(); ++b) {
      Buffer<int32_t> out(static_cast<size_t>(blocks[b].n_tokens) + 16, 1);
      std::fill_n(counters[0].bytes, 64 * counters.size(), uint8_t{0xaa});
      const int n = fn({.block = blocks[b],
                        .codes = q.data(),
                        .tables = codes.tables,
                        .code_bits = codes.bits,
                        .min_hits = min_hits,
                        .first_id = static_cast<int>(b) * capacity,
                        .counters = counters[0].bytes,
                        .ids = out.data()});
      all.insert(all.end(), out.data(), out.data() + n);
    }
    return all;
  }
};

void check_against_mask(const Codes& codes, std::initializer_list<int> thresholds) {
  CAPTURE(codes.bits);
  CAPTURE(codes.tables);
  CAPTURE(codes.n);
  Tables tables(codes);
  tables.build();
  const std::vector<uint16_t> q = codes.query(codes.n / 2), count = codes.equal(q);
  for (const int min_hits : thresholds) {
    if (min_hits > codes.tables) continue;
    CAPTURE(min_hits);
    std::vector<int32_t> want;
    for (int i = 0; i < codes.n; ++i)
      if (count[static_cast<size_t>(i)] >= min_hits) want.push_back(i);
    int variant = 0;  // 0 is the reference
    for (HashProbeFn* fn : probes()) {
      CAPTURE(variant);
      ++variant;
      REQUIRE(tables.probe(fn, q, min_hits) == want);
    }
  }
}

}  // namespace

TEST_SUITE("kernels/hash_tables") {
  TEST_CASE("the probe finds what a comparison of all codes finds") {
    for (const int bits : {2, 4, 8, 10, 11, 12, 15, 16})
      for (const int tables : {2, 4, 50, 150, 300})
        for (const int n : {1, 63, 64, 65, 4096, 32767, 32768})
          check_against_mask(Codes::random(tables, bits, n), {1, 2, 3});
  }

  TEST_CASE("several blocks") {
    for (const int n : {32769, 98304}) {
      check_against_mask(Codes::random(4, 2, n), {1, 2, 3});
      check_against_mask(Codes::random(50, 10, n), {1, 2, 3});
      check_against_mask(Codes::random(2, 15, n), {1, 2});
    }
  }

  TEST_CASE("skewed codes") {
    for (const int n : {65, 32768}) {
      Codes codes(50, 10, n);
      std::fill(codes.codes.begin(), codes.codes.end(), uint16_t{1023});
      check_against_mask(codes, {1, 2, 34, 35, 50});
      const Codes noise = Codes::random(50, 10, n);
      for (size_t i = 0; i < codes.codes.size(); ++i)
        codes.codes[i] = splitmix64(3, i) % 10 == 0 ? noise.codes[i] : uint16_t{0};
      check_against_mask(codes, {1, 2, 3, 30, 33});
    }
  }

  TEST_CASE("counters saturate") {
    for (const int tables : {255, 256, 257, 300, 600}) {
      // Token i shares up to min(5 i, tables) tables with the query, less every third.
      Codes codes(tables, 3, 200);
      for (int t = 0; t < tables; ++t)
        for (int i = 0; i < codes.n; ++i)
          codes.codes[static_cast<size_t>(t * codes.n + i)] = t % 3 == 2 ? 0 : t < 5 * i;
      check_against_mask(codes, {1, 2, 3, 170, 199, 200, 254, 255});
      Codes equal(tables, 3, 200);
      Tables built(equal);
      built.build();
      std::vector<int32_t> everyone(200);
      std::iota(everyone.begin(), everyone.end(), 0);
      for (HashProbeFn* fn : probes())
        for (const int min_hits : {1, 2, 255})
          CHECK(built.probe(fn, std::vector<uint16_t>(static_cast<size_t>(tables)), min_hits) ==
                everyone);
    }
  }

  TEST_CASE("appending in pieces is building at once") {
    for (const int bits : {1, 4, 10, 16})
      for (const int n : {1, 2, 64, 1000, 32768}) {
        if (n > 1000 && bits != 10) continue;
        CAPTURE(bits);
        CAPTURE(n);
        const Codes codes = Codes::random(6, bits, n);
        Tables once(codes), pieces(codes);
        once.build();
        for (const int end : {1, 2, 64, 65, 700, 20000, n}) {
          if (end < n) pieces.append(0, end);
          if (end == n) pieces.append(0, n);
        }
        CHECK(once.offsets == pieces.offsets);
        CHECK(once.ids == pieces.ids);
      }
  }

  TEST_CASE("ids of a bucket ascend and every token is in each table once") {
    const Codes codes = Codes::random(3, 8, 5000);
    Tables tables(codes);
    tables.build();
    for (int t = 0; t < 3; ++t) {
      const uint16_t* offsets = tables.blocks[0].offsets + t * 257;
      const uint16_t* ids = tables.blocks[0].ids + t * 5000;
      CHECK(offsets[0] == 0);
      CHECK(offsets[256] == 5000);
      for (int c = 0; c < 256; ++c) {
        CHECK(std::is_sorted(ids + offsets[c], ids + offsets[c + 1], std::less_equal<>()));
        CHECK(std::all_of(ids + offsets[c], ids + offsets[c + 1],
                          [&](uint16_t id) { return codes.table(t)[id] == c; }));
      }
    }
  }
}
