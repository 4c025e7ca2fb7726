#include "kernels/cuda/launch.cuh"
#include "kernels/gather/choose_keys_cuda.h"
#include "kernels/selection/best_keys.cuh"

namespace tandem {
namespace {

using best::kEach;
using best::kThreads;

constexpr int kBlocks = 3;  // of a multiprocessor: one waits while another reads

/// Numbers of 0 or more are ordered as their bits are.
struct Votes {
  static constexpr int kBits = 32;
  const float* at;

  /// The order of keys [i, i + kEach), those before n of them.
  __device__ void load(int i, int n, uint32_t (&x)[kEach]) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) x[e] = i + e < n ? __float_as_uint(at[i + e]) : 0;
  }
};

/// The same of f16 of either sign, of which there are kEach from any multiple of kEach below n on.
struct Scores {
  static constexpr int kBits = 16;
  const f16* at;

  __device__ void load(int i, int n, uint32_t (&x)[kEach]) const {
    if (i >= n) return;
    const uint4 pairs = *reinterpret_cast<const uint4*>(at + i);
    const uint32_t words[] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      uint32_t bits = words[e / 2] >> (e % 2 * 16) & 0xffff;
      if ((bits & 0x7fff) == 0) bits = 0;  // zeros are equal
      x[e] = bits >= 0x8000 ? bits ^ 0xffff : bits | 0x8000;
    }
  }
};

__device__ void pool(const ChooseKeysParams& p, const float* votes, float* pooled) {
  const int reach = p.pool / 2;
  for (int t = static_cast<int>(threadIdx.x); t < p.n; t += kThreads) {
    float sum = 0;
    for (int i = max(0, t - reach); i <= min(p.n - 1, t + reach); ++i) sum += votes[i];
    pooled[t] = sum / static_cast<float>(p.pool);
  }
}

// Both kernels, a block a list, release nothing early: kernels that begin ahead of the one before
// them may read lists.

__global__ void __launch_bounds__(kThreads, kBlocks) choose(const ChooseKeysParams p) {
  __shared__ best::Shared s;
  cuda::wait_for_previous();
  const int64_t list = blockIdx.x;
  float* const pooled = p.pooled + list * p.vote_stride;
  int32_t* const ids = p.ids + list * p.id_stride;
  pool(p, p.votes + list * p.vote_stride, pooled);
  for (int i = static_cast<int>(threadIdx.x); i < p.sinks; i += kThreads) ids[i] = i;
  __syncthreads();
  if (p.n_chosen == p.sinks) return;
  best::choose(s, Votes{pooled + p.sinks}, p.n - p.sinks, p.n_chosen - p.sinks,
               [&](int place, int key) { ids[p.sinks + place] = p.sinks + key; });
}

__global__ void __launch_bounds__(kThreads, kBlocks) choose_scored(const ChooseScoredParams p) {
  __shared__ best::Shared s;
  cuda::wait_for_previous();
  const int head = static_cast<int>(blockIdx.x) % p.n_kv_heads;
  const int layer = static_cast<int>(blockIdx.x) / p.n_kv_heads;
  const int seq = static_cast<int>(blockIdx.y);
  const int n = p.base[seq] - p.recent;
  if (p.row_begin[seq] == p.row_begin[seq + 1] || n <= p.n_chosen) return;
  const int64_t row = p.slot[seq];
  if (layer == 0 && threadIdx.x == 0) {
    p.count[row * p.n_kv_heads + head] = p.n_chosen;
    if (head == 0) p.rest[row] = n;
  }
  const Scores scores{p.scores + row * p.score_row_stride +
                      (int64_t{p.layers[layer]} * p.n_kv_heads + head) * p.score_stride};
  int32_t* const ids = p.ids + row * p.row_stride + int64_t{blockIdx.x} * p.id_stride;
  best::choose(s, scores, n, p.n_chosen, [&](int place, int key) { ids[place] = key; });
}

}  // namespace

void choose_keys_cuda(const ChooseKeysParams& p, Stream stream) {
  cuda::launch(choose, dim3(static_cast<unsigned>(p.n_lists)), kThreads, stream, p);
}

void choose_scored_cuda(const ChooseScoredParams& p, Stream stream) {
  if (p.n_seqs == 0 || p.n_layers == 0) return;
  cuda::launch(
      choose_scored,
      dim3(static_cast<unsigned>(p.n_layers * p.n_kv_heads), static_cast<unsigned>(p.n_seqs)),
      kThreads, stream, p);
}

}  // namespace tandem
