#pragma once
// What bodies of attend_lists (attend_lists.h) share: the weights of keys, and how the states that
// a block's threads hold become one.
#include <cuda_bf16.h>

#include "base/log2.h"
#include "kernels/code/tail_means.h"
#include "kernels/gather/attend_lists.h"
#include "kernels/gather/list_rows.cuh"

namespace tandem {

inline constexpr int kLeastShare = 128;  // keys of a list that are worth a block

/// The keys of a list that a block attends to: short lists of a long `most` are divided among all
/// parts, too.
struct ListShare {
  int begin, n;

  __device__ ListShare(int count, int part, int parts, int split) {
    const int share = min(max((count + parts - 1) / parts, kLeastShare), split);
    begin = part * share;
    n = min(count - begin, share);
  }
};

/// The log of the probability that a key is in its list.
__device__ inline float log_u_at(const CollisionWeights& w, float2 query, float dot, float norm) {
  if (norm < 0) return 0;
  const float product = query.x * norm;
  const float c = product == 0 ? 0.0f : fminf(fmaxf((dot - query.y) / product, -1.0f), 1.0f);
  const float x = (c + 1) * 0.5f * static_cast<float>(w.log_u_intervals);
  const int i = min(static_cast<int>(x), w.log_u_intervals - 1);
  return w.log_u[i] + (x - static_cast<float>(i)) * (w.log_u[i + 1] - w.log_u[i]);
}

/// What keys of a list count in addition to their scores.
struct ListWeights {
  const float *bias, *norms;  // of the keys at hand; null: none
  float2 query = {};

  __device__ ListWeights(const QueryLists& lists, int64_t list, int begin)
      : bias(lists.bias == nullptr ? nullptr : lists.bias + list * lists.stride + begin),
        norms(lists.weights.norms == nullptr ? nullptr
                                             : lists.weights.norms + list * lists.stride + begin) {
    if (norms != nullptr) query = reinterpret_cast<const float2*>(lists.weights.queries)[list];
  }
  /// dot    q.k without the scale
  __device__ float at(const CollisionWeights& w, int i, float dot) const {
    float x = bias == nullptr ? 0.0f : bias[i];
    if (norms != nullptr) x -= log_u_at(w, query, dot, norms[i]);
    return x;
  }
};

/// Softmax states of disjoint keys in shared memory, in units of log2: of state i the maximum and
/// the sum at i * stride, and the values at i * o_stride.
struct SharedStates {
  const float *m, *l, *o;
  int n, stride, o_stride;
};
/// Writes their joined state as part `part` of the result; one with a sign as its sums, relative to
/// exp2(m), until it is joined to others. By the whole block.
__device__ inline void write_joined(const AttendListsParams& p, int part, int row, int head,
                                    bool has_sign, const SharedStates& s) {
  float most = -INFINITY, sum = 0;
  for (int i = 0; i < s.n; ++i) most = fmaxf(most, s.m[i * s.stride]);
  const float base = most == -INFINITY ? 0.0f : most;
  for (int i = 0; i < s.n; ++i) sum += s.l[i * s.stride] * exp2f(s.m[i * s.stride] - base);
  const int64_t at = (int64_t{part} * p.n_rows + row) * p.n_heads + head;
  for (int c = static_cast<int>(threadIdx.x); c < p.d; c += static_cast<int>(blockDim.x)) {
    float x = 0;
    for (int i = 0; i < s.n; ++i)
      x = fmaf(exp2f(s.m[i * s.stride] - base), s.o[i * s.o_stride + c], x);
    p.o[at * p.d + c] = has_sign ? x : sum > 0 ? x / sum : 0.0f;
  }
  if (threadIdx.x == 0)
    p.lse[at] = has_sign ? sum : sum > 0 ? (most + log2f(sum)) * kLn2 : -INFINITY;
}

/// The runs of a list's tail, and their means: rows of d elements.
struct TailRuns {
  const __nv_bfloat16* means = nullptr;
  const int32_t* blocks = nullptr;
  int64_t block_stride = 0;
  int block_runs = 1, d = 0, n = 0;

  __device__ TailRuns(const AttendListsParams& p, const ListOf& list) {
    if (!list.exists()) return;
    const ListTails& t = p.tails;
    means = reinterpret_cast<const __nv_bfloat16*>(t.means) + list.kv_head * t.head_stride;
    blocks = t.blocks + int64_t{list.slot} * t.max_blocks;
    block_stride = t.block_stride;
    block_runs = t.block_runs;
    d = p.d;
    n = (t.ends[list.slot] - t.begin + kMeanKeys - 1) / kMeanKeys;
    if (t.clusters == 0) return;
    n = n > 0 ? t.clusters : 0;
    means += list.slot * t.block_stride;
    blocks = nullptr;
  }
  __device__ const __nv_bfloat16* mean(int run) const {
    if (blocks == nullptr) return means + int64_t{run} * d;
    return means + blocks[run / block_runs] * block_stride + int64_t{run % block_runs} * d;
  }
};

/// The lists of a call.
inline unsigned lists_of(const AttendListsParams& p) {
  return static_cast<unsigned>((p.rows.end - p.rows.begin) * (p.n_heads / p.lists.heads));
}

/// Attends by tensor cores: bf16, rows of at most 128 elements, a multiple of eight.
bool attend_lists_mma_takes(const AttendListsParams&);
/// split    most keys of a part
void attend_lists_mma(const AttendListsParams&, int parts, int split, Stream);

}  // namespace tandem
