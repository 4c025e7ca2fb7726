#include <cuda_runtime.h>

#include "kernels/attention/few_rows_plain.cuh"
#include "kernels/cuda/gpu.h"

namespace tandem {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <class T>
void launch_plain(const FewRowsCall& call, cudaStream_t stream) {
  const int bytes = plain_shared_bytes(call.params.head_dim);
  cudaFuncSetAttribute(few_rows_plain<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  few_rows_plain<T><<<cuda::gpu().multiprocessors, kPlainThreads, bytes, stream>>>(call);
}

constexpr int kJoinThreads = 256;

/// The largest of the tiles' scores: block (pairs of keys, KV head, sequence).
__global__ void __launch_bounds__(kJoinThreads)
    join_scores(const __grid_constant__ FewRowsCall call) {
  cuda::start_after_previous();
  const AttentionParams& p = call.params;
  const int head = static_cast<int>(blockIdx.y), s = static_cast<int>(blockIdx.z);
  const int n_rows = p.row_begin[s + 1] - p.row_begin[s];
  const int pair = static_cast<int>(blockIdx.x * kJoinThreads + threadIdx.x);
  if (n_rows == 0 || 2 * pair >= p.base[s]) return;
  const int tiles = (n_rows * call.rule.group - 1) / call.rule.tile_queries + 1;
  const f16* from = call.scores.at + s * call.scores.row_stride + head * call.scores.head_stride;
  uint32_t most = reinterpret_cast<const uint32_t*>(from)[pair];
  for (int tile = 1; tile < tiles; ++tile) {
    from += call.scores.tile_stride;
    most = cuda::max_f16(most, reinterpret_cast<const uint32_t*>(from)[pair]);
  }
  reinterpret_cast<uint32_t*>(scores_of(p.scores, table_row(p, s), head))[pair] = most;
}

TileScores tile_scores(const AttentionParams& p, const FewRowsShape& x, const SplitRule& rule,
                       void* workspace) {
  if (!x.scores) return {};
  if (rule.max_tiles == 1)
    return {p.scores.at, p.scores.row_stride, p.scores.head_stride, 0, false};
  const int64_t tokens = few_rows_score_stride(x);
  return {static_cast<f16*>(workspace), tokens * rule.max_tiles * p.n_kv_heads,
          tokens * rule.max_tiles, tokens, true};
}

}  // namespace

void attention_few_rows(const AttentionParams& p, const AttentionLaunch& launch, Stream stream,
                        FewRowsMma mma) {
  if (p.n_seqs == 0) return;
  const bool compiled = p.head_dim == 64 || p.head_dim == 128 || p.head_dim == 256;
  const bool plain = p.dtype != DType::bf16 || !compiled || !aligned(p.q) || !aligned(p.out) ||
                     !aligned(p.k_pool) || !aligned(p.v_pool) || !aligned(p.lists.k_pool) ||
                     !aligned(p.lists.v_pool);
  const FewRowsShape x{.n_seqs = p.n_seqs,
                       .n_heads = p.n_heads,
                       .n_kv_heads = p.n_kv_heads,
                       .head_dim = p.head_dim,
                       .max_rows = launch.max_rows_a_seq,
                       .max_tokens = launch.max_tokens,
                       .plain = plain,
                       .multiprocessors = cuda::gpu().multiprocessors,
                       .lists = p.lists.bounds_keys(),
                       .window = p.window > 0,
                       .scores = p.scores.at != nullptr};
  const SplitRule rule = split_rule(x);
  char* const chunk_o = static_cast<char*>(launch.workspace) + few_rows_ml_bytes(x, rule);
  const FewRowsCall call{.params = p,
                         .rule = rule,
                         .keys_settled = launch.keys_settled,
                         .taken = static_cast<unsigned*>(launch.counters),
                         .done = static_cast<unsigned*>(launch.counters) + 1,
                         .chunk_ml = static_cast<float2*>(launch.workspace),
                         .chunk_o = reinterpret_cast<float*>(chunk_o),
                         .scores = tile_scores(p, x, rule, chunk_o + few_rows_o_bytes(x, rule))};
  const auto on = static_cast<cudaStream_t>(stream.handle);
  if (plain)
    p.dtype == DType::bf16 ? launch_plain<__nv_bfloat16>(call, on) : launch_plain<float>(call, on);
  else
    mma(call, on);
  if (!x.scores || rule.max_tiles == 1) return;
  cuda::launch(join_scores,
               dim3(cuda::blocks_for((launch.max_tokens + 1) / 2, kJoinThreads),
                    static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_seqs)),
               kJoinThreads, stream, call);
}

}  // namespace tandem
