#include "kernels/cuda/launch.cuh"
#include "kernels/gather/list_rows.cuh"
#include "kernels/gather/row_shape.cuh"
#include "kernels/gather/score_keys.h"

namespace tandem {
namespace {

/// Block (page, KV head, row): the scores of a page's keys.
template <class S>
__global__ void __launch_bounds__(S::kThreads) score_keys(const ScoreKeysParams p) {
  using T = typename S::Number;
  extern __shared__ float q[];  // [group, d]
  cuda::wait_for_previous();
  const int thread = static_cast<int>(threadIdx.x), page = static_cast<int>(blockIdx.x);
  const int kv_head = static_cast<int>(blockIdx.y), group = p.n_heads / p.n_kv_heads;
  const ChoosingRow row(p.choosing, static_cast<int>(blockIdx.z));
  const int n = row.exists() ? p.choosing.pos[row.number] + 1 : 0;
  const int64_t list = int64_t{blockIdx.z} * p.n_heads + kv_head * group;
  for (int h = thread; page == 0 && h < group; h += S::kThreads) {
    p.n[list + h] = n;
    p.m[list + h] = n == 0 ? 0 : max(1, static_cast<int>(p.ratio * n));
  }
  const int first = page * kPageTokens, n_here = min(n - first, kPageTokens);
  if (n_here <= 0) return;
  const T* own =
      static_cast<const T*>(p.q) + (int64_t{row.number} * p.n_heads + kv_head * group) * p.d;
  for (int i = thread; i < group * p.d; i += S::kThreads) q[i] = cuda::to_float(own[i]) * p.scale;
  __syncthreads();
  const int64_t at = p.page_table[int64_t{row.slot} * p.max_pages + page];
  const T* keys =
      static_cast<const T*>(p.k_pool) + (at * p.n_kv_heads + kv_head) * kPageTokens * p.d;
  for (int begin = 0; begin < n_here; begin += S::kGroups) {
    const int key = begin + S::group();  // the lanes of a warp stay together
    typename S::Pack k[S::kPacks];
    S::load(keys + int64_t{min(key, n_here - 1)} * p.d, p.d, k);
    for (int h = 0; h < group; ++h) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < S::kOwn; ++i) {
        const int c = S::element(i / S::kSize) + i % S::kSize;
        if (c < p.d)
          dot = fmaf(q[h * p.d + c], cuda::to_float(k[i / S::kSize].at[i % S::kSize]), dot);
      }
      dot = S::sum(dot);
      if (S::lane() == 0 && key < n_here) p.scores[(list + h) * p.score_stride + first + key] = dot;
    }
  }
}

}  // namespace

void score_keys_cuda(const ScoreKeysParams& p, Stream stream) {
  const int n_rows = p.choosing.rows.end - p.choosing.rows.begin;
  if (n_rows == 0) return;
  const dim3 grid(cuda::blocks_for(p.max_tokens, kPageTokens), static_cast<unsigned>(p.n_kv_heads),
                  static_cast<unsigned>(n_rows));
  const size_t bytes = sizeof(float) * static_cast<size_t>(p.n_heads / p.n_kv_heads * p.d);
  with_row_shape(p.dtype, p.d, [&](auto shape) {
    using S = decltype(shape);
    (void)cudaFuncSetAttribute(score_keys<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
    cuda::launch(score_keys<S>, grid, S::kThreads, bytes, 1, stream, p);
  });
}

}  // namespace tandem
