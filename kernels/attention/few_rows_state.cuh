#pragma once
// Softmax states of attention of few rows: where warps leave theirs, how a block joins them, and
// how the last block of a pair joins the chunks. Exponents are in base 2: a state is m = max of the
// scores times scale * log2(e), l = sum of 2^(score - m) and o = sum of 2^(score - m) v.
#include <cuda_runtime.h>
#include <math.h>

#include "base/log2.h"
#include "kernels/attention/few_rows_split.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {

/// Where the scores of keys go that a call wants, by tile: with one tile a pair to where the call
/// wants them, with more into the workspace, from where the largest are taken.
struct TileScores {
  f16* at;  // null: not wanted
  int64_t row_stride, head_stride, tile_stride;
  bool by_sequence;  // rows are sequences, not rows of the page table
};

/// One launch, as its kernels see it.
struct FewRowsCall {
  AttentionParams params;
  SplitRule rule;
  bool keys_settled;  // as in AttentionLaunch
  unsigned* taken;    // [1] chunks that blocks took beyond their first; zero between calls
  unsigned* done;     // [n_seqs, Hkv, max_tiles] chunks of a pair that are done; likewise
  float2* chunk_ml;   // [n_seqs, Hkv, max_tiles, max_chunks, rule.queries] m and l
  float* chunk_o;     // [..., rule.queries, d]
  TileScores scores;
};

constexpr int kLeastColumns = 32;  // of a slice

/// States of the parts of a block, in shared memory: of o a slice at a time.
struct PartStates {
  float* o;    // [parts][queries][pitch]
  float2* ml;  // [parts][queries]
  int parts, queries, columns, pitch;
};

constexpr int kWorkBarrier = 1;  // of the threads that compute; 0 is __syncthreads

template <int kThreads>
__device__ inline void sync_workers() {
  asm volatile("bar.sync %0, %1;" ::"n"(kWorkBarrier), "n"(kThreads) : "memory");
}

/// A load past L1, which may hold an older call's value.
template <class T>
__device__ inline T load_uncached(const void* from) {
  if constexpr (sizeof(T) == 32) {
    const auto* halves = static_cast<const float4*>(from);
    const float4 x[2] = {__ldcg(halves), __ldcg(halves + 1)};
    return reinterpret_cast<const T&>(x);
  } else if constexpr (sizeof(T) == 16) {
    const float4 x = __ldcg(static_cast<const float4*>(from));
    return reinterpret_cast<const T&>(x);
  } else if constexpr (sizeof(T) == 8) {
    const float2 x = __ldcg(static_cast<const float2*>(from));
    return reinterpret_cast<const T&>(x);
  } else {
    const float x = __ldcg(static_cast<const float*>(from));
    return reinterpret_cast<const T&>(x);
  }
}

/// Adds to a counter in device memory; writes that this thread has seen are visible to any thread
/// that sees the sum.
__device__ inline unsigned add_synchronising(unsigned* to, unsigned n) {
  unsigned before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(to), "r"(n)
               : "memory");
  return before;
}

/// 2^(m - most), for states without keys (-inf) too.
__device__ inline float state_weight(float m, float most) {
  return m == -INFINITY ? 0.0f : cuda::exp2_fast(m - most);
}

/// Whose queries a pair holds.
struct PairQueries {
  int first_row;  // of the sequence
  int kv_head;
  int first, n;  // row x head of the group
};

/// head_dim, by pieces of which threads work: a piece a lane, or of one element for any number.
template <int kEach>
__device__ int head_dim_of(const FewRowsCall& call) {
  return kEach > 1 ? kEach * cuda::kWarp : call.params.head_dim;
}

/// Writes elements [c, c + kEach) of the pair's query q and, with the first of them, its lse.
template <int kEach>
__device__ void write_out(const FewRowsCall& call, const PairQueries& who, int q, int c,
                          const float (&o)[kEach], float m, float l) {
  const AttentionParams& p = call.params;
  const int group = call.rule.group, query = who.first + q;
  const int64_t at = static_cast<int64_t>(who.first_row + query / group) * p.n_heads +
                     who.kv_head * group + query % group;
  const float share = l > 0 ? __fdividef(1.0f, l) : 0.0f;  // 2 ulp
  const int64_t first = at * head_dim_of<kEach>(call) + c;
  if (p.out_dtype == DType::f32) {
    struct alignas(kEach * 4) Out {
      float at[kEach];
    } out;
    for (int e = 0; e < kEach; ++e) out.at[e] = o[e] * share;
    *reinterpret_cast<Out*>(static_cast<float*>(p.out) + first) = out;
  } else {
    struct alignas(kEach * 2) Out {
      __nv_bfloat16 at[kEach];
    } out;
    for (int e = 0; e < kEach; ++e) out.at[e] = __float2bfloat16_rn(o[e] * share);
    *reinterpret_cast<Out*>(static_cast<__nv_bfloat16*>(p.out) + first) = out;
  }
  if (c == 0 && p.lse != nullptr) p.lse[at] = l > 0 ? (m + log2f(l)) * kLn2 : -INFINITY;
}

