#include "kernels/selection/select_top.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

SelectTopFn* select_variant(Isa isa) {
  constexpr SelectTopFn* kVariants[] = {select_top_scalar, select_top_avx2, select_top_avx512};
  return kVariants[std::min(static_cast<size_t>(isa), std::size(kVariants) - 1)];
}

SelectReachedFn* reached_variant(Isa isa) {
  constexpr SelectReachedFn* kVariants[] = {select_reached_scalar, select_reached_avx2,
                                            select_reached_avx512};
  return kVariants[std::min(static_cast<size_t>(isa), std::size(kVariants) - 1)];
}

using Scores = std::vector<float>;

Scores make_scores(const char* kind, int n) {
  const std::string_view name = kind;
  PhiloxStream stream(13, static_cast<uint32_t>(n));
  Scores x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) {
    const float uniform = random_float(stream, 1.0f);
    x[i] = uniform * uniform * uniform;
    if (name == "constant") x[i] = -2.5f;
    if (name == "ties") x[i] = std::floor(6 * x[i]);
    if (name == "ascending") x[i] = static_cast<float>(i) - 500.0f;
    if (name == "descending") x[i] = 500.0f - static_cast<float>(i);
    if (name == "masked" && i % 3 != 1) x[i] = -kInf;
    if (name == "zeros") x[i] = uniform > 0.3f ? 0.0f : uniform < -0.3f ? -0.0f : uniform;
    if (name == "wide") x[i] = std::ldexp(x[i], static_cast<int>(i % 250) - 125);
    if (name == "clustered") x[i] += i % 95 == 0 ? 4.0f : 0.0f;  // where the sample looks
    if (name == "hidden") x[i] += i % 95 == 1 ? 4.0f : 0.0f;     // where it does not
    if (name == "infinite") x[i] = i % 7 == 0 ? kInf : x[i];
  }
  return x;
}

constexpr const char* kKinds[] = {"random",     "constant", "ties",    "ascending",
                                  "descending", "masked",   "zeros",   "wide",
                                  "clustered",  "hidden",   "infinite"};

struct Selected {
  std::vector<int32_t> ids;
  float threshold;
};

Selected select(SelectTopFn* fn, const Scores& scores, int m, int first_id) {
  const auto n = static_cast<int>(scores.size());
  constexpr int32_t kUntouched = -123;
  // An address that is not a vector's, and exactly the memory that the contract gives.
  Buffer<float> from(scores.size(), 1), scratch(scores.size() + 16, 3);
  std::copy(scores.begin(), scores.end(), from.data());
  std::fill(scratch.memory.begin(), scratch.memory.end(), -1e30f);
  Buffer<int32_t> ids(static_cast<size_t>(m) + 16, 1);
  std::fill(ids.memory.begin(), ids.memory.end(), kUntouched);
  Selected s;
  const int kept = fn({.ids = ids.data(),
                       .threshold = &s.threshold,
                       .scores = from.data(),
                       .n = n,
                       .m = m,
                       .first_id = first_id,
                       .scratch = scratch.data()});
  REQUIRE(kept == std::min(m, n));
  s.ids.assign(ids.data(), ids.data() + kept);
  return s;
}

}  // namespace

TEST_SUITE("kernels/select_top") {
  TEST_CASE("every variant selects what a sort does") {
    for (const int n : {0, 1, 15, 16, 17, 1000, 98304})
      for (const char* kind : kKinds) {
        const Scores scores = make_scores(kind, n);
        std::vector<int32_t> order(scores.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
        });
        for (const int m : {0, 1, n / 50, n / 3, n - 1, n, n + 5}) {
          if (m < 0) continue;
          const auto kept = std::min(static_cast<size_t>(m), order.size());
          std::vector<int32_t> want(order.begin(), order.begin() + static_cast<int64_t>(kept));
          std::sort(want.begin(), want.end());
          for (int32_t& id : want) id += 1000;
          const float threshold = m >= n   ? -kInf
                                  : m == 0 ? kInf
                                           : scores[static_cast<size_t>(order[kept - 1])];
          for (const Isa isa : usable_isas()) {
            if (isa > Isa::avx512) continue;
            CAPTURE(isa_name(isa));
            CAPTURE(n);
            CAPTURE(kind);
            CAPTURE(m);
            const Selected got = select(select_variant(isa), scores, m, 1000);
            REQUIRE(got.threshold == threshold);
            REQUIRE(got.ids == want);
          }
        }
      }
  }

  TEST_CASE("scores that reach a floor") {
    for (const int n : {0, 1, 15, 16, 17, 1000})
      for (const char* kind : kKinds)
        for (const float floor : {-kInf, -2.5f, 0.0f, 0.3f, kInf}) {
          const Scores scores = make_scores(kind, n);
          std::vector<int32_t> want;
          for (int i = 0; i < n; ++i)
            if (scores[static_cast<size_t>(i)] >= floor) want.push_back(i);
          const auto reached = [&](SelectReachedFn* fn) {
            Buffer<int32_t> ids(scores.size() + 16, 1);
            const int kept =
                fn({.ids = ids.data(), .scores = scores.data(), .n = n, .floor = floor});
            return std::vector<int32_t>(ids.data(), ids.data() + kept);
          };
          CAPTURE(n);
          CAPTURE(kind);
          CAPTURE(floor);
          REQUIRE(reached(select_reached_ref) == want);
          for (const Isa isa : usable_isas()) REQUIRE(reached(reached_variant(isa)) == want);
        }
  }

  TEST_CASE("the reference too") {
    for (const char* kind : kKinds) {
      const Scores scores = make_scores(kind, 1000);
      for (const int m : {0, 1, 20, 999, 1000, 1005}) {
        const Selected want = select(select_top_ref, scores, m, -3);
        const Selected got = select(select_top_scalar, scores, m, -3);
        REQUIRE(got.threshold == want.threshold);
        REQUIRE(got.ids == want.ids);
      }
    }
  }
}
