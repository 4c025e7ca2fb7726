// Keys and values in 8 to 4 bits: their code against its formulas, and attention over it.
#include <cstring>
#include <limits>

#include "kernels/attention/attention.h"
#include "kernels/coded_page_case.h"
#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kDims[] = {32, 64, 96, 128, 256};

struct TableRow {
  int seed, bits;
  uint16_t e;
  uint32_t planes[8];
};
/// Made by a program of its own from the code's definition. Coordinate c of 32 is
/// ((37 c (2 seed + 1) + 11 seed) mod 101 - 50) / 16 (1 + c seed mod 5).
constexpr TableRow kTable[] = {
    {2, 4, 0x462e, {0xe38e38e3, 0x81085086, 0x2c2e23c4, 0xce907a49}},
    {3, 6, 0x4612, {0x56ad52ad, 0x9528010a, 0x34837048, 0x00c2f7fa, 0xc8e80d81, 0x64580566}},
    {4,
     8,
     0x45e9,
     {0x6c9b364d, 0x04411846, 0xb0ec330c, 0x362d8370, 0xefa0c122, 0x845d7484, 0x8c973121,
      0xd1d1d7f1}},
    {5, 4, 0x3f75, {0xffff0000, 0x003ffc00, 0x07c003f0, 0x39c3e38e}},
    {6, 6, 0x4602, {0x9ccccc66, 0x31880088, 0x1909595c, 0x8836f994, 0xa3d59d17, 0x33674790}},
    {7,
     8,
     0x4590,
     {0xaaaaaaaa, 0xa82a1294, 0x09c1684a, 0x364ec9e7, 0xe7962d00, 0x0cc3c700, 0xb8b317a9,
      0x04d8df94}},
    {8, 4, 0x4634, {0x3998cce6, 0x94846202, 0x08ec0150, 0x890e2d7f}},
    {11, 6, 0x4602, {0x952b56ad, 0x10844214, 0x08a93ad0, 0x570d6b83, 0xe57b61a4, 0xfef8c01c}},
    {12,
     8,
     0x45de,
     {0xc71e38e3, 0x21431810, 0x908e025c, 0xe9e23ea0, 0x6fac87e5, 0xee48d04b, 0x026e47f0,
      0x8eb4620e}},
    {13, 4, 0x462f, {0xf87c3e0f, 0x80a06818, 0x31c1304e, 0xc578a0f0}},
    {15, 6, 0x3f40, {0x496d25b4, 0x24a49292, 0xc9132448, 0x391cd477, 0x3722eccf, 0x85542e05}},
    {16,
     8,
     0x4636,
     {0x7c0f81f8, 0x0180601c, 0x3d47501a, 0x3e08f8e0, 0x1a23bfc7, 0x5ee40a11, 0x216a0269,
      0x8b12c36f}},
    {19, 4, 0x45ff, {0x3264c993, 0x982208c8, 0x81a76016, 0x815167c1}},
    {21, 6, 0x4596, {0x33333333, 0x20466210, 0x35203346, 0xcbad4726, 0x669a48ef, 0x1c2bd4a9}},
    {23,
     8,
     0x4595,
     {0xcc663398, 0x24210948, 0x9123308e, 0xc75cb896, 0xca5d4dd6, 0xda8a6fe2, 0xcacb9b64,
      0x5e73accc}},
    {24, 4, 0x4611, {0xff801ff8, 0x80033800, 0xbc045bc0, 0x5c29e5c2}},
    {25, 6, 0x3f3f, {0x4db64936, 0x99249264, 0x424b4909, 0x4274b90a, 0xe38cc71d, 0x92d02d25}},
    {29,
     8,
     0x46c3,
     {0x94b4a5ad, 0x8421094a, 0x29ed2800, 0x3c066245, 0x950164be, 0xcdebd378, 0xa072bc61,
      0xb098c6fb}},
    {31, 4, 0x45c2, {0x07e07f03, 0x01cc0390, 0xa03a1b48, 0x702124e0}},
    {34, 6, 0x462b, {0xd9933664, 0x0cc11902, 0x840c32d6, 0xe10b8026, 0xe2b94925, 0x7c5582d9}},
};

