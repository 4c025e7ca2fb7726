#pragma once
#include <cstdint>
#include <span>

namespace tandem::kv {

/// Which keys a sample is drawn from: those whose score is at most `threshold`, `excluded` (ascending)
/// left out.
struct TailKeys {
  std::span<const float> scores;
  float threshold = 0;
  std::span<const int32_t> excluded;  // ids
  int first_id = 0;                   // id of scores[0]
};

/// Stratified: one key from every run of `stratum` keys, with bias log(stratum).
/// ids, bias   room for all keys; returns how many were drawn
int sample_uniform(const TailKeys& keys, double stratum, uint64_t key, int32_t* ids, float* bias);

/// Poisson sampling with probability proportional to exp(gain * score), capped at 1, `wanted` keys
/// in expectation; bias = -log of the probability. Draws are a function of `key` and the id alone,
/// so that heads that share a key draw the same tokens where they can.
int sample_weighted(const TailKeys& keys, float gain, double wanted, uint64_t key, int32_t* ids,
                    float* bias);

}  // namespace tandem::kv
