#include <cuda_runtime.h>

#include "kernels/attention/few_rows_mma.cuh"
#include "kernels/attention/few_rows_plain.cuh"
#include "kernels/cuda/tensor_map.h"

namespace tandem {
namespace {

int multiprocessors() {
  static const int n = [] {
    int device = 0, count = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
        count < 1)
      return 1;
    return count;
  }();
  return n;
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <int kDim, int kQueryTiles>
void launch_mma(const FewRowsCall& call, cudaStream_t stream) {
  using Shape = MmaShape<kDim, kQueryTiles>;
  // No call can tell how many pages a pool has: the map is as tall as 32-bit coordinates allow, and
  // only pages of the table are read.
  constexpr int64_t kRows = int64_t{1} << 31;
  const CUtensorMap k = cuda::swizzled_map(call.params.k_pool, kRows, kDim, Shape::kKeys),
                    v = cuda::swizzled_map(call.params.v_pool, kRows, kDim, Shape::kKeys);
  const MmaMemory memory = mma_memory<Shape>(call.rule);
  const auto kernel = few_rows_mma<kDim, kQueryTiles>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory.total_bytes);
  cuda::launch(kernel, static_cast<unsigned>(multiprocessors()), Shape::kThreads,
               static_cast<size_t>(memory.total_bytes), 1, Stream{stream}, call, memory, k, v);
}

template <int kDim>
void launch_mma(const FewRowsCall& call, cudaStream_t stream) {
  switch (call.rule.tile_queries) {
    case 16:
      return launch_mma<kDim, 1>(call, stream);
    case 32:
      return launch_mma<kDim, 2>(call, stream);
    default:
      return launch_mma<kDim, 4>(call, stream);
  }
}

template <class T>
void launch_plain(const FewRowsCall& call, cudaStream_t stream) {
  const int bytes = plain_shared_bytes(call.params.head_dim);
  cudaFuncSetAttribute(few_rows_plain<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  few_rows_plain<T><<<multiprocessors(), kPlainThreads, bytes, stream>>>(call);
}

}  // namespace

void attention_few_rows_cuda(const AttentionParams& p, const AttentionLaunch& launch,
                             Stream stream) {
  if (p.n_seqs == 0) return;
  const bool plain = p.dtype != DType::bf16 || (p.head_dim != 64 && p.head_dim != 128) ||
                     !aligned(p.q) || !aligned(p.out) || !aligned(p.k_pool) || !aligned(p.v_pool);
  const FewRowsShape x{.n_seqs = p.n_seqs,
                       .n_heads = p.n_heads,
                       .n_kv_heads = p.n_kv_heads,
                       .head_dim = p.head_dim,
                       .max_rows = launch.max_rows_a_seq,
                       .max_tokens = launch.max_tokens,
                       .plain = plain,
                       .multiprocessors = multiprocessors()};
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
    p.head_dim == 64 ? launch_mma<64>(call, on) : launch_mma<128>(call, on);
}

}  // namespace tandem
