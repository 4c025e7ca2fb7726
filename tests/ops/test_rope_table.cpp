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