double density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * 3.141592653589793); }
double below(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }
/// E[X | a <= X < b] of a standard normal variable.
double mean_within(double a, double b) { return (density(a) - density(b)) / (below(b) - below(a)); }

void code_best(CodedCase& c) { c.code(cpu_table(isa_detected()).code_rows_of_page); }

/// Queries of a case, with a few large ones.
std::vector<float> some_queries(const CodedCase& c, int n) {
  PhiloxStream stream(33, static_cast<uint32_t>(n));
  std::vector<float> q;
  for (int i = 0; i < n * c.layout.d; ++i)
    q.push_back(static_cast<float>((1 + i / c.layout.d % 3) * normal_number(stream)));
  return q;
}

struct Attended {
  std::vector<float> o, lse;  // o rotated
};

Attended attend(CodedCase& c, const std::vector<float>& q, Range tokens, Isa isa) {
  const int d = c.layout.d, n = static_cast<int>(q.size()) / d;
  const CpuTable& table = cpu_table(isa);
  std::vector<int16_t> numbers(q.size());
  std::vector<CodedGains> gains(static_cast<size_t>(n));
  const CodedQueriesParams queries{.numbers = numbers.data(),
                                   .gains = gains.data(),
                                   .q = q.data(),
                                   .layout = c.layout,
                                   .center = c.frame.center.data(),
                                   .axis = c.frame.axis.data(),
                                   .signs = c.frame.signs.data(),
                                   .scale = 1 / std::sqrt(static_cast<float>(d))};
  table.prepare_coded_queries(queries, {0, n / 2});
  table.prepare_coded_queries(queries, {n / 2, n});
  Attended a{std::vector<float>(q.size(), -77.0f), std::vector<float>(static_cast<size_t>(n))};
  const size_t bytes = attend_coded_scratch(d, n);
  std::vector<char> scratch(bytes + 64, 0x7f);
  void* aligned = scratch.data();
  size_t room = scratch.size();
  std::align(64, bytes, aligned, room);
  table.attend_coded({.o = a.o.data(),
                      .lse = a.lse.data(),
                      .numbers = numbers.data(),
                      .gains = gains.data(),
                      .n_queries = n,
                      .pool = c.pool.data(),
                      .layout = c.layout,
                      .n_kv_heads = c.n_kv_heads,
                      .kv_head = c.kv_head,
                      .pages = c.pages.data(),
                      .begin = tokens.begin,
                      .end = tokens.end,
                      .scratch = aligned});
  return a;
}

struct Exact {
  std::vector<double> o;
  double lse;
};
/// Attention over decoded rows; `decoded` has keys and values of all tokens.
Exact attend_exact(const std::vector<std::vector<double>>& keys,
                   const std::vector<std::vector<double>>& values, const float* q, Range tokens) {
  const size_t d = keys[0].size();
  std::vector<double> scores;
  for (int t = tokens.begin; t < tokens.end; ++t) {
    double dot = 0;
    for (size_t c = 0; c < d; ++c) dot += q[c] * keys[static_cast<size_t>(t)][c];
    scores.push_back(dot / std::sqrt(static_cast<double>(d)));
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  Exact e{std::vector<double>(d), 0};
  double sum = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double w = std::exp(scores[i] - most);
    sum += w;
    for (size_t c = 0; c < d; ++c) e.o[c] += w * values[static_cast<size_t>(tokens.begin) + i][c];
  }
  for (double& x : e.o) x /= sum;
  e.lse = most + std::log(sum);
  return e;
}

/// |a - b| / |b|.
double distance(const std::vector<float>& a, size_t at, const std::vector<double>& b) {
  double off = 0, size = 0;
  for (size_t c = 0; c < b.size(); ++c) {
    off += std::pow(a[at + c] - b[c], 2);
    size += b[c] * b[c];
  }
  return std::sqrt(off / size);
}

