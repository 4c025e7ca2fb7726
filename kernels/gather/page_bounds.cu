#include "base/page.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/gather/list_rows.cuh"
#include "kernels/gather/page_bounds.h"

namespace tandem {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / cuda::kWarp;
constexpr int kPagesABlock = 32;

/// Block (page, KV head), a thread a channel.
template <class T>
__global__ void __launch_bounds__(kThreads) page_bounds(const PageBoundsParams p) {
  cuda::wait_for_previous();
  const int kv_head = static_cast<int>(blockIdx.y);
  const int token = p.token + static_cast<int>(blockIdx.x) * p.page;
  const int64_t row =
      (int64_t{p.pages[token / kPageTokens]} * p.n_kv_heads + kv_head) * kPageTokens +
      token % kPageTokens;
  const T* keys = static_cast<const T*>(p.k_pool) + row * p.d;
  float* const lo = p.bounds + kv_head * p.head_stride + int64_t{blockIdx.x} * 2 * p.d;
  for (int c = static_cast<int>(threadIdx.x); c < p.d; c += kThreads) {
    float least = cuda::to_float(keys[c]), most = least;
    for (int t = 1; t < p.page; ++t) {
      const float x = cuda::to_float(keys[int64_t{t} * p.d + c]);
      least = fminf(least, x);
      most = fmaxf(most, x);
    }
    lo[c] = least;
    lo[p.d + c] = most;
  }
}

/// Block (pages, KV head, row), a warp a page: a lane has every 32nd channel, kOwn at most.
template <class T, int kOwn>
__global__ void __launch_bounds__(kThreads) score_pages(const ScorePagesParams p) {
  extern __shared__ float q[];  // [group, d]
  cuda::wait_for_previous();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % cuda::kWarp;
  const int kv_head = static_cast<int>(blockIdx.y), group = p.n_heads / p.n_kv_heads;
  const ChoosingRow row(p.choosing, static_cast<int>(blockIdx.z));
  const int n = row.exists() ? p.ends[row.slot] / p.page : 0;
  const int64_t list = int64_t{blockIdx.z} * p.n_heads + kv_head * group;
  for (int h = thread; blockIdx.x == 0 && h < group; h += kThreads) {
    p.n[list + h] = n;
    const int wanted =
        n == 0 ? 0 : static_cast<int>(p.ratio * (p.choosing.pos[row.number] + 1) / p.page);
    p.m[list + h] = n == 0 ? 0 : min(max(wanted, 1), n);
  }
  const int first = static_cast<int>(blockIdx.x) * kPagesABlock;
  if (first >= n) return;
  const T* own =
      static_cast<const T*>(p.q) + (int64_t{row.number} * p.n_heads + kv_head * group) * p.d;
  for (int i = thread; i < group * p.d; i += kThreads) q[i] = cuda::to_float(own[i]);
  __syncthreads();
  const int end = min(first + kPagesABlock, n);
  for (int page = first + thread / cuda::kWarp; page < end; page += kWarps) {
    const int block = p.blocks[int64_t{row.slot} * p.max_blocks + page / p.block_pages];
    const float* lo = p.bounds + block * p.block_stride + kv_head * p.head_stride +
                      int64_t{page % p.block_pages} * 2 * p.d;
    float least[kOwn], most[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int c = i * cuda::kWarp + lane;
      least[i] = c < p.d ? lo[c] : 0;
      most[i] = c < p.d ? lo[p.d + c] : 0;
    }
    for (int h = 0; h < group; ++h) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int c = i * cuda::kWarp + lane;
        const float x = c < p.d ? q[h * p.d + c] : 0;
        sum += fmaxf(x * least[i], x * most[i]);
      }
      sum = cuda::warp_sum(sum);
      if (lane == 0) p.scores[(list + h) * p.score_stride + page] = sum;
    }
  }
}

}  // namespace

void page_bounds_cuda(const PageBoundsParams& p, Stream stream) {
  if (p.n == 0) return;
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    cuda::launch(page_bounds<T>,
                 dim3(static_cast<unsigned>(p.n), static_cast<unsigned>(p.n_kv_heads)), kThreads,
                 stream, p);
  });
}

void score_pages_cuda(const ScorePagesParams& p, Stream stream) {
  const int n_rows = p.choosing.rows.end - p.choosing.rows.begin;
  if (n_rows == 0) return;
  const dim3 grid(cuda::blocks_for(p.max_n, kPagesABlock), static_cast<unsigned>(p.n_kv_heads),
                  static_cast<unsigned>(n_rows));
  const size_t bytes = sizeof(float) * static_cast<size_t>(p.n_heads / p.n_kv_heads * p.d);
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto kernel = p.d <= 4 * cuda::kWarp   ? score_pages<T, 4>
                        : p.d <= 8 * cuda::kWarp ? score_pages<T, 8>
                                                 : score_pages<T, 32>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
    cuda::launch(kernel, grid, kThreads, bytes, 1, stream, p);
  });
}

}  // namespace tandem
