#include <math.h>

#include "base/log2.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/gather/choose_keys_cuda.h"

namespace tandem {
namespace {

// A block multiplies tiles of 64 queries by pages of 64 keys: thread (x, y) of 16 x 16 the queries
// y + 16 i by the keys x + 16 j. Queries of a KV head are numbered position by position.
constexpr int kTile = 64, kSide = 16, kEach = kTile / kSide, kThreads = kSide * kSide;
constexpr int kColumns = 32;  // of q and k in shared memory at a time
constexpr int kPitch = kTile + 1;

struct Tiles {
  float q[kColumns][kPitch], k[kColumns][kPitch];
};

__device__ int n_queries(const KeyVotesCudaParams& p) {
  return p.n_positions * (p.n_heads / p.n_kv_heads);
}
__device__ int n_tokens(const KeyVotesCudaParams& p) { return p.first_position + p.n_positions; }

/// Scores in base 2 of the tile's queries and the page's keys, -inf where a query does not see a
/// key.
template <class T>
__device__ void score_tile(const KeyVotesCudaParams& p, Tiles& s, int kv_head, int first_query,
                           int page, float (&score)[kEach][kEach]) {
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide, group = p.n_heads / p.n_kv_heads;
  const int n = n_queries(p), first = page * kPageTokens;
  const T* k = static_cast<const T*>(p.k_pool) +
               (static_cast<int64_t>(p.pages[page]) * p.n_kv_heads + kv_head) * kPageTokens * p.d;
  for (auto& row : score)
    for (float& at : row) at = 0;
  for (int begin = 0; begin < p.d; begin += kColumns) {
    __syncthreads();
    for (int e = threadIdx.x; e < kTile * kColumns; e += kThreads) {
      const int row = e / kColumns, c = begin + e % kColumns, query = first_query + row;
      const bool any = c < p.d;
      const int64_t at =
          static_cast<int64_t>((p.first_position + query / group) % p.capacity) * p.n_heads +
          kv_head * group + query % group;
      s.q[e % kColumns][row] =
          any && query < n ? cuda::to_float(static_cast<const T*>(p.q)[at * p.d + c]) : 0.0f;
      s.k[e % kColumns][row] = any && first + row < n_tokens(p)
                                   ? cuda::to_float(k[static_cast<int64_t>(row) * p.d + c])
                                   : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int c = 0; c < kColumns; ++c) {
      float q[kEach], key[kEach];
      for (int i = 0; i < kEach; ++i) q[i] = s.q[c][y + i * kSide], key[i] = s.k[c][x + i * kSide];
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) score[i][j] = fmaf(q[i], key[j], score[i][j]);
    }
  }
  const float to_log2 = p.scale * kLog2E;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int query = first_query + y + i * kSide;
    const int last = query < n ? p.first_position + query / group : -1;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      // Finite or -inf: an overflow or a NaN would spread to all keys.
      const float at = fminf(fmaxf(score[i][j] * to_log2, -INFINITY), 3e38f);
      score[i][j] = first + x + j * kSide <= last ? at : -INFINITY;
    }
  }
}

/// Reduces over the 16 threads of a row of queries.
template <class F>
__device__ float across(float v, const F& f) {
  for (int step = kSide / 2; step > 0; step /= 2)
    v = f(v, __shfl_xor_sync(cuda::kAllLanes, v, step));
  return v;
}
__device__ float raise(float from, float to) { return from == -INFINITY ? 0.0f : exp2f(from - to); }

