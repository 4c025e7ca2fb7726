#pragma once
// Softmax states of attention of few rows: where warps leave theirs, how a block joins them, and
// how the last block of a pair joins the chunks. Exponents are in base 2: a state is m = max of the
// scores times scale * log2(e), l = sum of 2^(score - m) and o = sum of 2^(score - m) v.
#include <math.h>

#include "kernels/attention/few_rows_split.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {

/// One launch, as its kernels see it.
struct FewRowsCall {
  AttentionParams params;
  SplitRule rule;
  unsigned*
      counters;  // [n_seqs, Hkv, max_tiles] chunks of a pair that are done; all zero between calls
  float2* chunk_ml;  // [n_seqs, Hkv, max_tiles, max_chunks, rule.queries] m and l
  float* chunk_o;    // [..., rule.queries, d]
};

/// States of the parts of a block, in shared memory.
struct PartStates {
  float* o;      // [parts][queries][pitch]
  float2* ml;    // [parts][queries]
  float* scale;  // [queries][rule.max_chunks], for the join of chunks; may lie over o
  int parts, queries, pitch;
};

constexpr int kMostChunks = 256;  // of a pair
constexpr int kWorkBarrier = 1;   // of the threads that compute; 0 is __syncthreads

template <int kThreads>
__device__ inline void sync_workers() {
  asm volatile("bar.sync %0, %1;" ::"n"(kWorkBarrier), "n"(kThreads) : "memory");
}

/// 2^(m - most), for states without keys (-inf) too.
__device__ inline float state_weight(float m, float most) {
  return m == -INFINITY ? 0.0f : cuda::exp2_fast(m - most);
}

/// Writes one query's elements [c, c + kEach) and, with the first of them, its lse.
template <int kEach>
__device__ void write_out(const AttentionParams& p, const SeqView& v, int kv_head, int query, int c,
                          const float (&o)[kEach], float m, float l) {
  const int group = p.n_heads / p.n_kv_heads;
  const int64_t at = static_cast<int64_t>(v.first_row + query / group) * p.n_heads +
                     kv_head * group + query % group;
  const float share = l > 0 ? 1.0f / l : 0.0f;
  const int64_t first = at * p.head_dim + c;
  if (p.out_dtype == DType::f32) {
    struct alignas(kEach * 4) Out {
      float at[kEach];
    } out;
    for (int e = 0; e < kEach; ++e) out.at[e] = l > 0 ? o[e] * share : 0.0f;
    *reinterpret_cast<Out*>(static_cast<float*>(p.out) + first) = out;
  } else {
    struct alignas(kEach * 2) Out {
      __nv_bfloat16 at[kEach];
    } out;
    for (int e = 0; e < kEach; ++e) out.at[e] = __float2bfloat16_rn(l > 0 ? o[e] * share : 0.0f);
    *reinterpret_cast<Out*>(static_cast<__nv_bfloat16*>(p.out) + first) = out;
  }
  constexpr float kLn2 = 0.693147180559945309f;
  if (c == 0 && p.lse != nullptr) p.lse[at] = l > 0 ? (m + log2f(l)) * kLn2 : -INFINITY;
}

