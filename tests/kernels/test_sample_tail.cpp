#include "kernels/selection/sample_tail.h"

#include <algorithm>
#include <limits>

#include "kernels/magicpig_data.h"
#include "kernels/selection/tail_numbers.h"
#include "kernels/variants.h"
#include "mean.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> draws_of(DrawExponentialsFn* fn, size_t n, uint32_t key) {
  std::vector<float> draws(n);
  fn({.draws = draws.data(), .key = key}, {0, static_cast<int>(n)});
  return draws;
}

/// Scores as sums of signs give them: bell-shaped, rounded to few values, so that some are equal.
std::vector<float> scores_of(int n, uint64_t seed) {
  PhiloxStream stream(seed);
  std::vector<float> scores;
  for (int i = 0; i < n; ++i) {
    double x = 0;
    for (int j = 0; j < 6; ++j) x += stream.uniform() - 0.5;
    scores.push_back(static_cast<float>(std::round(12 * x) / 4));
  }
  return scores;
}

struct Sampled {
  std::vector<int32_t> ids;
  std::vector<float> bias;
};
Sampled sample(SampleTailFn* fn, const std::vector<float>& scores, const std::vector<float>& draws,
               float wanted, float gain, float threshold = kInf, int first_id = 0) {
  // Exactly the room that the contract asks for.
  Buffer<int32_t> ids(scores.size() + 16);
  Buffer<float> bias(scores.size() + 16);
  const int n = fn({.ids = ids.data(),
                    .bias = bias.data(),
                    .scores = scores.data(),
                    .draws = draws.data(),
                    .n = static_cast<int>(scores.size()),
                    .first_id = first_id,
                    .threshold = threshold,
                    .gain = gain,
                    .wanted = wanted});
  Sampled s;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    s.ids.push_back(ids[i]);
    s.bias.push_back(bias[i]);
  }
  return s;
}

struct Variant {
  std::string name;
  DrawExponentialsFn* draw;
  SampleTailFn* sample;
};
std::vector<Variant> variants() {
  std::vector<Variant> all = {{"ref", draw_exponentials_ref, sample_tail_ref}};
  for (const Isa isa : usable_isas())
    all.push_back({isa_name(isa), cpu_table(isa).draw_exponentials, cpu_table(isa).sample_tail});
  return all;
}

/// Keys without a pattern, as the policies' counter-based generator gives them.
uint32_t key_of(uint32_t i) { return static_cast<uint32_t>(splitmix64(99, i + 1)); }

}  // namespace

