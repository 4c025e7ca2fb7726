// LSH: signs of projections, tables from the signs, and one layer's probes.
#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "bench/lsh_data.h"
#include "kernels/cpu_table.h"

namespace tandem::bench {
namespace {

/// Some rows against sums in double: a bit may differ where f32 rounds more than the sum is.
std::string wrong_bit(const Projection& p) {
  const SignProjectParams params = p.params();
  const int64_t rows = p.x.view().rows();
  for (int64_t r = 0; r < rows; r += 1 + rows / 8)
    for (int64_t j = 0; j < params.n_bits; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < params.d; ++i) {
        const double product = double{p.x.get(r * params.d + i)} * p.w.get(i * params.w_stride + j);
        sum += product;
        magnitude += std::abs(product);
      }
      const bool bit = (params.bits[r * kCodeWords + j / 64] >> (j % 64) & 1) != 0;
      if (bit != (sum > 0) && std::abs(sum) > params.d * 0x1p-23 * magnitude)
        return fmt::format("bit {} of row {} is {}, the sum is {}", j, r, bit, sum);
    }
  return {};
}

KernelCase project_case(int n_rows, int d) {
  constexpr int kBits = kCodeBits * kTables;
  const size_t w_bytes = size_t{256} * kCodeWords * static_cast<size_t>(d);
  const size_t bytes = static_cast<size_t>(n_rows) * static_cast<size_t>(4 * d + 8 * kCodeWords);
  return {
      .family = "lsh",
      .name = "project",
      .shape = fmt::format("{} x {} on {} bits", n_rows, d, kBits),
      .dtype = DType::f32,
      .work = {.bytes = static_cast<double>(bytes + w_bytes), .flops = 2.0 * n_rows * d * kBits},
      .memory_bytes = bytes + w_bytes,
      .prepare = [=]() -> PreparedCase {
        const auto p = std::make_shared<Projection>(lsh_keys({.n = n_rows, .d = d}));
        return {.run = [=] { p->run(); }, .mismatch = [=] { return wrong_bit(*p); }};
      }};
}

/// Some tables of a copy against the bits they were made from.
std::string wrong_table(const LshTables& tables, int copy, const OwnedTensor& bits) {
  const LshShape& s = tables.shape;
  for (int t = 0; t < kTables; t += 37)
    for (int b = 0; b < s.blocks(); ++b) {
      const HashBlock block = tables.block(copy, b, 0);
      const uint16_t* offsets = block.offsets + int64_t{t} * (kBuckets + 1);
      const uint16_t* ids = block.ids + int64_t{t} * block.capacity;
      int n = 0;
      for (int c = 0; c < kBuckets; ++c)
        for (int i = offsets[c]; i < offsets[c + 1]; ++i, ++n) {
          const int64_t row = int64_t{b} * s.capacity() + ids[i];
          int code = 0;
          for (int k = 0, bit = t * kCodeBits; k < kCodeBits; ++k, ++bit)
            code |=
                static_cast<int>(bits.as<uint64_t>()[row * kCodeWords + bit / 64] >> (bit % 64) & 1)
                << k;
          if (code != c || (i > offsets[c] && ids[i] <= ids[i - 1]))
            return fmt::format("table {}, bucket {} holds token {} of code {}", t, c, row, code);
        }
      if (n != s.tokens(b)) return fmt::format("table {} holds {} of {} tokens", t, n, s.tokens(b));
    }
  return {};
}

/// Tables of one KV head from the bits of its keys, or from codes.
KernelCase build_case(const LshShape& s, bool from_bits) {
  const int copies = s.copies(1);
  const double ids = double{kTables} * s.n;
  const double read = from_bits ? 8.0 * kCodeWords * s.n : 2 * ids;
  return {.family = "lsh",
          .name = from_bits ? "tables of bits" : "tables of codes",
          .shape = fmt::format("{} x {} ids, {} bits", kTables, s.n, kCodeBits),
          .dtype = DType::i32,
          .work = {.bytes = read + 2 * ids},
          .memory_bytes = s.bytes() * static_cast<size_t>(copies) + static_cast<size_t>(2 * ids) +
                          static_cast<size_t>(8 * kCodeWords) * static_cast<size_t>(s.n),
          .rotates = true,
          .prepare = [=]() -> PreparedCase {
            Projection keys(lsh_keys(s));
            keys.run();
            const auto tables = std::make_shared<LshTables>(s, copies);
            tables->cut(keys.bits);
            const auto turn = std::make_shared<int>(0);
            return {.run =
                        [=, bits = keys.bits] {
                          tables->build(*turn % copies, from_bits ? &bits : nullptr);
                          ++*turn;
                        },
                    .mismatch =
                        [=, bits = keys.bits] {
                          return wrong_table(*tables, (*turn - 1) % copies, bits);
                        }};
          }};
}

/// One layer's probes a run: every query head in the tables of its KV head; the next run takes the
/// next layer and other queries.
struct Probes {
  int n_heads, n_kv_heads, copies;
  LshTables tables;
  OwnedTensor codes;          // [kQueries, kTables]
  OwnedTensor counters, ids;  // [n_heads, ...]
  std::vector<int> n_ids;
  int turn = 0;

