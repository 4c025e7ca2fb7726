// Signs of random projections, and the codes cut from them.
#include <algorithm>

#include "kernels/lsh/hash_tables.h"
#include "kernels/lsh/sign_project.h"
#include "kernels/magicpig_data.h"
#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// The first of [n_rows, d] x whose bits differ from the signs in double beyond what f32 sums may
/// round, as row * n_bits + bit; -1 if there is none. d rounded products and sums are off by at
/// most d half spacings of the sum of the magnitudes.
int64_t wrong_bit(const SignProjectParams& p, int n_rows) {
  const int words = (p.n_bits + 63) / 64;
  for (int r = 0; r < n_rows; ++r)
    for (int j = 0; j < 64 * words; ++j) {
      const bool bit = (p.bits[r * words + j / 64] >> (j % 64) & 1) != 0;
      double sum = 0, magnitude = 0;
      for (int i = 0; i < p.d && j < p.n_bits; ++i) {
        const double product = double{p.x[r * p.d + i]} * p.w[i * p.w_stride + j];
        sum += product;
        magnitude += std::abs(product);
      }
      if (bit != (sum > 0) && std::abs(sum) >= p.d * 0x1p-23 * magnitude)
        return static_cast<int64_t>(r) * p.n_bits + j;
    }
  return -1;
}

Buffer<float> to_floats(const Doubles& from, size_t rows, size_t cols, size_t stride) {
  Buffer<float> out(rows * stride);
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < cols; ++c) out[r * stride + c] = static_cast<float>(from[r * cols + c]);
  return out;
}

}  // namespace

