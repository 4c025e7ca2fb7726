#pragma once
#include <doctest/doctest.h>

#include <cmath>

#include "engine_runs.h"
#include "io/file.h"
#include "ops/linear.h"
#include "ops/sampling.h"

/// How far one number type's distributions lie from another's.
namespace tandem::test {

/// The project's bound for bf16 against f32 on real text.
inline constexpr double kMeanKl = 2e-3;

/// The first `n` tokens of prose that the tiny models were trained on.
inline Ids real_text(int n) {
  const decode::ModelFiles files = decode::open_model(tiny_model("tiny-2m").string(), 0);
  Ids ids =
      files.tokenizer->encode(io::read_file(source_dir() / "recipes/demo/lighthouse-logbook.txt"));
  REQUIRE(ids.size() >= static_cast<size_t>(n));
  ids.resize(static_cast<size_t>(n));
  return ids;
}

/// Rows of logits on the host as log-probabilities.
inline std::vector<Row> log_softmax(const Tensor& logits) {
  const ops::LogitStats stats = ops::logit_stats(logits);
  std::vector<Row> rows;
  for (int64_t r = 0; r < logits.rows(); ++r) {
    rows.push_back(row_of(logits, r));
    for (float& x : rows.back()) x -= stats.lse[static_cast<size_t>(r)];
  }
  return rows;
}

/// Log-probabilities of all rows of one prefill, [tokens, vocab].
inline std::vector<Row> log_probabilities(const std::string& model, DType compute, const Ids& ids,
                                          Device device = {}) {
  const int n = static_cast<int>(ids.size());
  const auto engine = make_engine(
      tiny_model(model),
      {.compute = compute, .chunk = n, .max_seqs = 1, .max_tokens = n, .device = device});
  std::vector<Row> rows;
  const decode::SeqTokens all[] = {{engine->cache().create(), ids, true}};
  engine->forward_all(kv::Phase::prefill, all, [&](int, const Tensor& logits) {
    for (Row& row : log_softmax(logits)) rows.push_back(std::move(row));
  });
  return rows;
}

struct Divergence {
  double mean = 0, largest = 0;
};

/// KL(p || q) of rows of log-probabilities, in nats.
inline Divergence divergence(std::span<const Row> p, std::span<const Row> q) {
  REQUIRE(p.size() == q.size());
  Divergence d;
  for (size_t t = 0; t < p.size(); ++t) {
    double kl = 0;
    for (size_t v = 0; v < p[t].size(); ++v)
      kl += std::exp(double{p[t][v]}) * (double{p[t][v]} - double{q[t][v]});
    d.mean += kl / static_cast<double>(p.size());
    d.largest = worse(d.largest, kl);
  }
  return d;
}

}  // namespace tandem::test
