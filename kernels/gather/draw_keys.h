#pragma once
// Keys drawn with replacement by their softmax weight, on a GPU: contract. Pointers lie in device
// memory.
#include "kernels/gather/score_keys.h"

namespace tandem {

struct DrawKeysParams {
  int32_t* ids;         // out: list i begins at i * id_stride; ascending, each once
  float* bias;          // out, as ids: log(share of the draws / softmax weight)
  int32_t* count;       // out [lists]
  const float* scores;  // of list i and token t at i * score_stride + t
  const int32_t* n;     // [lists] tokens
  const int32_t* m;     // [lists] draws, 1 or more where there are tokens
  int32_t* drawn;       // scratch, as scores
  double* cumulative;   // scratch, as scores
  int64_t id_stride, score_stride;
  ChoosingRows choosing;
  int layer, n_heads;
  uint64_t seed;
};

/// Each list draws m of its n tokens by inverse transform: draw i takes uniform number i of the
/// PhiloxStream of seed ^ pos << 20 and of layer * n_heads + head. With the bias the list's softmax
/// weights are shares of the draws, and its log-sum-exp that of all scores.
/// numerics sums of weights in f64
/// cost     a block a list: reads the scores twice and those of drawn keys again, and log2(n) sums a draw
/// errors   none (preconditions checked by the caller)
void draw_keys_cuda(const DrawKeysParams&, Stream);

}  // namespace tandem
