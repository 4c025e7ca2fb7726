#pragma once
// Attention of few rows for any head_dim up to 256 and for f32: plain loads, products in f32.
#include "base/log2.h"
#include "kernels/attention/few_rows_scores.cuh"
#include "kernels/attention/few_rows_state.cuh"
#include "kernels/attention/visibility.cuh"

namespace tandem {

constexpr int kPlainThreads = 256;

/// Shared memory: q and o of a tile, and its scores of a page.
inline int plain_shared_bytes(int d) {
  return (2 * kPlainQueries * d + kPlainQueries * kPageTokens) * static_cast<int>(sizeof(float));
}

/// The row of the pools, or of the lists', that holds key `key` of a page that starts at `first`,
/// or of those 64 of a list; -1 if there is none.
__device__ inline int64_t plain_row(const AttentionParams& p, const Chunk& k, bool of_list,
                                    int first, int key, int written) {
  if (key >= written) return -1;
  const int32_t* list = list_of(p.lists, table_row(p, k.seq), k.kv_head);
  const bool own_page = of_list && p.lists.paged();
  const int token = of_list && !own_page ? listed_token(p.lists, list, first + key) : first + key;
  const int page = (own_page ? list : pages_of(p, k.seq))[token / kPageTokens];
  if (page < 0) return -1;
  return (static_cast<int64_t>(page) * p.n_kv_heads + k.kv_head) * kPageTokens +
         token % kPageTokens;
}

/// Leaves the scores of the page that starts at slot `first`, of which a tile's products are in
/// `score`, in exponents of 2.
__device__ inline void plain_scores(const FewRowsCall& call, const Chunk& k, const float* off,
                                    const float* score, int n_queries, int first, int committed) {
  const int key = static_cast<int>(threadIdx.x);
  if (key >= kPageTokens || first + key >= committed) return;
  float most = -INFINITY;
  for (int q = 0; q < n_queries; ++q)
    most = fmaxf(most, fmaf(score[q * kPageTokens + key], kLn2, off[q]));
  scores_of(call, k)[first + key].bits = static_cast<uint16_t>(cuda::pack_f16(most, 0));
}

template <class T>
__global__ void __launch_bounds__(kPlainThreads, 2)
    few_rows_plain(const __grid_constant__ FewRowsCall call) {
  constexpr int kWarps = kPlainThreads / cuda::kWarp,
                kEach = kPlainQueries * kPageTokens / kPlainThreads;
  extern __shared__ float plain_shared[];
  __shared__ float2 ml[kPlainQueries];
  __shared__ float shrink[kPlainQueries];
  __shared__ uint64_t sees[kPlainQueries];
  __shared__ float off[kPlainQueries];
  __shared__ int64_t rows[kPageTokens];  // of the pools, of a page's keys; -1: none
  const AttentionParams& p = call.params;
  const SplitRule& rule = call.rule;
  const int d = p.head_dim, group = rule.group, thread = static_cast<int>(threadIdx.x);
  const int warp = thread / cuda::kWarp, lane = thread % cuda::kWarp;
  float *q = plain_shared, *o = q + kPlainQueries * d, *score = o + kPlainQueries * d;
  const PartStates parts{o, ml, 1, kPlainQueries, d, d};
  const float to_log2 = p.scale * kLog2E;
  ChunkList chunks(p, rule);
  SeqView v;
  Chunk k;
  for (int number = static_cast<int>(blockIdx.x); chunks.find(number, v, k);
       number += static_cast<int>(gridDim.x)) {
    const int first_query = k.tile * kPlainQueries;
    const int n_queries = min(v.n_rows * group - first_query, kPlainQueries);
    for (int e = thread; e < kPlainQueries * d; e += kPlainThreads) {
      const int query = first_query + e / d;
      const int64_t at = static_cast<int64_t>(v.first_row + query / group) * p.n_heads +
                         k.kv_head * group + query % group;
      q[e] = e < n_queries * d ? cuda::to_float(static_cast<const T*>(p.q)[at * d + e % d]) : 0.0f;
      o[e] = 0;
    }
    if (thread < kPlainQueries) ml[thread] = {-INFINITY, 0};
    if (call.scores.at != nullptr && thread < kPlainQueries)
      off[thread] = score_off(p, k, first_query + thread, thread < n_queries);
    __syncthreads();
    for (int i = k.begin; i < k.end; ++i) {
      const bool of_list = i < v.pages.listed;
      const int first = of_list ? i * kPageTokens : v.pages.page(i) * kPageTokens;
      const int end = of_list ? listed_tokens(p.lists, table_row(p, k.seq), k.kv_head) : v.end;
      const int written = min(end - first, kPageTokens);
      if (thread < kPageTokens) rows[thread] = plain_row(p, k, of_list, first, thread, written);
      if (thread < n_queries)
        sees[thread] = of_list ? slot_bits(first, 0, end)
                               : visible_slots(p, v, (first_query + thread) / group, first);
      __syncthreads();
      // A thread has one key and every fourth query.
      const int key = thread % kPageTokens, first_q = thread / kPageTokens;
      const bool there = rows[key] >= 0;
      const bool own_page = of_list && p.lists.paged();
      const T* row =
          static_cast<const T*>(own_page ? p.lists.k_pool : p.k_pool) + (there ? rows[key] * d : 0);
      float dot[kEach] = {};
      for (int c = 0; c < d; ++c) {
        const float x = cuda::to_float(row[c]);
#pragma unroll
        for (int e = 0; e < kEach; ++e)
          dot[e] = fmaf(x, q[(first_q + e * (kPlainThreads / kPageTokens)) * d + c], dot[e]);
      }
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const int at = first_q + e * (kPlainThreads / kPageTokens);
        const bool seen = there && at < n_queries && ((sees[at] >> key) & 1) != 0;
        score[at * kPageTokens + key] = seen ? dot[e] * to_log2 : -INFINITY;
      }
      __syncthreads();
      if (call.scores.at != nullptr) {
        plain_scores(call, k, off, score, n_queries, first, v.committed);
        __syncthreads();
      }
      for (int at = warp; at < kPlainQueries; at += kWarps) {
        float* s = score + at * kPageTokens;
        const float a = s[lane], b = s[lane + cuda::kWarp], before = ml[at].x;
        const float m = fmaxf(before, cuda::warp_max(fmaxf(a, b))),
                    base = m == -INFINITY ? 0.0f : m;
        const float pa = exp2f(a - base), pb = exp2f(b - base), sum = cuda::warp_sum(pa + pb);
        s[lane] = pa, s[lane + cuda::kWarp] = pb;
        __syncwarp();
        if (lane == 0) {
          shrink[at] = exp2f(before - base);
          ml[at] = {m, ml[at].y * shrink[at] + sum};
        }
        __syncwarp();
      }
      __syncthreads();
      for (int e = thread; e < n_queries * d; e += kPlainThreads) {
        const int at = e / d;
        const T* value = static_cast<const T*>(own_page ? p.lists.v_pool : p.v_pool) + e % d;
        float sum = 0;
        for (int t = 0; t < written; ++t)
          if (rows[t] >= 0)
            sum = fmaf(score[at * kPageTokens + t], cuda::to_float(value[rows[t] * d]), sum);
        o[e] = fmaf(o[e], shrink[at], sum);
      }
      __syncthreads();
    }
    finish_chunk<kPlainThreads, 1>(call, v, k, n_queries, parts, thread, [](int) {});
    __syncthreads();
  }
}

}  // namespace tandem
