#include "ops/sampling.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace tandem;

TEST_SUITE("ops/sampling") {
  TEST_CASE("arrays: tokens, their logprobs and the rows' lse; a meaningless row is reported") {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> logits{0, 2, 1, -1, kNan, 0, 0, 0, 3, 3, -5, 0};
    const std::vector<double> uniform(3, 0.5);
    std::vector<int32_t> tokens(3), ids(3 * 2);
    std::vector<float> logprobs(3), lse(3), top(3 * 2);
    SampleParams p{.tokens = tokens.data(),
                   .logits = logits.data(),
                   .uniform = uniform.data(),
                   .seen = nullptr,
                   .seen_begin = nullptr,
                   .n_rows = 3,
                   .vocab = 4,
                   .rule = ops::SampleRule{}.kept(),
                   .workspace = nullptr,
                   .logprobs = logprobs.data(),
                   .lse = lse.data()};
    ops::sample(p, {});
    ops::top_n({.ids = ids.data(),
                .logprobs = top.data(),
                .logits = logits.data(),
                .lse = lse.data(),
                .n_rows = 3,
                .vocab = 4,
                .n = 2,
                .workspace = nullptr},
               {});
    CHECK(tokens == std::vector<int32_t>{1, kInvalidToken, 0});
    CHECK(ids == std::vector<int32_t>{1, 2, kInvalidToken, kInvalidToken, 0, 1});
    for (const size_t r : {size_t{0}, size_t{2}}) {
      double sum = 0;
      for (size_t i = 0; i < 4; ++i) sum += std::exp(double{logits[4 * r + i]});
      CHECK(lse[r] == doctest::Approx(std::log(sum)).epsilon(1e-6));
      CHECK(logprobs[r] == logits[4 * r + static_cast<size_t>(tokens[r])] - lse[r]);
      CHECK(top[2 * r] == logprobs[r]);
    }
    CHECK(std::isnan(lse[1]));
    CHECK(std::isnan(logprobs[1]));
    p.logprobs = p.lse = nullptr;
    tokens.assign(3, 7);
    ops::sample(p, {});
    CHECK(tokens == std::vector<int32_t>{1, kInvalidToken, 0});
  }
}