/// Joins the states of all chunks of a pair in their order and writes the result.
template <int kThreads, int kEach>
__device__ void join_chunks(const FewRowsCall& call, const SeqView& v, const Chunk& k, int64_t pair,
                            int n_queries, const PartStates& parts, int thread) {
  const SplitRule& rule = call.rule;
  const int d = call.params.head_dim, lane = thread % cuda::kWarp;
  const float2* ml = call.chunk_ml + pair * rule.max_chunks * rule.queries;
  for (int q = thread / cuda::kWarp; q < n_queries; q += kThreads / cuda::kWarp) {
    float m = -INFINITY, l = 0;
    for (int i = lane; i < k.n_chunks; i += cuda::kWarp)
      m = fmaxf(m, __ldcg(&ml[i * rule.queries + q]).x);
    m = cuda::warp_max(m);
    for (int i = lane; i < k.n_chunks; i += cuda::kWarp) {
      const float2 state = __ldcg(&ml[i * rule.queries + q]);
      const float w = state_weight(state.x, m);
      parts.scale[q * rule.max_chunks + i] = w;
      l += w * state.y;
    }
    l = cuda::warp_sum(l);
    if (lane == 0) parts.ml[q] = {m, l};
  }
  sync_workers<kThreads>();
  struct alignas(kEach * 4) Piece {
    float at[kEach];
  };
  const int pieces = d / kEach;
  for (int e = thread; e < n_queries * pieces; e += kThreads) {
    const int q = e / pieces, c = e % pieces * kEach;
    const float* from = call.chunk_o + (pair * rule.max_chunks * rule.queries + q) * d + c;
    const int64_t step = static_cast<int64_t>(rule.queries) * d;
    float o[kEach] = {};
#pragma unroll 8
    for (int i = 0; i < k.n_chunks; ++i) {
      Piece piece;
      if constexpr (kEach == 4)
        *reinterpret_cast<float4*>(&piece) =
            __ldcg(reinterpret_cast<const float4*>(from + i * step));
      else
        piece.at[0] = __ldcg(from + i * step);
      const float w = parts.scale[q * rule.max_chunks + i];
#pragma unroll
      for (int x = 0; x < kEach; ++x) o[x] = fmaf(w, piece.at[x], o[x]);
    }
    const float2 total = parts.ml[q];
    write_out(call.params, v, k.kv_head, k.tile * rule.tile_queries + q, c, o, total.x, total.y);
  }
}

/// Joins the parts of a block, which all working threads have left in shared memory. The state
/// becomes the result, or a chunk's; the block that leaves a pair's last chunk joins them.
/// Afterwards the shared memory is free again.
template <int kThreads, int kEach>
__device__ void finish_chunk(const FewRowsCall& call, const SeqView& v, const Chunk& k,
                             int n_queries, const PartStates& parts, int thread) {
  __shared__ bool is_last;
  struct alignas(kEach * 4) Piece {
    float at[kEach];
  };
  const SplitRule& rule = call.rule;
  const int d = call.params.head_dim, pieces = d / kEach;
  const int64_t pair =
      (static_cast<int64_t>(k.seq) * call.params.n_kv_heads + k.kv_head) * rule.max_tiles + k.tile;
  const int64_t slot = (pair * rule.max_chunks + k.index) * rule.queries;
  sync_workers<kThreads>();
  for (int e = thread; e < n_queries * pieces; e += kThreads) {
    const int q = e / pieces, c = e % pieces * kEach;
    float m = -INFINITY, l = 0, o[kEach] = {};
    for (int i = 0; i < parts.parts; ++i) m = fmaxf(m, parts.ml[i * parts.queries + q].x);
    for (int i = 0; i < parts.parts; ++i) {
      const float2 state = parts.ml[i * parts.queries + q];
      const float w = state_weight(state.x, m);
      const Piece piece =
          *reinterpret_cast<const Piece*>(parts.o + (i * parts.queries + q) * parts.pitch + c);
      l = fmaf(w, state.y, l);
#pragma unroll
      for (int x = 0; x < kEach; ++x) o[x] = fmaf(w, piece.at[x], o[x]);
    }
    if (k.n_chunks == 1) {
      write_out(call.params, v, k.kv_head, k.tile * rule.tile_queries + q, c, o, m, l);
    } else {
      Piece piece;
      for (int x = 0; x < kEach; ++x) piece.at[x] = o[x];
      *reinterpret_cast<Piece*>(call.chunk_o + (slot + q) * d + c) = piece;
      if (c == 0) call.chunk_ml[slot + q] = {m, l};
    }
  }
  sync_workers<kThreads>();
  if (k.n_chunks == 1) return;
  if (thread == 0) {
    __threadfence();  // for the whole block, which the barrier has put before it
    is_last = atomicAdd(&call.counters[pair], 1u) == static_cast<unsigned>(k.n_chunks) - 1;
    if (is_last) call.counters[pair] = 0;  // for the next call
    __threadfence();
  }
  sync_workers<kThreads>();
  if (!is_last) return;
  join_chunks<kThreads, kEach>(call, v, k, pair, n_queries, parts, thread);
  sync_workers<kThreads>();
}

}  // namespace tandem
