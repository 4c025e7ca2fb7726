#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/convert.h"
#include "base/cpu_features.h"
#include "base/rng.h"
#include "simd_probe.h"
#include "worst.h"

using namespace tandem;

namespace {

using Probe = void (*)(const SimdProbe&);

/// The probes this CPU can run.
std::vector<std::pair<Isa, Probe>> probes() {
  std::vector<std::pair<Isa, Probe>> all = {{Isa::scalar, simd_probe_scalar},
                                            {Isa::avx2, simd_probe_avx2},
                                            {Isa::avx512, simd_probe_avx512},
                                            {Isa::avx512_bf16, simd_probe_avx512_bf16}};
  std::erase_if(all, [](const auto& p) { return p.first > isa_detected(); });
  return all;
}

size_t lanes(Isa isa) { return isa == Isa::scalar ? 1 : isa == Isa::avx2 ? 8 : 16; }

constexpr float kPoison = -77.0f;

struct Out {
  explicit Out(size_t n)
      : exp(n + 1, kPoison),
        exp2(exp),
        exp2_nonpositive(exp),
        columns(exp),
        fma(exp),
        max(exp),
        select_lt(exp),
        widened(exp),
        even(exp),
        odd(exp),
        joined(exp),
        of_bytes(exp),
        rounded(n + 1, bf16{0x4242}),
        bytes(n),
        to_bytes(n + 1, int8_t{99}) {
    for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<int8_t>(static_cast<int>(37 * i) - 128);
  }
  std::vector<float> exp, exp2, exp2_nonpositive, columns, fma, max, select_lt, widened, even, odd,
      joined, of_bytes;
  std::vector<bf16> rounded;
  std::vector<int8_t> bytes, to_bytes;
  float add_all = kPoison, max_all = kPoison;
};

/// Inputs lie at the very end of their buffers, so that a read past n is a sanitizer's finding.
Out run(Probe probe, const std::vector<float>& x, const std::vector<float>& y,
        const std::vector<float>& z) {
  Out o(x.size());
  probe({x.data(),           y.data(),
         z.data(),           static_cast<int>(x.size()),
         o.exp.data(),       o.exp2.data(),
         o.fma.data(),       o.max.data(),
         o.select_lt.data(), o.exp2_nonpositive.data(),
         o.columns.data(),   &o.add_all,
         &o.max_all,         o.rounded.data(),
         o.widened.data(),   o.bytes.data(),
         o.of_bytes.data(),  o.to_bytes.data(),
         o.even.data(),      o.odd.data(),
         o.joined.data()});
  return o;
}

std::vector<float> random_values(size_t n, float scale, uint32_t stream) {
  PhiloxStream rng(7, stream);
  std::vector<float> v(n);
  for (float& x : v) x = scale * static_cast<float>(2.0 * rng.uniform() - 1.0);
  return v;
}

}  // namespace