void rotate_back(CodedCase& c, std::vector<float>& o) {
  cpu_table(isa_detected())
      .rotate_rows_back({.rows = o.data(), .signs = c.frame.signs.data(), .dims = c.layout.d},
                        {0, static_cast<int>(o.size()) / c.layout.d});
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Decoded {
  std::vector<std::vector<double>> keys, values;
  explicit Decoded(CodedCase& c) {
    for (int t = 0; t < c.n_pages * kPageTokens; ++t) {
      keys.push_back(c.decoded(t, true));
      values.push_back(c.decoded(t, false));
    }
  }
};

/// Requires every query's output and lse to be those of decoded rows.
void require_attention(CodedCase& c, const Decoded& rows, const std::vector<float>& q, Range tokens,
                       Attended got) {
  rotate_back(c, got.o);
  const auto d = static_cast<size_t>(c.layout.d);
  for (size_t i = 0; i < got.lse.size(); ++i) {
    const Exact want = attend_exact(rows.keys, rows.values, q.data() + i * d, tokens);
    CAPTURE(i);
    REQUIRE(distance(got.o, i * d, want.o) <= 0x1p-8);
    REQUIRE(std::abs(got.lse[i] - want.lse) <= 0x1p-10);
  }
}

}  // namespace

TEST_SUITE("kernels/coded_pages") {
  TEST_CASE("thresholds and levels are those of a Lloyd iteration, views are conditional means") {
    double from[9] = {0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.9, 2.4, 40}, level[8] = {};
    for (int turn = 0; turn < 4000; ++turn) {
      for (int j = 0; j < 8; ++j) level[j] = mean_within(from[j], from[j + 1]);
      for (int j = 1; j < 8; ++j) from[j] = (level[j - 1] + level[j]) / 2;
    }
    for (int j = 0; j < kCells; ++j) {
      CAPTURE(j);
      CHECK(std::abs(kCellFrom[j] - from[j]) <= 1e-4);
      CHECK(kCellNumber[j] == std::lround(46 * level[j]));
      CHECK(std::abs(kCellEnd[j] - 736 * from[j]) <= 0.6);
    }
    CHECK(kCellEnd[8] == 4 * 736);
    CHECK(kNumbersOf1[0] == std::lround(46 * mean_within(0, 40)));
    for (int j = 0; j < 2; ++j)
      CHECK(kNumbersOf2[j] == std::lround(46 * mean_within(from[4 * j], from[4 * j + 4])));
    for (int j = 0; j < 4; ++j)
      CHECK(kNumbersOf3[j] == std::lround(46 * mean_within(from[2 * j], from[2 * j + 2])));
    // Mean square errors of the views by upper bits.
    PhiloxStream stream(34);
    double errors[3] = {};
    constexpr int kDraws = 1000000;
    for (int i = 0; i < kDraws; ++i) {
      const double u = std::abs(normal_number(stream));
      int j = 0;
      while (j + 1 < kCells && u >= kCellFrom[j + 1]) ++j;
      errors[0] += std::pow(u - kNumbersOf1[0] / 46.0, 2) / kDraws;
      errors[1] += std::pow(u - kNumbersOf2[j / 4] / 46.0, 2) / kDraws;
      errors[2] += std::pow(u - kNumbersOf3[j / 2] / 46.0, 2) / kDraws;
    }
    CHECK(errors[0] == doctest::Approx(0.3634).epsilon(0.01));
    CHECK(errors[1] == doctest::Approx(0.1203).epsilon(0.01));
    CHECK(errors[2] == doctest::Approx(0.0349).epsilon(0.01));
  }

  TEST_CASE("rows have the bytes of the table") {
    std::vector<float> zeros(32), signs(64, 1.0f), rows(64 * 32);
    for (const TableRow& row : kTable)
      for (const Isa isa : usable_isas()) {
        CAPTURE(row.seed);
        CAPTURE(isa_name(isa));
        const auto bits = static_cast<uint8_t>(row.bits);
        const CodedLayout l{32, {bits, static_cast<uint8_t>(bits == 8 ? 8 : 4)}};
        constexpr int kAt = 5;
        for (int c = 0; c < 32; ++c)
          rows[static_cast<size_t>(kAt * 32 + c)] =
              static_cast<float>((37 * c * (2 * row.seed + 1) + 11 * row.seed) % 101 - 50) / 16 *
              static_cast<float>(1 + c * row.seed % 5);
        std::vector<uint8_t> page(static_cast<size_t>(l.page_bytes()));
        cpu_table(isa).code_rows_of_page({.page = page.data(),
                                          .layout = l,
                                          .k = rows.data(),
                                          .v = bits == 6 ? nullptr : rows.data(),
                                          .dtype = DType::f32,
                                          .center = zeros.data(),
                                          .axis = zeros.data(),
                                          .signs = signs.data()},
                                         {kAt, kAt + 1});
        const auto word = [&](int at) {
          uint32_t x;
          std::memcpy(&x, page.data() + at, 4);
          return x;
        };
        REQUIRE(word(l.scales() + 4 * kAt) == row.e);  // and a share of 0
        for (int b = 0; b < row.bits; ++b) {
          const int at = b == 0  ? l.signs() + kAt * 4
                         : b < 4 ? l.cells() + (3 * kAt + b - 1) * 4
                                 : l.parts() + ((row.bits - 4) * kAt + b - 4) * 4;
          REQUIRE(word(at) == row.planes[b]);
          if (bits != 6) REQUIRE(word(l.values() + (row.bits * kAt + b) * 4) == row.planes[b]);
        }
        if (bits != 6) REQUIRE((word(l.value_scales() + 2 * kAt) & 0xffffu) == row.e);
      }
  }

  TEST_CASE("mean square errors of a hundred thousand normal rows") {
    constexpr int d = 128, kPages = 1563;
    const CpuTable& table = cpu_table(isa_detected());
    for (const CodedBits bits : kAllCodedBits) {
      CAPTURE(int{bits.k});
      CAPTURE(int{bits.v});
      const CodedFrame frame(d, 7);
      const std::vector<float> none(d);
      const CodedLayout l{d, bits};
      std::vector<float> rows(64 * d), k(64 * d), v(64 * d);
      std::vector<uint8_t> page(static_cast<size_t>(l.page_bytes()));
      PhiloxStream stream(35);
      double error[2] = {};
      for (int i = 0; i < kPages; ++i) {
        for (float& x : rows) x = static_cast<float>(normal_number(stream));
        table.code_rows_of_page({.page = page.data(),
                                 .layout = l,
                                 .k = rows.data(),
                                 .v = rows.data(),
                                 .dtype = DType::f32,
                                 .center = none.data(),
                                 .axis = none.data(),
                                 .signs = frame.signs.data()},
                                {0, 64});
        table.widen_coded_rows({.page = page.data(),
                                .layout = l,
                                .k = k.data(),
                                .v = v.data(),
                                .dtype = DType::f32,
                                .center = none.data(),
                                .axis = none.data(),
                                .signs = frame.signs.data()},
                               {0, 64});
        for (size_t c = 0; c < rows.size(); ++c) {
          error[0] += std::pow(double{k[c]} - rows[c], 2) / (kPages * 64.0 * d);
          error[1] += std::pow(double{v[c]} - rows[c], 2) / (kPages * 64.0 * d);
        }
      }
      for (int side = 0; side < 2; ++side) {
        const int n = side == 0 ? bits.k : bits.v;
        if (n == 4) CHECK(std::abs(error[side] - 0.0092) <= 0.0002);
        if (n == 6) CHECK(error[side] == doctest::Approx(7.1e-4).epsilon(0.05));
        if (n == 8) CHECK(error[side] == doctest::Approx(4.7e-5).epsilon(0.05));
      }
    }
  }

  TEST_CASE("codes are those of the formulas, and the same bytes on every ISA") {
    int64_t elements = 0, moved = 0;
    for (const CodedBits bits : kAllCodedBits)
      for (const int d : kDims) {
        CodedCase c(bits, d, 2, static_cast<uint32_t>(d));
        CAPTURE(d);
        CAPTURE(int{bits.k});
        c.code(code_rows_of_page_scalar);
        for (int t = 0; t < c.n_pages * kPageTokens; ++t)
          for (const bool key : {true, false}) {
            const int n = key ? bits.k : bits.v;
            double share = 0;
            const std::vector<double> x = c.rotated(t, key, share);
            const CodeRef want(x, n);
            const CodedRow got = read_row(c.page(t / kPageTokens), c.layout, t % kPageTokens, key);
            double m = 0;
            for (const double v : x) m += v * v / d;
            m = std::sqrt(m);
            int differences = 0;
            for (size_t i = 0; i < x.size(); ++i) {
              const int code = want.negative[i] << (n - 1) | want.cell[i] << (n - 4) |
                               (n == 4 ? 0 : want.part[i] >> (8 - n));
              if (got.codes[i] == code) continue;
              ++differences;
              REQUIRE(CodeRef::nearest(x[i] / m, n) <= 1e-5);
            }
            elements += d;
            moved += differences;
            if (differences == 0) REQUIRE(std::abs(got.e - want.e) <= want.e * 0x1.01p-11);
            if (key) REQUIRE(std::abs(got.share - share) <= std::abs(share) * 0x1p-11 + 1e-5);
          }
        const std::vector<uint8_t> want = c.pool;
        for (const Isa isa : usable_isas()) {
          CAPTURE(isa_name(isa));
          std::fill(c.pool.begin(), c.pool.end(), uint8_t{0x5a});
          c.code(cpu_table(isa).code_rows_of_page);
          REQUIRE(c.pool == want);
        }
      }
    CAPTURE(moved);
    CHECK(static_cast<double>(moved) < 1e-4 * static_cast<double>(elements));
  }

  TEST_CASE("every byte of a page belongs to one row of keys or values") {
    for (const CodedBits bits : kAllCodedBits)
      for (const int d : kDims) {
        CAPTURE(d);
        CodedCase c(bits, d, 1, 3);
        code_best(c);
        const size_t size = c.page_size();
        const std::vector<uint8_t> want(c.page(0), c.page(0) + size);
        std::vector<int> owners(size);
        for (int row = 0; row < kPageTokens; ++row)
          for (const bool key : {true, false}) {
            std::vector<uint8_t> pages[2];
            for (int i = 0; i < 2; ++i) {
              pages[i].assign(size, i == 0 ? 0x00 : 0xff);
              CodedRowsParams p = c.rows(0);
              p.page = pages[i].data();
              (key ? p.v : p.k) = nullptr;
              cpu_table(isa_detected()).code_rows_of_page(p, {row, row + 1});
            }
            for (size_t i = 0; i < size; ++i)
              if (pages[0][i] == pages[1][i]) {
                ++owners[i];
                REQUIRE(pages[0][i] == want[i]);
              }
          }
        CHECK(std::ranges::all_of(owners, [](int n) { return n == 1; }));
      }
  }

  TEST_CASE("wide rows are what the planes stand for, from bf16 too, the same bits on every ISA") {
    for (const CodedBits bits : kAllCodedBits)
      for (const int d : kDims) {
        CAPTURE(d);
        CodedCase c(bits, d, 1, 4);
        const auto n = static_cast<size_t>(kPageTokens * d);
        std::vector<bf16> half(n);
        for (size_t i = 0; i < n; ++i) {
          half[i] = to_bf16(c.k[i]);
          c.k[i] = to_float(half[i]);
        }
        code_best(c);
        const std::vector<uint8_t> from_f32 = c.pool;
        CodedRowsParams rows = c.rows(0);
        rows.k = half.data();
        rows.v = nullptr;
        rows.dtype = DType::bf16;
        cpu_table(isa_detected()).code_rows_of_page(rows, {0, kPageTokens});
        REQUIRE(c.pool == from_f32);
        std::vector<float> first;
        for (const Isa isa : usable_isas()) {
          CAPTURE(isa_name(isa));
          std::vector<float> k(n), v(n);
          std::vector<bf16> k_half(n);
          WidenCodedRowsParams p{.page = c.page(0),
                                 .layout = c.layout,
                                 .k = k.data(),
                                 .v = v.data(),
                                 .dtype = DType::f32,
                                 .center = c.frame.center.data(),
                                 .axis = c.frame.axis.data(),
                                 .signs = c.frame.signs.data()};
          cpu_table(isa).widen_coded_rows(p, {0, 10});
          cpu_table(isa).widen_coded_rows(p, {10, kPageTokens});
          p.k = k_half.data();
          p.v = nullptr;
          p.dtype = DType::bf16;
          cpu_table(isa).widen_coded_rows(p, {0, kPageTokens});
          for (int t = 0; t < kPageTokens; ++t) {
            const std::vector<double> key = c.decoded(t, true), value = c.decoded(t, false);
            for (int i = 0; i < d; ++i) {
              const auto at = static_cast<size_t>(c.at(t) + i), ci = static_cast<size_t>(i);
              REQUIRE(std::abs(k[at] - key[ci]) <= 1e-5);
              REQUIRE(std::abs(v[at] - value[ci]) <= 1e-5);
              REQUIRE(k_half[at].bits == to_bf16(k[at]).bits);
            }
          }
          if (first.empty()) first = k;
          REQUIRE(same_bits(first, k));
        }
      }
  }

  TEST_CASE("a rotation, then back") {
    for (const int d : {32, 64, 96, 128, 160, 256})
      for (const Isa isa : usable_isas()) {
        CAPTURE(d);
        CAPTURE(isa_name(isa));
        const CodedFrame frame(d, 5);
        std::vector<float> x(static_cast<size_t>(3 * d));
        PhiloxStream stream(36);
        for (float& v : x) v = static_cast<float>(normal_number(stream));
        std::vector<float> y = x;
        const RotateRowsParams p{.rows = y.data(), .signs = frame.signs.data(), .dims = d};
        cpu_table(isa).rotate_rows(p, {0, 3});
        REQUIRE(y != x);
        cpu_table(isa).rotate_rows_back(p, {0, 3});
        for (size_t i = 0; i < x.size(); ++i) REQUIRE(std::abs(x[i] - y[i]) <= 2e-6);
      }
  }

  TEST_CASE("attention is that of decoded rows") {
    for (const CodedBits bits : kAllCodedBits)
      for (const int d : kDims) {
        CodedCase c(bits, d, 4, static_cast<uint32_t>(d + 1));
        code_best(c);
        const Decoded rows(c);
        CAPTURE(d);
        CAPTURE(int{bits.k});
        CAPTURE(int{bits.v});
        for (const int n : {1, 2, 3, 4, 7, 8, 17})
          for (const Range tokens :
               {Range{0, 256}, {64, 65}, {3, 200}, {63, 64}, {100, 110}, {128, 256}}) {
            const std::vector<float> q = some_queries(c, n);
            CAPTURE(n);
            CAPTURE(tokens.begin);
            CAPTURE(tokens.end);
            for (const Isa isa : usable_isas()) {
              CAPTURE(isa_name(isa));
              require_attention(c, rows, q, tokens, attend(c, q, tokens, isa));
            }
          }
      }
  }

  TEST_CASE("states of splits merge to that of all keys") {
    for (const CodedBits bits : kAllCodedBits) {
      CodedCase c(bits, 128, 40, 9);
      code_best(c);
      const Decoded rows(c);
      const std::vector<float> q = some_queries(c, 3);
      const Range tokens{70, 2400};
      for (const Isa isa : usable_isas()) {
        CAPTURE(isa_name(isa));
        require_attention(c, rows, q, tokens, attend(c, q, tokens, isa));
        std::vector<Attended> states;
        for (int begin = tokens.begin; begin < tokens.end;) {
          const int end = std::min(tokens.end, (begin / kSplitTokens + 1) * kSplitTokens);
          states.push_back(attend(c, q, {begin, end}, isa));
          begin = end;
        }
        std::vector<const void*> o;
        std::vector<const float*> lse;
        for (const Attended& s : states) {
          o.push_back(s.o.data());
          lse.push_back(s.lse.data());
        }
        Attended merged{std::vector<float>(q.size()), std::vector<float>(3)};
        merge_states({.out = merged.o.data(),
                      .lse = merged.lse.data(),
                      .o = o.data(),
                      .part_lse = lse.data(),
                      .part_dtype = DType::f32,
                      .out_dtype = DType::f32,
                      .n_parts = static_cast<int>(states.size()),
                      .n_heads = 3,
                      .head_dim = 128},
                     {0, 1});
        require_attention(c, rows, q, tokens, merged);
      }
    }
  }

  TEST_CASE("scores have the same bits on every ISA, one key's output is its value") {
    for (const CodedBits bits : kAllCodedBits)
      for (const int d : kDims) {
        CAPTURE(d);
        CodedCase c(bits, d, 2, 11);
        code_best(c);
        const std::vector<float> q = some_queries(c, 5);
        for (const int token : {0, 1, 17, 63, 64, 100, 127}) {
          const Attended want = attend(c, q, {token, token + 1}, Isa::scalar);
          const std::vector<double> value = c.decoded(token, false);
          for (const Isa isa : usable_isas()) {
            CAPTURE(isa_name(isa));
            Attended got = attend(c, q, {token, token + 1}, isa);
            REQUIRE(same_bits(got.lse, want.lse));
            rotate_back(c, got.o);
            for (size_t i = 0; i < 5; ++i)
              REQUIRE(distance(got.o, i * static_cast<size_t>(d), value) <= 1e-5);
          }
        }
      }
  }

  TEST_CASE("a query's bits do not depend on others, nor on bytes of rows out of range") {
    for (const CodedBits bits : kAllCodedBits)
      for (const int d : {64, 128}) {
        CodedCase c(bits, d, 3, 12);
        code_best(c);
        const std::vector<float> q = some_queries(c, 9);
        const Range tokens{10, 150};
        for (const Isa isa : usable_isas()) {
          CAPTURE(isa_name(isa));
          const Attended all = attend(c, q, tokens, isa);
          for (int i = 0; i < 9; ++i) {
            const Attended one =
                attend(c, {q.begin() + i * d, q.begin() + (i + 1) * d}, tokens, isa);
            REQUIRE(std::memcmp(one.o.data(), all.o.data() + i * d,
                                sizeof(float) * static_cast<size_t>(d)) == 0);
            REQUIRE(one.lse[0] == all.lse[static_cast<size_t>(i)]);
          }
          CodedCase other = c;
          std::fill(other.k.begin(), other.k.end(), kNan);
          std::fill(other.v.begin(), other.v.end(), -kInf);
          other.kv_head = c.kv_head;
          code_rows_of_page_scalar(other.rows(0), {0, tokens.begin});
          code_rows_of_page_scalar(other.rows(2), {tokens.end - 128, kPageTokens});
          REQUIRE(other.pool != c.pool);
          const Attended same = attend(other, q, tokens, isa);
          REQUIRE(same_bits(same.o, all.o));
          REQUIRE(same_bits(same.lse, all.lse));
        }
      }
  }

  TEST_CASE("no keys: zeros and -inf") {
    CodedCase c({4, 4}, 64, 1, 13);
    code_best(c);
    const std::vector<float> q = some_queries(c, 2);
    for (const Isa isa : usable_isas())
      for (const int at : {0, 7, 64}) {
        const Attended none = attend(c, q, {at, at}, isa);
        CHECK(none.o == std::vector<float>(2 * 64));
        CHECK(none.lse == std::vector<float>(2, -kInf));
      }
  }

  TEST_CASE("rows of zeros, of tiny and of not finite numbers") {
    for (const CodedBits bits : kAllCodedBits)
      for (const Isa isa : usable_isas()) {
        constexpr int d = 64;
        CAPTURE(isa_name(isa));
        CodedCase c(bits, d, 1, 14);
        const auto set = [&](int row, auto k, auto v) {
          for (int i = 0; i < d; ++i) {
            const auto at = static_cast<size_t>(c.at(row) + i);
            c.k[at] = k(i);
            c.v[at] = v(i);
          }
        };
        const auto center = [&](int i) { return c.frame.center[static_cast<size_t>(i)]; };
        const auto nan_at_7 = [](int i) { return i == 7 ? kNan : 1.0f; };
        const auto inf_at_9 = [](int i) { return i == 9 ? -kInf : 1.0f; };
        const auto tiny = [](int i) { return i % 2 == 0 ? 0x1p-70f : -0x1p-70f; };
        set(3, center, [](int) { return 0.0f; });
        set(4, center, tiny);
        set(5, nan_at_7, nan_at_7);
        set(6, inf_at_9, inf_at_9);
        c.code(cpu_table(isa).code_rows_of_page);
        for (const int row : {3, 4, 5, 6})
          for (const bool key : {true, false}) {
            const CodedRow r = read_row(c.page(0), c.layout, row, key);
            REQUIRE(std::ranges::all_of(r.codes, [](int code) { return code == 0; }));
            if (row < 5)
              REQUIRE(r.e == 0);
            else
              REQUIRE(std::isnan(r.e));
            REQUIRE(r.share == 0);
          }
        std::vector<float> k(64 * d), v(64 * d);
        cpu_table(isa).widen_coded_rows({.page = c.page(0),
                                         .layout = c.layout,
                                         .k = k.data(),
                                         .v = v.data(),
                                         .dtype = DType::f32,
                                         .center = c.frame.center.data(),
                                         .axis = c.frame.axis.data(),
                                         .signs = c.frame.signs.data()},
                                        {0, 64});
        for (int i = 0; i < d; ++i) {
          const auto at = static_cast<size_t>(c.at(3) + i);
          REQUIRE(k[at] == center(i));
          REQUIRE(v[at] == 0);
          REQUIRE(std::isnan(k[at + 2 * d]));
          REQUIRE(std::isnan(v[at + 3 * d]));
        }
        const Decoded rows(c);
        const std::vector<float> q = some_queries(c, 3);
        require_attention(c, rows, q, {0, 5}, attend(c, q, {0, 5}, isa));
        require_attention(c, rows, q, {7, 64}, attend(c, q, {7, 64}, isa));
        const Attended zero = attend(c, q, {3, 5}, isa);
        REQUIRE(zero.o == std::vector<float>(q.size()));
        const auto all_nan = [](const std::vector<float>& x) {
          return std::ranges::all_of(x, [](float y) { return std::isnan(y); });
        };
        const Attended broken = attend(c, q, {0, 6}, isa);
        REQUIRE(all_nan(broken.o));
        REQUIRE(all_nan(broken.lse));
        // Only a value.
        set(5, center, nan_at_7);
        set(6, center, center);
        c.code(cpu_table(isa).code_rows_of_page);
        const Attended value = attend(c, q, {0, 64}, isa);
        REQUIRE(all_nan(value.o));
        REQUIRE(std::ranges::all_of(value.lse, [](float x) { return std::isfinite(x); }));
      }
  }

  TEST_CASE("rows a hundred times the others, and a head without an axis") {
    for (const CodedBits bits : kAllCodedBits)
      for (const Isa isa : usable_isas()) {
        CAPTURE(isa_name(isa));
        CodedCase c(bits, 128, 4, 15);
        for (int i = 0; i < 128; ++i) {
          c.v[static_cast<size_t>(c.at(77) + i)] *= 100;
          c.k[static_cast<size_t>(c.at(130) + i)] *= 3;
        }
        std::fill(c.frame.axis.begin(), c.frame.axis.end(), 0.0f);
        c.code(cpu_table(isa).code_rows_of_page);
        const Decoded rows(c);
        const std::vector<float> q = some_queries(c, 4);
        require_attention(c, rows, q, {0, 256}, attend(c, q, {0, 256}, isa));
        require_attention(c, rows, q, {60, 100}, attend(c, q, {60, 100}, isa));
      }
  }

  TEST_CASE("a query of zeros weighs keys evenly, one that is not finite gives NaN") {
    CodedCase c({8, 4}, 128, 1, 16);
    code_best(c);
    const Decoded rows(c);
    std::vector<float> q(128);
    for (const Isa isa : usable_isas()) {
      require_attention(c, rows, q, {0, 50}, attend(c, q, {0, 50}, isa));
      for (const float bad : {kInf, kNan}) {
        std::vector<float> broken = q;
        broken[5] = bad;
        const Attended a = attend(c, broken, {0, 50}, isa);
        REQUIRE(std::isnan(a.lse[0]));
        REQUIRE(std::isnan(a.o[0]));
      }
    }
  }
}