/// Softmax states of a tile of queries over a split of the keys: block (split, tile, KV head).
template <class T>
__global__ void __launch_bounds__(kThreads) vote_states(const KeyVotesCudaParams p) {
  __shared__ Tiles tiles;
  cuda::start_after_previous();
  const int first_query = static_cast<int>(blockIdx.y) * kTile,
            kv_head = static_cast<int>(blockIdx.z);
  const int begin = static_cast<int>(blockIdx.x) * (kVoteSplitTokens / kPageTokens);
  const int end =
      min(begin + kVoteSplitTokens / kPageTokens, (n_tokens(p) + kPageTokens - 1) / kPageTokens);
  float m[kEach], l[kEach];
  for (int i = 0; i < kEach; ++i) m[i] = -INFINITY, l[i] = 0;
  for (int page = begin; page < end; ++page) {
    float score[kEach][kEach];
    score_tile<T>(p, tiles, kv_head, first_query, page, score);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float top = score[i][0], sum = 0;
      for (int j = 1; j < kEach; ++j) top = fmaxf(top, score[i][j]);
      top = fmaxf(m[i], across(top, [](float a, float b) { return fmaxf(a, b); }));
      for (int j = 0; j < kEach; ++j) sum += raise(score[i][j], top);
      sum = across(sum, [](float a, float b) { return a + b; });
      l[i] = l[i] * raise(m[i], top) + sum;
      m[i] = top;
    }
  }
  if (threadIdx.x % kSide != 0) return;
  const int n = n_queries(p);
  auto* const to = static_cast<float2*>(p.scratch) +
                   (static_cast<int64_t>(blockIdx.x + 1) * p.n_kv_heads + kv_head) * n;
  for (int i = 0; i < kEach; ++i) {
    const int query = first_query + static_cast<int>(threadIdx.x) / kSide + i * kSide;
    if (query < n) to[query] = {m[i], l[i]};
  }
}

/// Joins the states of all splits: a thread a query of all KV heads. The result comes first in the
/// scratch.
__global__ void __launch_bounds__(kThreads) join_states(const KeyVotesCudaParams p, int n_splits) {
  cuda::start_after_previous();
  const int n = n_queries(p) * p.n_kv_heads;
  const int at = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (at >= n) return;
  auto* const states = static_cast<float2*>(p.scratch);
  float m = -INFINITY, l = 0;
  for (int i = 1; i <= n_splits; ++i) {
    const float2 state = states[static_cast<int64_t>(i) * n + at];
    const float top = fmaxf(m, state.x);
    l = l * raise(m, top) + state.y * raise(state.x, top);
    m = top;
  }
  states[at] = {m, l > 0 ? 1 / l : 0};
  if (p.lse == nullptr) return;
  const int group = p.n_heads / p.n_kv_heads, query = at % n_queries(p);
  p.lse[query / group * p.n_heads + at / n_queries(p) * group + query % group] =
      (m + log2f(l)) * kLn2;
}

/// Votes of a page's keys: block (page, KV head).
template <class T>
__global__ void __launch_bounds__(kThreads) sum_votes(const KeyVotesCudaParams p) {
  __shared__ Tiles tiles;
  __shared__ float sums[kSide][kTile];
  cuda::start_after_previous();
  const int page = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide, n = n_queries(p);
  const float2* states = static_cast<const float2*>(p.scratch) + static_cast<int64_t>(kv_head) * n;
  float vote[kEach] = {};
  for (int first_query = 0; first_query < n; first_query += kTile) {
    float score[kEach][kEach];
    score_tile<T>(p, tiles, kv_head, first_query, page, score);
    for (int i = 0; i < kEach; ++i) {
      const int query = first_query + y + i * kSide;
      if (query >= n) continue;
      const float2 state = states[query];
      for (int j = 0; j < kEach; ++j) vote[j] = fmaf(raise(score[i][j], state.x), state.y, vote[j]);
    }
  }
  for (int j = 0; j < kEach; ++j) sums[y][x + j * kSide] = vote[j];
  __syncthreads();
  const int key = static_cast<int>(threadIdx.x), token = page * kPageTokens + key;
  if (key >= kTile || token >= n_tokens(p)) return;
  float sum = 0;
  for (const auto& row : sums) sum += row[key];
  p.votes[kv_head * p.vote_stride + token] = sum;
}

}  // namespace

void key_votes_cuda(const KeyVotesCudaParams& p, Stream stream) {
  const int tokens = p.first_position + p.n_positions;
  const int n = p.n_positions * (p.n_heads / p.n_kv_heads);
  const int n_splits = (tokens + kVoteSplitTokens - 1) / kVoteSplitTokens;
  const auto count = [](int x) { return static_cast<unsigned>(x); };
  const auto heads = count(p.n_kv_heads);
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    cuda::launch(vote_states<T>, dim3(count(n_splits), count((n + kTile - 1) / kTile), heads),
                 kThreads, stream, p);
    cuda::launch(join_states, dim3(cuda::blocks_for(int64_t{n} * p.n_kv_heads, kThreads)), kThreads,
                 stream, p, n_splits);
    cuda::launch(sum_votes<T>, dim3(count((tokens + kPageTokens - 1) / kPageTokens), heads),
                 kThreads, stream, p);
  });
}

}  // namespace tandem
