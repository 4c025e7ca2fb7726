// Prefill in f32 on plain multiply-adds: exact enough to check other kernels by, and enough for
// small models. 16 queries a block, a page of keys at a time.
#include "kernels/attention/prefill_portable.cuh"

namespace tandem::portable {
namespace {

constexpr int kThreads = 256, kQueries = 16;
constexpr int kGroups =
    kThreads / kPageTokens;  // of queries, for scores: a thread has a key of each
constexpr int kEach = kQueries / kGroups;

/// A page's keys and then its values lie in the same place, so that d = 256 fits into 99 KiB.
struct Memory {
  float *q, *page, *p;         // [16, d], [64, d + 1] keys or [64, d] values, [16, 64]
  float *max, *sum, *rescale;  // [16]
  uint64_t* seen;              // [16]

  // One column more a key: threads that read one column of 64 keys then use different banks.
  static __host__ __device__ size_t floats(int d) {
    return static_cast<size_t>(kQueries * d + kPageTokens * (d + 1) + kQueries * (kPageTokens + 3));
  }
  static size_t bytes(int d) { return kQueries * sizeof(uint64_t) + floats(d) * sizeof(float); }
  __device__ Memory(unsigned char* memory, int d)
      : q(reinterpret_cast<float*>(memory + kQueries * sizeof(uint64_t))),
        page(q + kQueries * d),
        p(page + kPageTokens * (d + 1)),
        max(p + kQueries * kPageTokens),
        sum(max + kQueries),
        rescale(sum + kQueries),
        seen(reinterpret_cast<uint64_t*>(memory)) {}
};

__device__ void scores(const Memory& m, int d, float scale) {
  const int key = static_cast<int>(threadIdx.x) % kPageTokens;
  const int group = static_cast<int>(threadIdx.x) / kPageTokens;
  float dot[kEach] = {};
  for (int c = 0; c < d; ++c) {
    const float k = m.page[key * (d + 1) + c];
#pragma unroll
    for (int i = 0; i < kEach; ++i) dot[i] = fmaf(m.q[(group * kEach + i) * d + c], k, dot[i]);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int query = group * kEach + i;
    m.p[query * kPageTokens + key] = (m.seen[query] >> key) & 1 ? dot[i] * scale : -INFINITY;
  }
}

/// A warp takes queries in turn, a lane two keys.
__device__ void softmax(const Memory& m) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  for (int i = static_cast<int>(threadIdx.x) / cuda::kWarp; i < kQueries;
       i += kThreads / cuda::kWarp) {
    float* s = m.p + i * kPageTokens;
    const float a = s[lane], b = s[lane + cuda::kWarp];
    const float before = m.max[i], top = fmaxf(before, cuda::warp_max(fmaxf(a, b)));
    const float from = top == -INFINITY ? 0.0f : top;  // nothing seen so far: all weights are 0
    const float wa = expf(a - from), wb = expf(b - from);
    s[lane] = wa;
    s[lane + cuda::kWarp] = wb;
    const float part = cuda::warp_sum(wa + wb);
    __syncwarp();
    if (lane != 0) continue;
    m.rescale[i] = expf(before - from);
    m.sum[i] = m.sum[i] * m.rescale[i] + part;
    m.max[i] = top;
  }
}

__global__ void __launch_bounds__(kThreads)
    prefill_f32_kernel(const __grid_constant__ AttentionParams p, const TileOrder order) {
  extern __shared__ __align__(16) unsigned char memory[];
  const QueryTile tile(p, order, kQueries);
  if (tile.empty()) return;
  const int d = p.head_dim;
  const Memory m(memory, d);
  for (int i = threadIdx.x; i < kQueries * d; i += kThreads)
    m.q[i] = i / d < tile.n ? static_cast<const float*>(p.q)[tile.vector_at(p, i / d) * d + i % d]
                            : 0.0f;
  if (threadIdx.x < kQueries) {
    m.max[threadIdx.x] = -INFINITY;
    m.sum[threadIdx.x] = 0;
  }
  // Columns side by side in the threads, as many queries at once as there are threads left.
  int width = cuda::kWarp;
  while (width < d) width *= 2;
  const int column = static_cast<int>(threadIdx.x) % width;
  const int first = static_cast<int>(threadIdx.x) / width, step = kThreads / width;
  float o[kQueries] = {};
  const VisiblePages pages(p, tile.s, tile.row_first, tile.row_last);
  for (int n = 0; n < pages.count; ++n) {
    const int page = pages[n];
    if (tile.s.pages[page] < 0) continue;  // released
    const int64_t from =
        (static_cast<int64_t>(tile.s.pages[page]) * p.n_kv_heads + tile.kv_head) * kPageTokens * d;
    const float* keys = static_cast<const float*>(p.k_pool) + from;
    const float* values = static_cast<const float*>(p.v_pool) + from;
    const int written = tile.written(page) * d;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < kQueries)
      m.seen[threadIdx.x] =
          static_cast<int>(threadIdx.x) < tile.n
              ? visible_slots(p, tile.s, tile.row(threadIdx.x), page * kPageTokens)
              : 0;
    for (int i = threadIdx.x; i < kPageTokens * d; i += kThreads)
      m.page[i / d * (d + 1) + i % d] = i < written ? keys[i] : 0.0f;
    __syncthreads();
    scores(m, d, p.scale);
    __syncthreads();
    for (int i = threadIdx.x; i < kPageTokens * d; i += kThreads)
      m.page[i] = i < written ? values[i] : 0.0f;
    softmax(m);
    __syncthreads();
    if (column >= d) continue;
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const int query = first + i * step;
      if (query >= kQueries) break;
      float sum = o[i] * m.rescale[query];
      for (int key = 0; key < kPageTokens; ++key)
        sum = fmaf(m.p[query * kPageTokens + key], m.page[key * d + column], sum);
      o[i] = sum;
    }
  }
  __syncthreads();
  float* out = static_cast<float*>(p.out);
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    const int query = first + i * step;
    if (query >= tile.n || column >= d) break;
    const float sum = m.sum[query];
    out[tile.vector_at(p, query) * d + column] = sum > 0 ? o[i] / sum : 0.0f;
  }
  if (p.lse != nullptr && static_cast<int>(threadIdx.x) < tile.n) {
    const float sum = m.sum[threadIdx.x];
    p.lse[tile.vector_at(p, threadIdx.x)] = sum > 0 ? m.max[threadIdx.x] + logf(sum) : -INFINITY;
  }
}

}  // namespace

void prefill_f32(const AttentionParams& p, const AttentionRows& rows, cudaStream_t stream) {
  static_assert(kMostHeadDim <= kThreads, "each thread owns one column");
  const size_t bytes = Memory::bytes(p.head_dim);
  const TileOrder order = tile_order(p, rows, kQueries);
  (void)cudaFuncSetAttribute(prefill_f32_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  prefill_f32_kernel<<<grid_of(p, order), kThreads, bytes, stream>>>(p, order);
}

}  // namespace tandem::portable