TEST_SUITE("kernels/sign_project") {
  TEST_CASE("every variant gives the signs of the sums in double") {
    for (const Isa isa : usable_isas())
      for (const int d : {1, 3, 16, 65, 128})
        for (const int n_bits : {1, 63, 64, 65, 200})
          for (const int n_rows : {1, 2, 3, 5, 6, 13, 103}) {
            if (n_rows == 103 && (d != 65 || n_bits != 65)) continue;
            CAPTURE(isa_name(isa));
            CAPTURE(d);
            CAPTURE(n_bits);
            CAPTURE(n_rows);
            const int words = (n_bits + 63) / 64;
            const int64_t stride = 64 * words + 5;
            PhiloxStream stream(1, static_cast<uint32_t>(d * 1000 + n_bits));
            Buffer<float> x(static_cast<size_t>(n_rows * d), 1);
            Buffer<float> w(static_cast<size_t>((d - 1) * stride + 64 * words), 3);
            fill(x, stream, 1.0f);
            fill(w, stream, 1.0f);
            const int zero_row = n_rows / 2;
            std::fill_n(x.data() + zero_row * d, d, 0.0f);
            Buffer<uint64_t> bits(static_cast<size_t>(n_rows * words)), reference(bits.size());
            std::fill_n(bits.data(), bits.size(), ~uint64_t{0});
            SignProjectParams p{.bits = bits.data(),
                                .x = x.data(),
                                .w = w.data(),
                                .w_stride = stride,
                                .d = d,
                                .n_bits = n_bits};
            // In two ranges, which must not matter.
            cpu_table(isa).sign_project(p, {n_rows / 3, n_rows});
            cpu_table(isa).sign_project(p, {0, n_rows / 3});
            REQUIRE(wrong_bit(p, n_rows) == -1);
            REQUIRE(std::all_of(bits.data() + zero_row * words,
                                bits.data() + (zero_row + 1) * words,
                                [](uint64_t word) { return word == 0; }));
            p.bits = reference.data();
            sign_project_ref(p, {0, n_rows});
            REQUIRE(wrong_bit(p, n_rows) == -1);
          }
  }

  TEST_CASE("a row's bits do not depend on the other rows") {
    constexpr int kRows = 17, kD = 40, kBits = 130, kWords = 3;
    PhiloxStream stream(2);
    Buffer<float> x(kRows * kD), w(kD * 64 * kWords);
    fill(x, stream, 1.0f);
    fill(w, stream, 1.0f);
    for (const Isa isa : usable_isas()) {
      std::vector<uint64_t> all(kRows * kWords), single(kRows * kWords);
      SignProjectParams p{.bits = all.data(),
                          .x = x.data(),
                          .w = w.data(),
                          .w_stride = 64 * kWords,
                          .d = kD,
                          .n_bits = kBits};
      cpu_table(isa).sign_project(p, {0, kRows});
      p.bits = single.data();
      for (int r = 0; r < kRows; ++r) cpu_table(isa).sign_project(p, {r, r + 1});
      CHECK(all == single);
    }
  }

  TEST_CASE("two unit vectors agree in a bit as often as their angle says") {
    // Gaussian projections of two vectors at cosine c are pairs (z0, c z0 + sqrt(1 - c^2) z1):
    // vectors of two dimensions stand for any.
    constexpr int kPairs = 800'000;
    const Buffer<float> w = [&] {
      const Doubles z = normals(4242, 2 * kPairs);
      Buffer<float> columns(2 * kPairs);
      for (size_t i = 0; i < kPairs; ++i)
        for (size_t j = 0; j < 2; ++j) columns[j * kPairs + i] = static_cast<float>(z[2 * i + j]);
      return columns;
    }();
    static_assert(kPairs % 64 == 0);
    constexpr double kCosines[] = {-0.5, 0, 0.25, 0.5, 0.75, 0.9};
    constexpr int kWords = kPairs / 64;
    Buffer<float> x(2 * 7);
    x[0] = 1;
    for (size_t i = 0; i < 6; ++i) {
      x[2 * i + 2] = static_cast<float>(kCosines[i]);
      x[2 * i + 3] = static_cast<float>(std::sqrt(1 - kCosines[i] * kCosines[i]));
    }
    std::vector<uint64_t> bits(7 * kWords);
    cpu_table().sign_project({.bits = bits.data(),
                              .x = x.data(),
                              .w = w.memory.data(),
                              .w_stride = kPairs,
                              .d = 2,
                              .n_bits = kPairs},
                             {0, 7});
    for (size_t i = 0; i < 6; ++i) {
      int64_t same = 0, included = 0;
      for (size_t j = 0; j < kWords; ++j)
        same += 64 - __builtin_popcountll(bits[j] ^ bits[(i + 1) * kWords + j]);
      const double c = kCosines[i], p = 1 - std::acos(c) / std::numbers::pi;
      CAPTURE(c);
      const double rate = static_cast<double>(same) / kPairs;
      CHECK(std::abs(rate - p) <= 4 * std::sqrt(p * (1 - p) / kPairs));
      // The same bits as 20,000 draws of 10 tables of 4 bits: in at least two of them together?
      constexpr int kDraws = kPairs / 40;
      for (int draw = 0; draw < kDraws; ++draw) {
        int hits = 0;
        for (int t = 0; t < 10; ++t) {
          const auto at = static_cast<size_t>(40 * draw + 4 * t);
          hits += ((bits[at / 64] ^ bits[(i + 1) * kWords + at / 64]) >> (at % 64) & 15) == 0;
        }
        included += hits >= 2;
      }
      const double together = std::pow(p, 4), apart = std::pow(1 - together, 9);
      const double u = 1 - apart * (1 - together) - 10 * together * apart;
      CHECK(std::abs(static_cast<double>(included) / kDraws - u) <=
            4 * std::sqrt(u * (1 - u) / kDraws));
    }
  }
}

