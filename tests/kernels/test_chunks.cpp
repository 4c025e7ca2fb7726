#include "kernels/chunk_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

ChunkMeansFn* means_of(Isa isa) {
  constexpr ChunkMeansFn* kVariants[] = {chunk_means_scalar, chunk_means_avx2, chunk_means_avx512};
  return kVariants[std::min(static_cast<size_t>(isa), size_t{2})];
}
ChunkScoresFn* scores_of(Isa isa) {
  constexpr ChunkScoresFn* kVariants[] = {chunk_scores_scalar, chunk_scores_avx2,
                                          chunk_scores_avx512};
  return kVariants[std::min(static_cast<size_t>(isa), size_t{2})];
}

std::vector<float> numbers(ActBuffer& b) {
  std::vector<float> all;
  for (size_t i = 0; i < b.size(); ++i) all.push_back(b.get(i));
  return all;
}

/// Largest sum of |q_c mean_c| of a mean: what rounding is relative to.
double weight_of(ActBuffer& means, Buffer<float>& q, size_t d, size_t i) {
  double most = 0;
  for (size_t h = 0; h < q.size() / d; ++h) {
    double sum = 0;
    for (size_t c = 0; c < d; ++c) sum += std::abs(double{q[h * d + c]} * means.get(i * d + c));
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

TEST_SUITE("kernels/chunks") {
  TEST_CASE("means: every variant has the bits of the reference, for chunks of 1 to 64 tokens") {
    for (const DType type : {DType::f32, DType::bf16})
      for (const int d : {2, 20, 64, 128})
        for (const int chunk : {1, 2, 4, 8, 16, 32, 64})
          for (const int first : {0, 3})
            for (const int n : {1, 5, 30}) {
              if ((first + n) * chunk > 64 * (VoteCase::kSpare - 1)) continue;
              CAPTURE(dtype_name(type));
              CAPTURE(d);
              CAPTURE(chunk);
              CAPTURE(n);
              ChunkCase c(type, d, chunk, first, n);
              ActBuffer want = c.means(chunk_means_ref);
              for (const Isa isa : usable_isas()) {
                CAPTURE(isa_name(isa));
                ActBuffer got = c.means(means_of(isa));
                REQUIRE(numbers(got) == numbers(want));
              }
            }
  }

  TEST_CASE("the mean of a chunk is that of its keys") {
    ChunkCase c(DType::f32, 20, 8, 2, 7);
    ActBuffer means = c.means(chunk_means_ref);
    for (int i = 0; i < c.n; ++i)
      for (int k = 0; k < 20; ++k) {
        double sum = 0;
        for (int t = 0; t < 8; ++t) sum += c.text.keys.get(c.text.at((2 + i) * 8 + t, k));
        CHECK(means.get(static_cast<size_t>(i * 20 + k)) == doctest::Approx(sum / 8).epsilon(1e-5));
      }
  }

  TEST_CASE("scores: every variant agrees with the reference") {
    PhiloxStream stream(4);
    for (const DType type : {DType::f32, DType::bf16})
      for (const int d : {2, 20, 64, 128})
        for (const int n : {1, 3, 4, 7, 130})
          for (const int n_q : {1, 4, 5}) {
            CAPTURE(dtype_name(type));
            CAPTURE(d);
            CAPTURE(n);
            CAPTURE(n_q);
            ActBuffer means(type, static_cast<size_t>(n * d), 1);
            Buffer<float> q(static_cast<size_t>(n_q * d), 1);
            fill(means, stream, 2.0f);
            fill(q, stream, 3.0f);
            const std::vector<float> want = chunk_scores_of(chunk_scores_ref, means, q, d);
            for (const Isa isa : usable_isas()) {
              CAPTURE(isa_name(isa));
              const std::vector<float> got = chunk_scores_of(scores_of(isa), means, q, d);
              for (size_t i = 0; i < want.size(); ++i)
                REQUIRE(std::abs(double{got[i]} - want[i]) <=
                        1e-6 * weight_of(means, q, static_cast<size_t>(d), i));
            }
          }
  }

  TEST_CASE("equal means score equally, wherever they are") {
    PhiloxStream stream(5);
    for (const int d : {20, 64}) {
      ActBuffer means(DType::f32, static_cast<size_t>(9 * d));
      Buffer<float> q(static_cast<size_t>(3 * d));
      fill(q, stream, 3.0f);
      for (int k = 0; k < d; ++k) {
        const float x = random_float(stream, 1.0f);
        for (int i = 0; i < 9; ++i) means.set(static_cast<size_t>(i * d + k), x);
      }
      for (const Isa isa : usable_isas()) {
        const std::vector<float> scores = chunk_scores_of(scores_of(isa), means, q, d);
        CHECK(std::ranges::count(scores, scores[0]) == 9);
      }
    }
  }

  TEST_CASE("scores beyond f32, and of keys without meaning, are finite") {
    ActBuffer means(DType::f32, 5 * 8);
    Buffer<float> q(8);
    for (size_t c = 0; c < 8; ++c) {
      q[c] = 1e30f;
      means.set(c, 1e30f);
      means.set(8 + c, -1e30f);
      means.set(16 + c, NAN);
      means.set(24 + c, INFINITY);
      means.set(32 + c, 0.5f);
    }
    const float most = __FLT_MAX__;
    const std::vector<float> want = chunk_scores_of(chunk_scores_ref, means, q, 8);
    CHECK(want[0] == most);
    for (const Isa isa : usable_isas()) {
      const std::vector<float> got = chunk_scores_of(scores_of(isa), means, q, 8);
      CHECK(got[0] == most);
      CHECK(got[1] == -most);
      CHECK(got[2] == -most);
      CHECK(got[3] == most);
      CHECK(got[4] == doctest::Approx(4e30));
    }
  }

  TEST_CASE("the specification's chunks of two keys") {
    constexpr float kKeys[8][2] = {{1, 0},  {0, 1}, {2, 0},  {0, 0},
                                   {-1, 3}, {1, 1}, {4, -4}, {0, 2}};
    ChunkCase c(DType::f32, 2, 2, 0, 4);
    for (int t = 0; t < 8; ++t)
      for (int k = 0; k < 2; ++k) c.text.keys.set(c.text.at(t, k), kKeys[t][k]);
    Buffer<float> q(2);
    q[0] = q[1] = 1;
    for (const Isa isa : usable_isas()) {
      ActBuffer means = c.means(means_of(isa));
      CHECK(numbers(means) == std::vector<float>{.5, .5, 1, 0, 0, 2, 2, -1});
      CHECK(chunk_scores_of(scores_of(isa), means, q, 2) == std::vector<float>{1, 1, 2, 1});
    }
  }
}
