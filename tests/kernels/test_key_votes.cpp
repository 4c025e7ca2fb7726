#include <functional>

#include "kernels/gather/key_votes.h"
#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

KeyVotesFn* key_votes_of(Isa isa) {
  constexpr KeyVotesFn* kVariants[] = {key_votes_scalar, key_votes_avx2, key_votes_avx512};
  return kVariants[std::min(static_cast<size_t>(isa), size_t{2})];
}

/// A window of queries at the end of a sequence in scattered pages. Keys beyond the sequence and of
/// other KV heads are NaN, so that a read of one shows.
struct VoteCase {
  static constexpr int kHeads = 3, kHead = 1, kSpare = 41;
  int n_tokens, n_positions, n_heads, d;
  DType dtype;
  ActBuffer keys;
  Buffer<float> q;
  std::vector<int32_t> pages;
  float scale;

  VoteCase(DType type, int tokens, int positions, int heads, int dim, float sharpness = 1)
      : n_tokens(tokens),
        n_positions(positions),
        n_heads(heads),
        d(dim),
        dtype(type),
        keys(type, static_cast<size_t>(kSpare * kHeads * kPageTokens * dim), 1),
        q(static_cast<size_t>(positions * heads * dim), 1),
        scale(sharpness / std::sqrt(static_cast<float>(dim))) {
    PhiloxStream stream(11, static_cast<uint32_t>(tokens));
    for (size_t i = 0; i < keys.size(); ++i) keys.set(i, NAN);
    for (int i = 0; i * kPageTokens < n_tokens; ++i) pages.push_back((7 * i + 3) % kSpare);
    for (int t = 0; t < n_tokens; ++t)
      for (int c = 0; c < d; ++c) keys.set(at(t, c), random_float(stream, 1.5f));
    fill(q, stream, 2.0f);
  }
  size_t at(int token, int c) const {
    const int page = pages[static_cast<size_t>(token / kPageTokens)];
    return static_cast<size_t>(((page * kHeads + kHead) * kPageTokens + token % kPageTokens) * d +
                               c);
  }
  std::vector<float> run(KeyVotesFn* fn) {
    Buffer<float> votes(static_cast<size_t>(n_tokens), 1);
    Buffer<float> scratch(static_cast<size_t>(key_votes_scratch(d, n_positions * n_heads)), 1);
    fn({.votes = votes.data(),
        .q = q.data(),
        .k_pool = keys.data(),
        .pages = pages.data(),
        .first_position = n_tokens - n_positions,
        .n_positions = n_positions,
        .n_heads = n_heads,
        .n_kv_heads = kHeads,
        .kv_head = kHead,
        .d = d,
        .dtype = dtype,
        .scale = scale,
        .scratch = scratch.data()});
    return {votes.data(), votes.data() + n_tokens};
  }
};

void check_all(VoteCase& c) {
  const std::vector<float> want = c.run(key_votes_ref);
  for (const Isa isa : usable_isas()) {
    CAPTURE(isa_name(isa));
    const std::vector<float> got = c.run(key_votes_of(isa));
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