TEST_SUITE("kernels/hash_codes") {
  TEST_CASE("codes of every width are cut from the stream of bits") {
    for (int code_bits = 1; code_bits <= 16; ++code_bits)
      for (const int tables : {1, 2, 4, 7, 50, 150})
        for (const int n : {1, 63, 130, 300}) {
          CAPTURE(code_bits);
          CAPTURE(tables);
          CAPTURE(n);
          const int words = (code_bits * tables + 63) / 64, stride = n + 3;
          Buffer<uint64_t> bits(static_cast<size_t>(n * words));
          for (size_t i = 0; i < bits.size(); ++i) bits[i] = splitmix64(5, i);
          Buffer<uint16_t> codes(static_cast<size_t>(tables * stride));
          const HashCodesParams p{.codes = codes.data(),
                                  .code_stride = stride,
                                  .bits = bits.data(),
                                  .words = words,
                                  .code_bits = code_bits,
                                  .n_tokens = n};
          hash_codes(p, {tables / 2, tables});
          hash_codes(p, {0, tables / 2});
          int64_t wrong = 0;
          for (int t = 0; t < tables; ++t)
            for (int i = 0; i < n; ++i) {
              unsigned want = 0;
              for (int b = 0; b < code_bits; ++b) {
                const int bit = t * code_bits + b;
                want |= static_cast<unsigned>(
                            bits[static_cast<size_t>(i * words + bit / 64)] >> (bit % 64) & 1)
                        << b;
              }
              wrong += codes[static_cast<size_t>(t * stride + i)] != want;
            }
          REQUIRE(wrong == 0);
        }
  }

  TEST_CASE("codes and collisions of the golden vector") {
    constexpr size_t kTokens = 256, kD = 16, kSinks = 4, kWindow = 12;
    constexpr int kBits = 4, kTables = 10;
    const MagicPigData data(kTokens, kD, 7);
    const Doubles mean = data.mean_key(kSinks, kTokens - kWindow);
    CHECK(normals(1001, 4)[3] == doctest::Approx(-0.64273418).epsilon(1e-7));
    CHECK(data.q[0] == doctest::Approx(-8.4255156215).epsilon(1e-9));
    CHECK(mean[0] == doctest::Approx(7.6277361648).epsilon(1e-9));
    // Row 0 is the query, the centred dynamic keys follow.
    constexpr size_t kKeys = kTokens - kSinks - kWindow;
    Doubles rows = data.q;
    for (size_t i = 0; i < kKeys; ++i)
      for (size_t j = 0; j < kD; ++j) rows.push_back(data.k[(i + kSinks) * kD + j] - mean[j]);
    Buffer<float> x = to_floats(rows, kKeys + 1, kD, kD);
    Buffer<float> w =
        to_floats(magicpig_projections(9000, kD, kBits * kTables), kD, kBits * kTables, 64);
    for (const Isa isa : usable_isas()) {
      std::vector<uint64_t> bits(kKeys + 1);
      cpu_table(isa).sign_project({.bits = bits.data(),
                                   .x = x.data(),
                                   .w = w.data(),
                                   .w_stride = 64,
                                   .d = kD,
                                   .n_bits = kBits * kTables},
                                  {0, kKeys + 1});
      std::vector<uint16_t> codes(kTables * (kKeys + 1));
      hash_codes({.codes = codes.data(),
                  .code_stride = kKeys + 1,
                  .bits = bits.data(),
                  .words = 1,
                  .code_bits = kBits,
                  .n_tokens = kKeys + 1},
                 {0, kTables});
      const auto codes_of = [&](size_t row) {
        std::vector<int> list;
        for (size_t t = 0; t < kTables; ++t) list.push_back(codes[t * (kKeys + 1) + row]);
        return list;
      };
      CHECK(codes_of(0) == std::vector{5, 7, 4, 10, 6, 4, 5, 1, 4, 2});
      CHECK(codes_of(1) == std::vector{13, 12, 10, 1, 9, 8, 15, 15, 6, 3});
      CHECK(codes_of(2) == std::vector{1, 13, 13, 12, 14, 7, 15, 10, 1, 6});
      std::vector<int> histogram(9);
      const std::vector<int> q = codes_of(0);
      for (size_t i = 1; i <= kKeys; ++i) {
        const std::vector<int> key = codes_of(i);
        size_t hits = 0;
        for (size_t t = 0; t < kTables; ++t) hits += q[t] == key[t];
        ++histogram[hits];
      }
      CHECK(histogram == std::vector{128, 56, 25, 12, 10, 3, 5, 0, 1});
    }
  }
}
