#pragma once
// Contracts of logit_stats, top_n and sample. No STL: included by sources compiled with per-ISA
// flags.
#include <stddef.h>

#include "base/types.h"

namespace tandem {

/// Probabilities are exact integers here: the weight of a token is floor(2^40 exp(x - max)), so
/// sums do not depend on their order, and every ISA and thread count draws the same token. What
/// that leaves out is below 2^-40 of the largest probability a token.
inline constexpr int kWeightBits = 40;
/// Sums of weights stay within 62 bits up to this vocabulary.
inline constexpr int kMaxVocab = 1 << 22;
/// Results of a row that has no meaning: a NaN or +inf logit, or no finite logit at all.
inline constexpr int kInvalidToken = -1;

struct LogitStatsParams {
  int32_t* argmax;      // [n_rows], ties: the lowest id; kInvalidToken for a meaningless row
  float* max;           // [n_rows], NaN for a meaningless row
  float* lse;           // [n_rows], log sum exp, natural log, NaN for a meaningless row
  const float* logits;  // [n_rows, V]
  int n_rows, vocab;    // 1 <= V <= kMaxVocab
};

/// Statistics of the untempered log-softmax: the logprob of a token is its logit minus lse.
/// numerics |lse - ref| <= 2e-7 + eps_f32 |ref|; argmax and max exact
/// cost     reads n_rows * V * 4 bytes twice, the second time from cache
/// errors   none (preconditions checked by ops; a meaningless row is a result)
using LogitStatsFn = void(const LogitStatsParams&, Range rows);
LogitStatsFn logit_stats_ref, logit_stats_scalar, logit_stats_avx2, logit_stats_avx512;

/// Of a row of logits and a temperature.
struct RowSum {
  float max;
  uint64_t total;  // of the weights; 0: not known
};

struct TopNParams {
  int32_t* ids;          // [n_rows, n], by descending logit, ties: the lower id first
  float* logprobs;       // [n_rows, n]
  const float* logits;   // [n_rows, V]
  const float* lse;      // [n_rows], of logit_stats
  int n_rows, vocab, n;  // 1 <= n <= V
  void* workspace;       // sample_workspace_bytes(V), 64-byte aligned, one per concurrent call
};

/// The n most likely tokens and their natural-log probabilities. A meaningless row (see
/// logit_stats) gives ids kInvalidToken and NaN.
/// numerics ids exact; logprob = logit - lse in f32
/// cost     reads n_rows * V * 4 bytes once
/// errors   none (preconditions checked by ops)
using TopNFn = void(const TopNParams&, Range rows);
TopNFn top_n_ref, top_n_scalar, top_n_avx2, top_n_avx512;

/// Which tokens may be drawn, and with which weights.
struct KeepRule {
  float repetition_penalty;  // > 0; 1 = off: seen logits above 0 are divided, others multiplied
  float temperature;         // >= 0; 0 = argmax
  int top_k;                 // keep the k largest; 0 = off; ties: the lower id is kept
  double top_p;              // keep the smallest set of at least this probability; >= 1 = off
  double min_p;  // keep tokens of at least this share of the largest probability; 0 = off
};

struct SampleParams {
  int32_t* tokens;            // [n_rows], kInvalidToken for a meaningless row
  const float* logits;        // [n_rows, V]
  const double* uniform;      // [n_rows] in [0, 1); not read at temperature 0
  const int32_t* seen;        // ids to penalise, repeats allowed; may be null without penalty
  const int32_t* seen_begin;  // [n_rows + 1], row r has seen[seen_begin[r] .. seen_begin[r + 1])
  int n_rows, vocab;
  KeepRule rule;
  void* workspace;  // sample_workspace_bytes(V), 64-byte aligned, one per concurrent call
  // Written on a GPU alone; on the CPU ops makes them with logit_stats.
  float* logprobs = nullptr;  // [n_rows], of the tokens in the row as given, natural log; or null
  float* lse = nullptr;       // [n_rows], log sum exp of the row as given, natural log; or null
};

/// Draws one token a row: repetition penalty, temperature, top-k, top-p, min-p, then the first id
/// in ascending order whose cumulative weight exceeds uniform * (sum of the kept weights). top-p
/// renormalises over what top-k left, as Hugging Face's warpers do; at least one token stays.
/// numerics sets and draw are exact in the integer weights above; equal on every ISA and thread
///          count
/// cost     reads n_rows * V * 4 bytes once from memory; up to five passes over cached V
/// errors   none (preconditions checked by ops)
using SampleFn = void(const SampleParams&, Range rows);
SampleFn sample_ref, sample_scalar, sample_avx2, sample_avx512;

size_t sample_workspace_bytes(int vocab);

}  // namespace tandem