  Probes(const LshShape& s, int heads, int kv_heads)
      : n_heads(heads),
        n_kv_heads(kv_heads),
        copies(s.copies(kv_heads)),
        tables(hashed(s, copies)),
        codes(lsh_codes(s)),
        counters(DType::u8, {heads, (s.capacity() + 63) / 64 * 64}),
        ids(DType::i32, {heads, s.n + 16}),
        n_ids(static_cast<size_t>(heads)) {}

  static LshTables hashed(const LshShape& s, int copies) {
    const Projection keys(lsh_keys(s));
    keys.run();
    LshTables made(s, copies);
    made.build(0, &keys.bits);
    made.replicate();
    return made;
  }

  /// body(head, copy, query, row): `row` numbers the piece of scratch memory, one a thread.
  template <class Body>
  void each_head(int step, const Body& body) const {
    const int layer = step * n_kv_heads % copies, group = n_heads / n_kv_heads;
    parallel_ranges(n_heads, 1, [&](int begin, int end) {
      for (int h = begin; h < end; ++h)
        body(h, layer + h / group, (step * n_heads + h) % kQueries, begin);
    });
  }
  int probe(HashProbeFn* fn, int copy, int query, int row, int32_t* out) const {
    int n = 0;
    for (int b = 0; b < tables.shape.blocks(); ++b)
      n += fn({.block = tables.block(copy, b, tables.shape.tokens(b)),
               .codes = codes.as<uint16_t>() + int64_t{query} * kTables,
               .tables = kTables,
               .code_bits = kCodeBits,
               .min_hits = kMinHits,
               .first_id = b * tables.shape.capacity(),
               .counters = counters.as<uint8_t>() + row * counters.view().row_size(),
               .ids = out + n});
    return n;
  }
  void run() {
    each_head(turn++, [&](int head, int copy, int query, int row) {
      n_ids[static_cast<size_t>(head)] = probe(cpu_table().hash_probe, copy, query, row,
                                               ids.as<int32_t>() + head * ids.view().row_size());
    });
  }
  std::string mismatch() const {
    std::vector<std::string> differs(static_cast<size_t>(n_heads));
    const OwnedTensor want(DType::i32, {n_heads, ids.view().row_size()});
    each_head(turn - 1, [&](int head, int copy, int query, int row) {
      const int32_t* got = ids.as<int32_t>() + head * ids.view().row_size();
      int32_t* other = want.as<int32_t>() + row * want.view().row_size();
      const int n = n_ids[static_cast<size_t>(head)];
      const int n_other = probe(hash_probe_ref, copy, query, row, other);
      if (!std::equal(got, got + n, other, other + n_other))
        differs[static_cast<size_t>(head)] =
            fmt::format("head {}: {} tokens, the reference finds {}", head, n, n_other);
    });
    const auto first = std::ranges::find_if(differs, [](auto& text) { return !text.empty(); });
    return first == differs.end() ? "" : *first;
  }
};

KernelCase probe_case(const KernelShapes& shapes, const LshShape& s) {
  const int heads = shapes.n_heads, kv_heads = shapes.n_kv_heads;
  const auto copies = static_cast<size_t>(s.copies(kv_heads));
  // What uniform codes would read: each table's two offsets and its share of the ids.
  const double bytes = 2.0 * heads * kTables * (2.0 * s.blocks() + double(s.n) / kBuckets);
  return {.family = "lsh",
          .name = "probe",
          .shape = fmt::format("{}/{} heads, {} x {} ids, {} bits", heads, kv_heads, kTables, s.n,
                               kCodeBits),
          .dtype = DType::i32,
          .work = {.bytes = bytes},
          .memory_bytes = copies * s.bytes(),
          .rotates = true,
          .prepare = [=]() -> PreparedCase {
            const auto p = std::make_shared<Probes>(s, heads, kv_heads);
            return {.run = [=] { p->run(); }, .mismatch = [=] { return p->mismatch(); }};
          }};
}

}  // namespace

KernelCases lsh_cases(const KernelShapes& s) {
  const LshShape shape{.n = static_cast<int>(s.context), .d = s.head_dim};
  return {project_case(s.n_heads, shape.d), project_case(shape.n, shape.d), build_case(shape, true),
          build_case(shape, false), probe_case(s, shape)};
}

}  // namespace tandem::bench
