#include <doctest/doctest.h>

#include "decode/precision_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kTokens = 1500;

}  // namespace

TEST_SUITE("decode/precision") {
  TEST_CASE("bf16 stays close to f32 on real text: mean KL divergence") {
    for (const std::string model : {"tiny-2m", "tiny-16m"}) {
      CAPTURE(model);
      const Ids ids = real_text(kTokens);
      const auto f32 = log_probabilities(model, DType::f32, ids);
      const Divergence kl = divergence(f32, log_probabilities(model, DType::bf16, ids));
      MESSAGE(model << ": mean KL(f32 || bf16) " << kl.mean << ", largest " << kl.largest);
      CHECK(kl.mean <= kMeanKl);
      CHECK(kl.mean > 0);  // or the two did not differ in what they computed
    }
  }
}