TEST_SUITE("kernels/sample_tail") {
  TEST_CASE("draws: every variant near the reference, whatever the range") {
    constexpr size_t kN = 3001;
    for (const uint32_t key : {0u, 1u, 0xffffffffu}) {
      const std::vector<float> want = draws_of(draw_exponentials_ref, kN, key);
      for (const Variant& v : variants()) {
        CAPTURE(v.name);
        const std::vector<float> got = draws_of(v.draw, kN, key);
        double worst = 0;
        for (size_t i = 0; i < kN; ++i) worst = std::max(worst, std::abs(double{got[i]} - want[i]));
        CHECK(worst <= 2e-5);
        if (v.name == "ref") continue;
        std::vector<float> parts(kN, -1.0f);
        for (const Range r : {Range{0, 1}, Range{1, 50}, Range{50, 3001}})
          v.draw({.draws = parts.data(), .key = key}, r);
        CHECK(got == parts);
        CHECK(got == draws_of(variants()[1].draw, kN, key));
      }
    }
  }

  TEST_CASE("draws: exponential, over ids and over keys") {
    for (const Variant& v : variants()) {
      CAPTURE(v.name);
      std::vector<float> draws = draws_of(v.draw, 200000, 5);
      for (uint32_t key = 0; key < 20000; ++key)
        draws.push_back(draws_of(v.draw, 8, key_of(key))[7]);
      Mean mean;
      for (const float x : draws) {
        REQUIRE(x >= -2e-5f);
        REQUIRE(x <= 15.96f);
        mean.add(x);
      }
      CHECK(mean.is(1));
      for (const double at : {0.05, 0.5, 1.0, 3.0, 6.0}) {
        Mean beyond;
        for (const float x : draws) beyond.add(x >= at);
        CHECK(beyond.is(std::exp(-at)));
      }
    }
  }

  TEST_CASE("samples: the rule as written, at a scale near the reference's") {
    for (const int n : {1, 5, 15, 16, 17, 63, 1000, 1024, 1025, 5000})
      for (const float wanted : {0.5f, 20.0f, 400.0f, 10000.0f})
        for (const float threshold : {kInf, 1.0f, -1.0f}) {
          CAPTURE(n);
          CAPTURE(wanted);
          CAPTURE(threshold);
          const std::vector<float> scores = scores_of(n, 3);
          const std::vector<float> draws =
              draws_of(draw_exponentials_ref, static_cast<size_t>(n), 9);
          const Sampled ref = sample(sample_tail_ref, scores, draws, wanted, 1.3f, threshold, 100);
          // The scale that every bias shows, where the probability is below 1.
          const auto log_scale = [&](const Sampled& s) {
            for (size_t i = 0; i < s.ids.size(); ++i)
              if (s.bias[i] > 0)
                return double{s.bias[i]} + 1.3 * scores[static_cast<size_t>(s.ids[i] - 100)];
            return -1e9;
          };
          for (const Variant& v : variants()) {
            CAPTURE(v.name);
            const Sampled s = sample(v.sample, scores, draws, wanted, 1.3f, threshold, 100);
            if (v.name != "ref") {
              const Sampled first =
                  sample(variants()[1].sample, scores, draws, wanted, 1.3f, threshold, 100);
              REQUIRE(s.ids == first.ids);
              REQUIRE(s.bias == first.bias);
            }
            REQUIRE(std::is_sorted(s.ids.begin(), s.ids.end()));
            REQUIRE(std::adjacent_find(s.ids.begin(), s.ids.end()) == s.ids.end());
            // Between the last taken and the first refused there may be a rounding.
            const double scale = log_scale(s);
            if (scale < -1e8) continue;
            if (log_scale(ref) > -1e8) CHECK(std::abs(scale - log_scale(ref)) <= 0.02);
            size_t next = 0;
            for (int i = 0; i < n; ++i) {
              const auto at = static_cast<size_t>(i);
              const bool taken = next < s.ids.size() && s.ids[next] == 100 + i;
              const double minus_log_u = scale - 1.3 * scores[at];
              if (taken) {
                REQUIRE(scores[at] <= threshold);
                REQUIRE(draws[at] >= minus_log_u - 1e-4);
                REQUIRE(s.bias[next++] ==
                        doctest::Approx(std::max(0.0, minus_log_u)).epsilon(1e-4));
              } else if (scores[at] <= threshold) {
                REQUIRE(draws[at] <= minus_log_u + 1e-4);
              }
            }
            REQUIRE(next == s.ids.size());
          }
        }
  }

  TEST_CASE("nothing to sample from") {
    const std::vector<float> scores = scores_of(100, 4),
                             draws = draws_of(draw_exponentials_ref, 100, 1);
    for (const Variant& v : variants()) {
      CAPTURE(v.name);
      CHECK(sample(v.sample, {}, {}, 5, 1).ids.empty());
      CHECK(sample(v.sample, scores, draws, 5, 1, -kInf).ids.empty());
    }
  }

  // The search for the scale starts at the largest weight: were keys there counted as certain, it
  // would find more than wanted and stop, and all would be read.
  TEST_CASE("equal scores, and a gain of 0: as many keys as wanted") {
    for (const Variant& v : variants()) {
      CAPTURE(v.name);
      Mean size;
      for (uint32_t key = 0; key < 300; ++key)
        size.add(double(sample(v.sample, std::vector<float>(2000, 1.5f),
                               draws_of(v.draw, 2000, key_of(key)), 100, key % 2 == 0 ? 0.0f : 2.0f)
                            .ids.size()));
      CAPTURE(size.mean());
      CHECK(size.is(100));
    }
  }

  TEST_CASE("inclusion as often as the bias says, sums unbiased, sizes as wanted") {
    constexpr uint32_t kDraws = 3000;
    for (const Variant& v : variants())
      for (const int n : {300, 2500}) {
        if (n == 2500 && v.name == "ref") continue;  // slow; the rule is the same
        CAPTURE(v.name);
        CAPTURE(n);
        const auto size_n = static_cast<size_t>(n);
        const std::vector<float> scores = scores_of(n, 6);
        const float gain = 1.2f, threshold = 2.0f, wanted = 0.1f * static_cast<float>(n);
        std::vector<double> value(size_n), times(size_n), bias(size_n, -1.0);
        double exact = 0, exact_value = 0;
        for (size_t i = 0; i < size_n; ++i) {
          value[i] = std::sin(static_cast<double>(i));
          if (scores[i] > threshold) continue;
          // True weights stray from the estimated ones.
          const double weight =
              std::exp(1.2 * scores[i] + 0.5 * std::cos(3.0 * static_cast<double>(i)));
          exact += weight;
          exact_value += weight * value[i];
        }
        Mean denominator, numerator, size;
        for (uint32_t key = 0; key < kDraws; ++key) {
          const Sampled s = sample(v.sample, scores, draws_of(v.draw, size_n, key_of(key)), wanted,
                                   gain, threshold);
          double sum = 0, sum_value = 0;
          for (size_t j = 0; j < s.ids.size(); ++j) {
            const auto i = static_cast<size_t>(s.ids[j]);
            const double weight = std::exp(
                1.2 * scores[i] + 0.5 * std::cos(3.0 * static_cast<double>(i)) + s.bias[j]);
            sum += weight;
            sum_value += weight * value[i];
            ++times[i];
            bias[i] = s.bias[j];
          }
          denominator.add(sum / exact);
          numerator.add(sum_value);
          size.add(static_cast<double>(s.ids.size()));
        }
        CAPTURE(denominator.mean());
        CHECK(denominator.is(1));
        CHECK(numerator.is(exact_value));
        CHECK(size.mean() == doctest::Approx(wanted).epsilon(0.15));
        for (size_t i = 0; i < size_n; ++i) {
          if (bias[i] < 0) continue;  // never seen: left out, or too unlikely
          CAPTURE(i);
          const double u = std::exp(-bias[i]);
          CHECK(std::abs(times[i] / kDraws - u) <= 5 * std::sqrt(u * (1 - u) / kDraws) + 1e-9);
        }
      }
  }

  TEST_CASE("a scale that misleads: no more keys than a list has room for, and sums unbiased") {
    constexpr int kKeys = 20000, kStep = 20;
    REQUIRE(scale_step(kKeys) == kStep);
    std::vector<float> scores(kKeys);
    double exact = 0;
    for (int i = 0; i < kKeys; ++i) {
      // Those that the scale is found from weigh next to nothing.
      scores[static_cast<size_t>(i)] =
          i % kStep == 0 ? -9.0f : static_cast<float>(std::sin(static_cast<double>(i)));
      exact += std::exp(double{scores[static_cast<size_t>(i)]});
    }
    for (const Variant& v : variants()) {
      CAPTURE(v.name);
      const int most = most_sampled(200);
      Mean sum, size;
      for (uint32_t key = 0; key < 400; ++key) {
        const Sampled s =
            sample(v.sample, scores, draws_of(v.draw, kKeys, key_of(key)), 200, 1, kInf);
        REQUIRE(static_cast<int>(s.ids.size()) <= most);
        size.add(static_cast<double>(s.ids.size()));
        double weights = 0;
        for (size_t j = 0; j < s.ids.size(); ++j)
          weights += std::exp(double{scores[static_cast<size_t>(s.ids[j])]} + s.bias[j]);
        sum.add(weights / exact);
      }
      CHECK(sum.is(1));
      CHECK(size.mean() > 0.8 * most);
    }
  }
}