TEST_SUITE("kernels/simd") {
  TEST_CASE("every ISA agrees with plain code at every tail length") {
    for (const auto& [isa, probe] : probes())
      for (size_t n = 0; n <= 35; ++n) {
        CAPTURE(isa_name(isa));
        CAPTURE(n);
        const auto x = random_values(n, 3.0f, 1), y = random_values(n, 3.0f, 2),
                   z = random_values(n, 3.0f, 3);
        const Out o = run(probe, x, y, z);
        double sum = 0;
        size_t pairs = 0;
        float top = -std::numeric_limits<float>::infinity();
        for (size_t i = 0; i < n; ++i) {
          CHECK(std::abs(o.fma[i] - std::fma(x[i], y[i], z[i])) <=
                9 * 0x1p-23f);  // scalar: 2 roundings
          CHECK(o.max[i] == std::max(x[i], y[i]));
          CHECK(o.select_lt[i] == (x[i] < y[i] ? z[i] : x[i]));
          CHECK(o.rounded[i].bits == to_bf16(x[i]).bits);
          CHECK(o.widened[i] == to_float(to_bf16(x[i])));
          CHECK(o.of_bytes[i] == static_cast<float>(o.bytes[i]));
          CHECK(o.to_bytes[i] == static_cast<int8_t>(std::nearbyint(x[i] * 10.0f)));
          sum += x[i];
          top = std::max(top, x[i]);
        }
        for (size_t i = 0; i < n / 2 && o.even[i] != kPoison; ++i) {
          CHECK(o.even[i] == o.widened[2 * i]);
          CHECK(o.odd[i] == o.widened[2 * i + 1]);
          if (lanes(isa) > 1)
            for (size_t j = 2 * i; j < 2 * i + 2; ++j) CHECK(o.joined[j] == o.widened[j]);
          ++pairs;
        }
        // n additions of partial sums below 3n.
        CHECK(std::abs(o.add_all - sum) <= 3.0 * static_cast<double>(n * n) * 0x1p-24);
        CHECK(o.max_all == top);
        for (float guard : {o.exp[n], o.exp2[n], o.exp2_nonpositive[n], o.fma[n], o.max[n],
                            o.select_lt[n], o.widened[n], o.of_bytes[n]})
          CHECK(guard == kPoison);
        CHECK(o.rounded[n].bits == 0x4242);
        CHECK(o.to_bytes[n] == 99);
        CHECK(2 * pairs == n / (2 * lanes(isa)) * (2 * lanes(isa)));
      }
  }

  TEST_CASE("rows become columns") {
    const auto x = random_values(64, 3.0f, 4);
    for (const auto& [isa, probe] : probes()) {
      if (isa == Isa::scalar) continue;  // has one row
      CAPTURE(isa_name(isa));
      const Out o = run(probe, x, x, x);
      for (size_t row = 0; row < lanes(isa); ++row)
        for (size_t c = 0; c < 4; ++c) CHECK(o.columns[c * lanes(isa) + row] == x[4 * row + c]);
    }
  }

  TEST_CASE("exp and exp2 stay within 1.5e-7 relative over the range of normal results") {
    std::vector<float> x;
    for (float v = -87.0f; v < 88.5f; v += 0.00371f) x.push_back(v);
    for (const auto& [isa, probe] : probes()) {
      const Out o = run(probe, x, x, x);
      double worst = 0, worst2 = 0, worst_nonpositive = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double e = std::exp(static_cast<double>(x[i])),
                     e2 = std::exp2(static_cast<double>(x[i]));
        worst = test::worse(worst, std::abs(o.exp[i] - e) / e);
        worst2 = test::worse(worst2, std::abs(o.exp2[i] - e2) / e2);
        const double below = std::exp2(-std::abs(static_cast<double>(x[i])));
        worst_nonpositive =
            test::worse(worst_nonpositive, std::abs(o.exp2_nonpositive[i] - below) / below);
      }
      CAPTURE(isa_name(isa));
      CHECK(worst <= 1.5e-7);
      CHECK(worst2 <= 1.5e-7);
      CHECK(worst_nonpositive <= 1.5e-7);
    }
  }

  TEST_CASE("exp at the edges: 0, subnormal, inf, NaN") {
    const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
    const std::vector<float> x = {0.0f, -0.0f, -inf, inf, nan, -200.0f, 200.0f, -95.0f, 88.7f};
    for (const auto& [isa, probe] : probes()) {
      CAPTURE(isa_name(isa));
      const Out o = run(probe, x, x, x);
      for (const auto* e : {&o.exp, &o.exp2}) {
        CHECK((*e)[0] == 1.0f);
        CHECK((*e)[1] == 1.0f);
        CHECK((*e)[2] == 0.0f);
        CHECK((*e)[3] == inf);
        CHECK(std::isnan((*e)[4]));
        CHECK((*e)[5] == 0.0f);
        CHECK((*e)[6] == inf);
      }
      CHECK(std::abs(o.exp[7] - std::exp(-95.0)) <= 2 * 0x1p-149);  // subnormal: its unit
      CHECK(std::abs(o.exp[8] / std::exp(double{x[8]}) - 1) <= 1.5e-7);
    }
  }

  TEST_CASE("exp2_nonpositive at the edges: 0, the last normal result, what is 0 from there, NaN") {
    const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
    const std::vector<float> x = {0.0f,   -0.0f,  inf,    nan,    126.0f, 126.4f, 126.6f,
                                  127.4f, 127.6f, 128.0f, 149.0f, 1e30f,  1.0f,   0.5f};
    for (const auto& [isa, probe] : probes()) {
      CAPTURE(isa_name(isa));
      const std::vector<float> got = run(probe, x, x, x).exp2_nonpositive;
      CHECK(got[0] == 1.0f);
      CHECK(got[1] == 1.0f);
      CHECK(got[2] == 0.0f);
      CHECK(std::isnan(got[3]));
      CHECK(got[4] == 0x1p-126f);
      for (size_t i = 5; i < 8; ++i) {  // subnormal, or 0
        CHECK(got[i] >= 0.0f);
        CHECK(got[i] <= 0x1p-126f);
      }
      for (size_t i = 8; i < 12; ++i) CHECK(got[i] == 0.0f);
      CHECK(got[12] == 0.5f);
      CHECK(std::abs(got[13] / std::sqrt(0.5) - 1) <= 1.5e-7);
    }
  }

  TEST_CASE("bf16 rounding: ties, NaN, infinity, every upper half") {
    const float nan = std::bit_cast<float>(0x7f800001u);
    std::vector<float> x = {nan, std::numeric_limits<float>::max(), -0.0f};
    for (uint32_t high = 0x0080; high < 0x7f80; high += 13)  // normals: subnormals may flush
      for (uint32_t low : {0x0000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
        x.push_back(std::bit_cast<float>(high << 16 | low));
    for (const auto& [isa, probe] : probes()) {
      CAPTURE(isa_name(isa));
      const Out o = run(probe, x, x, x);
      CHECK(std::isnan(to_float(o.rounded[0])));
      for (size_t i = 1; i < x.size(); ++i) REQUIRE(o.rounded[i].bits == to_bf16(x[i]).bits);
    }
  }

  TEST_CASE("f16 rounding: ties, subnormal numbers, NaN, infinity, and every number back") {
    const std::vector<std::pair<Isa, void (*)(const SimdF16Probe&)>> all = {
        {Isa::scalar, simd_f16_probe_scalar},
        {Isa::avx2, simd_f16_probe_avx2},
        {Isa::avx512, simd_f16_probe_avx512},
        {Isa::avx512_bf16, simd_f16_probe_avx512_bf16}};
    std::vector<float> x;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float value = to_float(f16{static_cast<uint16_t>(bits)});
      for (const uint32_t more : {0x0000u, 0x0fffu, 0x1000u, 0x1001u})  // of 13 bits that f16 lacks
        x.push_back(std::bit_cast<float>(std::bit_cast<uint32_t>(value) | more));
    }
    for (const auto& [isa, probe] : all) {
      if (isa > isa_detected()) continue;
      CAPTURE(isa_name(isa));
      std::vector<f16> rounded(x.size());
      std::vector<float> widened(x.size()), tops(x.size() / lanes(isa));
      probe({x.data(), rounded.data(), widened.data(), tops.data(), static_cast<int>(x.size())});
      for (size_t i = 0; i < x.size(); ++i) {
        const float back = to_float(to_f16(x[i]));
        if (std::isnan(x[i])) {
          REQUIRE(std::isnan(widened[i]));
          continue;
        }
        REQUIRE(rounded[i].bits == to_f16(x[i]).bits);
        REQUIRE(std::bit_cast<uint32_t>(widened[i]) == std::bit_cast<uint32_t>(back));
      }
      for (size_t row = 0; row < tops.size(); ++row) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row * lanes(isa));
        const auto end = begin + static_cast<std::ptrdiff_t>(lanes(isa));
        if (std::none_of(begin, end, [](float v) { return std::isnan(v); }))
          REQUIRE(tops[row] == *std::max_element(begin, end));
      }
    }
  }
}
