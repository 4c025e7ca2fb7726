#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "ops/rope_table.h"
#include "worst.h"

using namespace tandem;
using ops::RopeScalingKind;
using ops::RopeSpec;

namespace {

struct Table {
  Arena arena;
  ops::RopeTable rope;
  Table(const RopeSpec& spec, int positions, int d)
      : arena(planned(positions, d)), rope(spec, positions, d, arena) {}
  static MemoryPlan planned(int positions, int d) {
    MemoryPlan plan;
    ops::RopeTable::plan(positions, d, plan);
    return plan;
  }
};

}  // namespace

TEST_SUITE("ops/rope_table") {
  TEST_CASE("frequencies without scaling") {
    const auto f = ops::rope_inverse_frequencies({.theta = 10000.0}, 8);
    REQUIRE(f.size() == 4);
    CHECK(f[0] == 1.0f);
    CHECK(f[1] == 0.1f);
    CHECK(f[2] == 0.01f);
    CHECK(f[3] == 0.001f);
  }

  TEST_CASE("linear scaling divides every frequency") {
    const auto plain = ops::rope_inverse_frequencies({.theta = 500000.0}, 64);
    const auto scaled = ops::rope_inverse_frequencies(
        {.theta = 500000.0, .scaling = {.kind = RopeScalingKind::linear, .factor = 4.0}}, 64);
    for (size_t i = 0; i < plain.size(); ++i) CHECK(scaled[i] == plain[i] / 4.0f);
  }

  TEST_CASE("llama3 scaling keeps short waves, stretches long ones, blends between") {
    const RopeSpec spec{.theta = 500000.0,
                        .scaling = {.kind = RopeScalingKind::llama3,
                                    .factor = 8.0,
                                    .low_freq_factor = 1.0,
                                    .high_freq_factor = 4.0,
                                    .original_context = 8192}};
    const auto plain = ops::rope_inverse_frequencies({.theta = 500000.0}, 128);
    const auto scaled = ops::rope_inverse_frequencies(spec, 128);
    int kept = 0, stretched = 0, blended = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      // The published rule, in double.
      const double f = plain[i], wave = 2 * std::numbers::pi / f;
      const double blend = (8192 / wave - 1.0) / (4.0 - 1.0);
      if (wave < 8192 / 4.0) {
        CHECK(scaled[i] == plain[i]);
        ++kept;
      } else if (wave > 8192 / 1.0) {
        CHECK(scaled[i] == plain[i] / 8.0f);
        ++stretched;
      } else {
        // Seven f32 operations; the difference of blend and 1 may cancel a digit.
        CHECK(scaled[i] == doctest::Approx((1 - blend) * f / 8 + blend * f).epsilon(4e-6));
        ++blended;
      }
    }
    CHECK(kept == 29);
    CHECK(blended == 6);
    CHECK(stretched == 29);
  }

  TEST_CASE(
      "yarn keeps fast dimensions, stretches slow ones, blends between, and scales the table") {
    const RopeSpec spec{.theta = 10000.0,
                        .scaling = {.kind = RopeScalingKind::yarn,
                                    .factor = 32,
                                    .original_context = 4096,
                                    .attention_factor = ops::yarn_attention_factor(32)}};
    const auto plain = ops::rope_inverse_frequencies({.theta = 10000.0}, 128);
    const auto scaled = ops::rope_inverse_frequencies(spec, 128);
    REQUIRE(scaled.size() == 64);
    // Yarn-Llama-2-7b-128k, whose bounds are dimensions 20 and 46.
    for (size_t i = 0; i <= 20; ++i) CHECK(scaled[i] == plain[i]);
    for (size_t i = 46; i < 64; ++i)
      CHECK(scaled[i] == doctest::Approx(plain[i] / 32).epsilon(2e-7));
    const std::pair<int, double> golden[] = {
        {0, 1.0},
        {20, 5.623413251903e-02},
        {21, 4.688233024734e-02},
        {32, 5.528846153846e-03},
        {45, 1.054997740209e-04},
        {46, 4.167254475510e-05},
        {63, 3.608693702155e-06},
    };
    for (const auto& [i, f] : golden)
      CHECK(scaled[static_cast<size_t>(i)] == doctest::Approx(f).epsilon(1e-6));
    // Without whole bounds the blend begins within dimension 20.
    RopeSpec exact = spec;
    exact.scaling.whole_dims = false;
    CHECK(ops::rope_inverse_frequencies(exact, 128)[20] == plain[20]);
    CHECK(ops::rope_inverse_frequencies(exact, 128)[21] > scaled[21]);
    const Table t(spec, 3, 128);
    const auto m = static_cast<float>(1.3465735902799727);
    CHECK(t.rope.scale() == m);
    CHECK(t.rope.cos()[0] == m);
    for (size_t i = 0; i < 64; ++i) {
      CHECK(t.rope.cos()[64 + i] == static_cast<float>(std::cos(double{scaled[i]})) * m);
      CHECK(t.rope.sin()[64 + i] == static_cast<float>(std::sin(double{scaled[i]})) * m);
    }
  }

  TEST_CASE("angles are rounded to f32 before cos and sin, as in transformers") {
    constexpr int kPositions = 131072, kDim = 4;
    const Table t({.theta = 500000.0}, kPositions, kDim);
    const auto f = ops::rope_inverse_frequencies({.theta = 500000.0}, kDim);
    double largest_gap = 0;
    for (const int position : {0, 1, 2, 255, 256, 4097, 99991, kPositions - 1})
      for (int i = 0; i < kDim / 2; ++i) {
        const auto at = static_cast<size_t>(position * (kDim / 2) + i);
        const float angle = static_cast<float>(position) * f[static_cast<size_t>(i)];
        CHECK(t.rope.cos()[at] == static_cast<float>(std::cos(double{angle})));
        CHECK(t.rope.sin()[at] == static_cast<float>(std::sin(double{angle})));
        const double exact = position * std::pow(500000.0, -2.0 * i / kDim);
        largest_gap = test::worse(largest_gap, std::abs(std::cos(exact) - t.rope.cos()[at]));
      }
    CHECK(largest_gap > 1e-7);  // a table made in double would be another one
    CHECK(t.rope.cos()[0] == 1.0f);
    CHECK(t.rope.sin()[0] == 0.0f);
  }
}
