#include <functional>

#include "kernels/key_votes_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

KeyVotesFn* key_votes_of(Isa isa) {
  constexpr KeyVotesFn* kVariants[] = {key_votes_scalar, key_votes_avx2, key_votes_avx512};
  return kVariants[std::min(static_cast<size_t>(isa), size_t{2})];
}

void check_all(VoteCase& c) {
  std::vector<float> lse(static_cast<size_t>(c.n_positions * c.n_heads)), want_lse(lse);
  const std::vector<float> want = c.run(key_votes_ref, want_lse);
  for (const Isa isa : usable_isas()) {
    CAPTURE(isa_name(isa));
    const std::vector<float> got = c.run(key_votes_of(isa), lse);
    for (size_t i = 0; i < lse.size(); ++i)
      REQUIRE(lse[i] == doctest::Approx(want_lse[i]).epsilon(1e-5));
    double sum = 0;
    for (size_t t = 0; t < want.size(); ++t) {
      CAPTURE(t);
      sum += got[t];
      REQUIRE(std::abs(got[t] - want[t]) <= 2e-5 * c.n_positions * c.n_heads);
    }
    CHECK(sum == doctest::Approx(c.n_positions * c.n_heads).epsilon(1e-4));
  }
}

}  // namespace

TEST_SUITE("kernels/key_votes") {
  TEST_CASE("every variant agrees with the reference") {
    for (const DType type : {DType::f32, DType::bf16})
      for (const int d : {2, 20, 64, 128})
        for (const int tokens : {1, 5, 63, 64, 65, 128, 700})
          for (const int positions : {1, 3, 32, 70})
            for (const int heads : {1, 4, 5}) {
              if (positions > tokens) continue;
              CAPTURE(dtype_name(type));
              CAPTURE(d);
              CAPTURE(tokens);
              CAPTURE(positions);
              CAPTURE(heads);
              VoteCase c(type, tokens, positions, heads, d);
              check_all(c);
            }
  }

  TEST_CASE("scores far apart, and beyond what f32 holds") {
    for (const float sharpness : {100.0f, 1e30f}) {
      VoteCase c(DType::f32, 200, 7, 2, 32, sharpness);
      check_all(c);
    }
    VoteCase c(DType::f32, 130, 4, 1, 32);
    c.scale = 3e38f;  // keys whose score overflows share the vote
    for (const Isa isa : usable_isas())
      for (const float vote : c.run(key_votes_of(isa))) CHECK(std::isfinite(vote));
  }

  TEST_CASE("equal keys share the votes of the queries that see them") {
    VoteCase c(DType::f32, 100, 2, 1, 16);
    for (int t = 0; t < 100; ++t)
      for (int k = 0; k < 16; ++k) c.keys.set(c.at(t, k), 0.5f);
    for (const Isa isa : usable_isas()) {
      const std::vector<float> votes = c.run(key_votes_of(isa));
      CHECK(votes[0] == doctest::Approx(1.0 / 99 + 1.0 / 100));
      CHECK(votes[98] == votes[0]);
      CHECK(votes[99] == doctest::Approx(1.0 / 100));
    }
  }
}
