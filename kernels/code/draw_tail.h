#pragma once
// Samples of the keys that a choice by codes leaves (choose_coded.h), on a GPU: contract. Pointers
// lie in device memory.
#include "kernels/gather/score_keys.h"

namespace tandem {

/// What a budget by error judges samples by: the true weights of their keys.
struct TailErrorParams {
  double aim =
      0;  // relative, of a list's sum of weights, in 95 of 100 cases; 0: no budget by error
  const float* origin = nullptr;         // [lists] the log weight of the threshold
  const float* exact_mass = nullptr;     // [lists] of the chosen keys, relative to exp(threshold)
  float* error = nullptr;                // out [lists] the one reached; -1 without indexed keys
  unsigned long long* totals = nullptr;  // [2] in and out: sum of those in units of kErrorUnit, and
                                         // how many
  const void* q = nullptr;               // [rows of the step, n_heads, d] of dtype
  const void* k_pool = nullptr;          // [n_pages, n_kv_heads, 64, d] of dtype
  const int32_t* page_table = nullptr;   // [slots, max_pages]
  int max_pages = 0, d = 0;
  double scale = 0;          // multiplies scores
  DType dtype = DType::f32;  // f32 or bf16; d <= 256
};
inline constexpr double kErrorUnit = 1.0 / (1 << 24);

/// For each list a Poisson sample by estimated weight, as sample_tail.h has it with a gain of 1, no
/// threshold, draws by the list's row, layer and KV head, and about `sample` times the indexed keys
/// wanted. Lists whose keys are all chosen get none. By error, 128 keys are drawn first, and where
/// their true weights say that the error is larger than the aim, all again: as many as it needs, up
/// to those that `sample` says.
struct DrawTailParams {
  int32_t* ids;  // in and out: list i begins at i * stride; sampled tokens follow the chosen ones,
                 // ascending
  float* bias;   // out, as ids: 0 of the tokens that are there before, of the others minus the log
                 // of their probability
  int32_t* count;  // [lists] in and out; at most most_sampled() are added (tail_numbers.h)
  int64_t stride;
  float* masses;  // out: of list i and run r at i * mass_stride + r sums of estimated weights
                  // relative to exp(threshold), none above 1, less those of sampled keys over their
                  // probabilities
  int64_t mass_stride;
  const float* scores;     // of list i and indexed key j at i * score_stride + j; -inf: chosen
  const float* threshold;  // [lists] least score of a chosen key
  int64_t score_stride;
  const int32_t* ends;  // [slots] tokens [begin, ends[slot]) are indexed
  int begin;            // as many tokens of each list come before the chosen ones
  ChoosingRows choosing;
  int n_heads, n_kv_heads, layer;
  int max_keys;   // indexed, of any slot
  double sample;  // above 0
  uint64_t seed;
  TailErrorParams by_error = {};
};

/// numerics from equal scores the ids and biases of the CPU; by error within rounding of the number
///          wanted; masses f32, 1e-5 of the largest
/// cost     a block a list: reads the scores twice, by error up to six times, and sampled keys
/// errors   none (preconditions checked by the caller)
void draw_tail_cuda(const DrawTailParams&, Stream);

}  // namespace tandem