/// Joins the states of all chunks of a pair in their order and writes the result: one warp a query.
/// Inline, for else the call's parameters would be read from memory, which takes longer than all of
/// this.
template <int kThreads, int kEach>
__device__ __forceinline__ void join_chunks(const FewRowsCall& call, const PairQueries& who,
                                            int64_t pair, int n, int thread) {
  constexpr int kWarps = kThreads / cuda::kWarp;
  // Loads under way, the first before their weights are known.
  constexpr int kAhead = kEach > 4 ? 8 : 16;
  __shared__ float weights[kWarps][kMostChunks];  // m first
  struct alignas(kEach * 4) Piece {
    float at[kEach];
  };
  const SplitRule& rule = call.rule;
  const int d = head_dim_of<kEach>(call), lane = thread % cuda::kWarp;
  const int step = rule.queries * d;
  const int padded = (n + kAhead - 1) / kAhead * kAhead;
  float* const weight = weights[thread / cuda::kWarp];
#pragma unroll 1
  for (int q = thread / cuda::kWarp; q < who.n; q += kWarps) {
    const float2* ml = call.chunk_ml + pair * rule.max_chunks * rule.queries + q;
    const float* from = call.chunk_o + (pair * rule.max_chunks * rule.queries + q) * d;
    float m = -INFINITY, l = 0;
#pragma unroll 1
    for (int c = lane * kEach; c - lane * kEach < d; c += cuda::kWarp * kEach) {
      float o[kEach] = {};
#pragma unroll 1
      for (int begin = 0; begin < n; begin += kAhead) {
        Piece piece[kAhead];
        const float* next = from + begin * step + min(c, d - kEach);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          piece[i] = load_uncached<Piece>(next);
          if (begin + i + 1 < n) next += step;  // after the last chunk weights are zero
        }
        if (c == lane * kEach && begin == 0) {
          __syncwarp();           // of the query before
          float own = -INFINITY;  // the lane's m, to which its l belongs
#pragma unroll 1
          for (int i = lane; i < padded; i += cuda::kWarp) {
            float2 state{-INFINITY, 0};
            if (i < n) state = load_uncached<float2>(ml + i * rule.queries);
            m = fmaxf(own, state.x);
            l = fmaf(l, state_weight(own, m), state.y * state_weight(state.x, m));
            own = m;
            weight[i] = state.x;
          }
          m = cuda::warp_max(own);
          l = cuda::warp_sum(l * state_weight(own, m));
#pragma unroll 1
          for (int i = lane; i < padded; i += cuda::kWarp) weight[i] = state_weight(weight[i], m);
          __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
#pragma unroll
          for (int x = 0; x < kEach; ++x) o[x] = fmaf(weight[begin + i], piece[i].at[x], o[x]);
      }
      if (c < d) write_out(call, who, q, c, o, m, l);
    }
  }
}

/// Joins the parts of a block, of which put(first) leaves the slice of the columns from `first` on
/// in shared memory. The state becomes the result, or a chunk's; the block that brings a pair's
/// last chunk joins all. Afterwards the shared memory is free again.
template <int kThreads, int kEach, class Put>
__device__ void finish_chunk(const FewRowsCall& call, const SeqView& v, const Chunk& k,
                             int n_queries, const PartStates& parts, int thread, const Put& put) {
  __shared__ bool is_last;
  struct alignas(kEach * 4) Piece {
    float at[kEach];
  };
  const SplitRule& rule = call.rule;
  const int d = head_dim_of<kEach>(call), pieces = parts.columns / kEach;
  const int64_t pair =
      (static_cast<int64_t>(k.seq) * call.params.n_kv_heads + k.kv_head) * rule.max_tiles + k.tile;
  const PairQueries who{v.first_row, k.kv_head, k.tile * rule.tile_queries, n_queries};
  const int64_t slot = (pair * rule.max_chunks + k.index) * rule.queries;
#pragma unroll 1
  for (int first = 0; first < d; first += parts.columns) {
    put(first);
    sync_workers<kThreads>();
    for (int e = thread; e < n_queries * pieces; e += kThreads) {
      const int q = e / pieces, in_slice = e % pieces * kEach, c = first + in_slice;
      float m = -INFINITY, l = 0, o[kEach] = {};
      for (int i = 0; i < parts.parts; ++i) m = fmaxf(m, parts.ml[i * parts.queries + q].x);
      for (int i = 0; i < parts.parts; ++i) {
        const float2 state = parts.ml[i * parts.queries + q];
        const float w = state_weight(state.x, m);
        const Piece piece = *reinterpret_cast<const Piece*>(
            parts.o + (i * parts.queries + q) * parts.pitch + in_slice);
        l = fmaf(w, state.y, l);
#pragma unroll
        for (int x = 0; x < kEach; ++x) o[x] = fmaf(w, piece.at[x], o[x]);
      }
      if (k.n_chunks == 1) {
        write_out(call, who, q, c, o, m, l);
      } else {
        Piece piece;
        for (int x = 0; x < kEach; ++x) piece.at[x] = o[x];
        *reinterpret_cast<Piece*>(call.chunk_o + (slot + q) * d + c) = piece;
        if (c == 0) call.chunk_ml[slot + q] = {m, l};
      }
    }
    sync_workers<kThreads>();
  }
  if (k.n_chunks == 1) return;
  if (thread == 0) {
    // The barrier has put the whole block's writes before this, and puts its reads after it.
    is_last = add_synchronising(&call.done[pair], 1) + 1 == static_cast<unsigned>(k.n_chunks);
    if (is_last) call.done[pair] = 0;  // for the next call
  }
  sync_workers<kThreads>();
  if (!is_last) return;
  join_chunks<kThreads, kEach>(call, who, pair, k.n_chunks, thread);
}

/// A body's launch of bf16 with head_dim 64, 128 or 256.
using FewRowsMma = void (*)(const FewRowsCall&, cudaStream_t);

/// The call with `mma` where it takes it, else on plain multiply-adds.
void attention_few_rows(const AttentionParams&, const AttentionLaunch&, Stream, FewRowsMma mma);

}  // namespace tandem
