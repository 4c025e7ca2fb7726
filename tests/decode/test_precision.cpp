#include <doctest/doctest.h>

#include <cmath>

#include "engine_runs.h"
#include "io/file.h"
#include "ops/linear.h"
#include "ops/sampling.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kTokens = 1500;
// The project's bound for bf16 against f32 on real text.
constexpr double kMeanKl = 2e-3;

/// Log-probabilities of all rows of one prefill, [tokens, vocab].
std::vector<Row> log_probabilities(const std::string& model, DType compute, Ids& ids) {
  const auto engine =
      make_engine(tiny_model(model),
                  {.compute = compute, .chunk = kTokens, .max_seqs = 1, .max_tokens = kTokens});
  if (ids.empty()) {
    ids = engine->tokenizer()->encode(io::read_file(std::filesystem::path(TANDEM_SOURCE_DIR) /
                                                    "recipes/demo/lighthouse-logbook.txt"));
    REQUIRE(ids.size() >= kTokens);
    ids.resize(kTokens);
  }
  std::vector<Row> rows;
  const decode::SeqTokens all[] = {{engine->cache().create(), ids, true}};
  engine->forward_all(kv::Phase::prefill, all, [&](int, const Tensor& logits) {
    const ops::LogitStats stats = ops::logit_stats(logits);
    for (int64_t r = 0; r < logits.rows(); ++r) {
      rows.push_back(row_of(logits, r));
      for (float& x : rows.back()) x -= stats.lse[static_cast<size_t>(r)];
    }
  });
  return rows;
}

}  // namespace

TEST_SUITE("decode/precision") {
  TEST_CASE("bf16 stays close to f32 on real text: mean KL divergence") {
    if (ops::weight_dtype(DType::bf16) != DType::bf16) {
      MESSAGE("skipped: this CPU has no AVX512-BF16");
      return;
    }
    for (const std::string model : {"tiny-2m", "tiny-16m"}) {
      CAPTURE(model);
      Ids ids;
      const std::vector<Row> f32 = log_probabilities(model, DType::f32, ids);
      const std::vector<Row> bf16 = log_probabilities(model, DType::bf16, ids);
      REQUIRE(f32.size() == kTokens);
      REQUIRE(bf16.size() == kTokens);
      double sum = 0, worst = 0;
      for (size_t t = 0; t < f32.size(); ++t) {
        double kl = 0;
        for (size_t v = 0; v < f32[t].size(); ++v)
          kl += std::exp(double{f32[t][v]}) * (double{f32[t][v]} - double{bf16[t][v]});
        sum += kl;
        worst = worse(worst, kl);
      }
      MESSAGE(model << ": mean KL(f32 || bf16) " << sum / kTokens << ", largest " << worst);
      CHECK(sum / kTokens <= kMeanKl);
      CHECK(sum > 0);  // or the two did not differ in what they computed
    }
  }
}
