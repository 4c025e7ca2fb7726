// Prefill in f32 on plain multiply-adds: exact enough to check other kernels by, and enough for
// small models. 16 queries a block, a page of keys at a time.
#include "kernels/attention/prefill_portable.cuh"

namespace tandem::portable {
namespace {

constexpr int kThreads = 256, kQueries = 16, kMaxDim = 256;
constexpr int kGroups =
    kThreads / kPageTokens;  // of queries, for scores: a thread has a key of each
constexpr int kEach = kQueries / kGroups;

struct Memory {
  float *q, *keys, *values, *p;  // [16, d], [64, d + 1], [64, d], [16, 64]
  float *max, *sum, *rescale;    // [16]
  uint64_t* seen;                // [16]

  // One column more a key: threads that read one column of 64 keys then use different banks.
  static __host__ __device__ size_t floats(int d) {
    return static_cast<size_t>(kQueries * d + kPageTokens * (2 * d + 1) +
                               kQueries * (kPageTokens + 3));
  }
  static size_t bytes(int d) { return kQueries * sizeof(uint64_t) + floats(d) * sizeof(float); }
  __device__ Memory(unsigned char* memory, int d)
      : q(reinterpret_cast<float*>(memory + kQueries * sizeof(uint64_t))),
        keys(q + kQueries * d),
        values(keys + kPageTokens * (d + 1)),
        p(values + kPageTokens * d),
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
    const float k = m.keys[key * (d + 1) + c];
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

__global__ void __launch_bounds__(kThreads) prefill_f32_kernel(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const QueryTile tile(p, kQueries);
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
  for (int page = 0; page < tile.n_pages(); ++page) {
    __syncthreads();
    if (!tile.look(p, page, kQueries, m.seen)) continue;
    const float* keys = static_cast<const float*>(p.k_pool) + tile.page_at(p, page);
    const float* values = static_cast<const float*>(p.v_pool) + tile.page_at(p, page);
    const int written = tile.written(page) * d;
    for (int i = threadIdx.x; i < kPageTokens * d; i += kThreads) {
      m.keys[i / d * (d + 1) + i % d] = i < written ? keys[i] : 0.0f;
      m.values[i] = i < written ? values[i] : 0.0f;
    }
    __syncthreads();
    scores(m, d, p.scale);
    __syncthreads();
    softmax(m);
    __syncthreads();
    if (column >= d) continue;
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const int query = first + i * step;
      if (query >= kQueries) break;
      float sum = o[i] * m.rescale[query];
      for (int key = 0; key < kPageTokens; ++key)
        sum = fmaf(m.p[query * kPageTokens + key], m.values[key * d + column], sum);
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
  static_assert(kMaxDim <= kThreads, "a column is a thread's");
  const size_t bytes = Memory::bytes(p.head_dim);
  (void)cudaFuncSetAttribute(prefill_f32_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  prefill_f32_kernel<<<grid_of(p, rows, kQueries), kThreads, bytes, stream>>>(p);
}

}  // namespace tandem::portable
