#include <math.h>

#include "kernels/gather/key_votes.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int kVecs = kPageTokens / Vec::kLanes;  // of the scores of a page
/// Queries that share a load of keys: as many sums as hide the latency of the adds.
constexpr int kVotesAbreast = Vec::kLanes == 16 ? 4 : 1;

/// The keys of a page as columns, [d, 64]; zeros past the last.
template <class T>
void transpose_page(float* columns, const T* rows, int n, int d) {
  for (int j = 0; j < kPageTokens; ++j)
    for (int c = 0; c < d; ++c)
      columns[c * kPageTokens + j] = j < n ? to_f32(rows[j * int64_t{d} + c]) : 0.0f;
}

/// Scores of kQueries queries against a page, [kQueries, 64].
template <int kQueries>
void score_page(float* scores, const float* q, const float* columns, int d, float scale) {
  Vec sum[kQueries][kVecs];
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < kVecs; ++v) sum[i][v] = zero();
  for (int c = 0; c < d; ++c) {
    Vec at[kQueries];
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) at[i] = set1(q[int64_t{i} * d + c]);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const Vec keys = load(columns + c * kPageTokens + v * Vec::kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) sum[i][v] = fma(at[i], keys, sum[i][v]);
    }
  }
  // Finite or -inf: an overflow or a NaN would spread to all keys.
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < kVecs; ++v)
      store(scores + i * kPageTokens + v * Vec::kLanes,
            min(max(sum[i][v] * set1(scale), set1(-kInf)), set1(__FLT_MAX__)));
}

/// visit(query, scores [64]) for every query that sees a key of the page at `token`; scores of keys
/// that it does not see are -inf.
template <class Visit>
void for_scores(const KeyVotesParams& p, const float* columns, int token, const Visit& visit) {
  alignas(64) float scores[kVotesAbreast * kPageTokens];
  const int n_queries = p.n_positions * p.n_heads;
  // Those before see nothing of the page.
  int query = token <= p.first_position ? 0 : (token - p.first_position) * p.n_heads;
  while (query < n_queries) {
    const float* q = p.q + int64_t{query} * p.d;
    const int n = n_queries - query < kVotesAbreast ? 1 : kVotesAbreast;
    if (n == kVotesAbreast)
      score_page<kVotesAbreast>(scores, q, columns, p.d, p.scale);
    else
      score_page<1>(scores, q, columns, p.d, p.scale);
    for (int i = 0; i < n; ++i, ++query) {
      float* s = scores + i * kPageTokens;
      for (int j = p.first_position + query / p.n_heads + 1 - token; j < kPageTokens; ++j)
        s[j] = -kInf;
      visit(query, s);
    }
  }
}

template <class T>
void vote(const KeyVotesParams& p) {
  const int n = p.first_position + p.n_positions, n_queries = p.n_positions * p.n_heads;
  float *columns = p.scratch, *top = columns + int64_t{p.d} * kPageTokens, *sum = top + n_queries;
  for (int i = 0; i < n_queries; ++i) {
    top[i] = -kInf;
    sum[i] = 0;
  }
  const auto for_pages = [&](const auto& visit) {
    for (int token = 0; token < n; token += kPageTokens) {
      const int64_t page = p.pages[token / kPageTokens];
      const auto* rows = static_cast<const T*>(p.k_pool) +
                         (page * p.n_kv_heads + p.kv_head) * kPageTokens * int64_t{p.d};
      const int here = n - token < kPageTokens ? n - token : kPageTokens;
      transpose_page(columns, rows, here, p.d);
      visit(token, here);
    }
  };
  for_pages([&](int token, int) {
    for_scores(p, columns, token, [&](int query, const float* s) {
      Vec most = load(s);
      for (int v = 1; v < kVecs; ++v) most = max(most, load(s + v * Vec::kLanes));
      const float here = reduce_max(most), before = top[query];
      if (here > before) {
        top[query] = here;
        sum[query] *= reduce_max(exp(set1(before) - set1(here)));
      }
      if (top[query] == -kInf) return;
      Vec weights = zero();
      for (int v = 0; v < kVecs; ++v)
        weights = weights + exp(load(s + v * Vec::kLanes) - set1(top[query]));
      sum[query] += reduce_add(weights);
    });
  });
  for (int i = 0; p.lse != nullptr && i < n_queries; ++i)
    p.lse[i] = sum[i] > 0 ? top[i] + logf(sum[i]) : -kInf;
  for_pages([&](int token, int here) {
    alignas(64) float votes[kPageTokens] = {};
    for_scores(p, columns, token, [&](int query, const float* s) {
      if (!(sum[query] > 0)) return;
      const Vec share = set1(1.0f / sum[query]), most = set1(top[query]);
      for (int v = 0; v < kVecs; ++v) {
        float* to = votes + v * Vec::kLanes;
        store(to, fma(exp(load(s + v * Vec::kLanes) - most), share, load(to)));
      }
    });
    for (int j = 0; j < here; ++j) p.votes[token + j] = votes[j];
  });
}

}  // namespace

void TANDEM_ISA_FN(key_votes)(const KeyVotesParams& p) {
  if (p.dtype == DType::f32) return vote<float>(p);
  vote<bf16>(p);
}

}  // namespace tandem
