#include <cuda_runtime.h>

#include "kernels/attention/few_rows_bodies.cuh"
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

}  // namespace

void attention_few_rows(const AttentionParams& p, const AttentionLaunch& launch, Stream stream,
                        FewRowsMma mma) {
  if (p.n_seqs == 0) return;
  const bool plain = p.dtype != DType::bf16 || (p.head_dim != 64 && p.head_dim != 128) ||
                     !aligned(p.q) || !aligned(p.out) || !aligned(p.k_pool) || !aligned(p.v_pool) ||
                     !aligned(p.lists.k_pool) || !aligned(p.lists.v_pool);
  const FewRowsShape x{.n_seqs = p.n_seqs,
                       .n_heads = p.n_heads,
                       .n_kv_heads = p.n_kv_heads,
                       .head_dim = p.head_dim,
                       .max_rows = launch.max_rows_a_seq,
                       .max_tokens = launch.max_tokens,
                       .plain = plain,
                       .multiprocessors = cuda::gpu().multiprocessors,
                       .lists = p.lists.ids != nullptr};
  const SplitRule rule = split_rule(x);
  const FewRowsCall call{.params = p,
                         .rule = rule,
                         .keys_settled = launch.keys_settled,
                         .taken = static_cast<unsigned*>(launch.counters),
                         .done = static_cast<unsigned*>(launch.counters) + 1,
                         .chunk_ml = static_cast<float2*>(launch.workspace),
                         .chunk_o = reinterpret_cast<float*>(static_cast<char*>(launch.workspace) +
                                                             few_rows_ml_bytes(x, rule))};
  const auto on = static_cast<cudaStream_t>(stream.handle);
  if (plain)
    p.dtype == DType::bf16 ? launch_plain<__nv_bfloat16>(call, on) : launch_plain<float>(call, on);
  else
    mma(call, on);
}

}  // namespace tandem
