#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/rope/rope.h"

namespace tandem {
namespace {

constexpr int kThreads = 128;

/// Elements [i, i + kEach) of a head and their partners half a head further, turned.
template <class T, int kEach>
struct Pair {
  using V = cuda::Vector<T, kEach>;
  V a, b;

  __device__ static Pair load(const T* head, int half, int i) {
    return {*reinterpret_cast<const V*>(head + i), *reinterpret_cast<const V*>(head + half + i)};
  }
  __device__ void store(T* head, int half, int i) const {
    *reinterpret_cast<V*>(head + i) = a;
    *reinterpret_cast<V*>(head + half + i) = b;
  }
  __device__ float square_sum() const {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float x = cuda::to_float(a.at[e]), y = cuda::to_float(b.at[e]);
      sum = fmaf(y, y, fmaf(x, x, sum));
    }
    return sum;
  }
  /// By the angles whose cosines and sines begin at `cosine` and `sine`; `turn` is 1, or -1 for the
  /// opposite direction. The number to turn is `of` (an element, its place in the vector, whether
  /// of b).
  template <class Of>
  __device__ void rotate(const float* cosine, const float* sine, float turn, int i, Of&& of) {
    using F = cuda::Vector<float, kEach>;
    const F c = *reinterpret_cast<const F*>(cosine + i), s = *reinterpret_cast<const F*>(sine + i);
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float x = of(cuda::to_float(a.at[e]), e, false);
      const float y = of(cuda::to_float(b.at[e]), e, true), t = turn * s.at[e];
      a.at[e] = cuda::from_float<T>(fmaf(-y, t, x * c.at[e]));
      b.at[e] = cuda::from_float<T>(fmaf(x, t, y * c.at[e]));
    }
  }
  __device__ void rotate(const float* cosine, const float* sine, float turn, int i) {
    rotate(cosine, sine, turn, i, [](float x, int, bool) { return x; });
  }
};

/// Heads are not cut by the edges of blocks that normalise them.
__host__ __device__ int threads_used(bool normed, int each_head) {
  return normed ? kThreads / each_head * each_head : kThreads;
}

/// Sum of x over the threads of a head, in their order, so that it depends on the head alone. All
/// threads of the block must come here.
__device__ float head_sum(float x, int each_head) {
  __shared__ float parts[kThreads];
  parts[threadIdx.x] = x;
  __syncthreads();
  const float* first = parts + threadIdx.x / each_head * each_head;
  float sum = 0;
  for (int t = 0; t < each_head && first + t < parts + kThreads; ++t) sum += first[t];
  return sum;
}

/// One row a block in x; the threads of the blocks in y share its heads.
template <class T, int kEach, bool kNormed>
__global__ void __launch_bounds__(kThreads) rope_kv_rows(const RopeKvParams p) {
  cuda::start_after_previous();
  const int half = p.head_dim / 2, each_head = half / kEach;
  const int n_heads = p.n_heads + 2 * p.n_kv_heads, n_threads = threads_used(kNormed, each_head);
  const int item = static_cast<int>(blockIdx.y) * n_threads + threadIdx.x;
  const bool idle = item >= n_heads * each_head || static_cast<int>(threadIdx.x) >= n_threads;
  if (!kNormed && idle) return;
  const int head = item / each_head, i = item % each_head * kEach;
  const int64_t r = blockIdx.x, d = p.head_dim;
  Pair<T, kEach> pair = {};
  if (!idle)
    pair = Pair<T, kEach>::load(static_cast<const T*>(p.qkv) + (r * n_heads + head) * d, half, i);
  float inverse = 1;
  if (kNormed) {
    const float mean = head_sum(pair.square_sum(), each_head) / static_cast<float>(p.head_dim);
    inverse = 1.0f / sqrtf(mean + p.norm_eps);
    if (idle) return;
  }
  const int64_t pos = p.pos[r], page = p.slot_page[r];
  const int kv_head = (head - p.n_heads) % p.n_kv_heads;  // of k and v heads
  const bool is_v = head >= p.n_heads + p.n_kv_heads;
  const float *cosine = p.cos_table + pos * half, *sine = p.sin_table + pos * half;
  if (kNormed && !is_v) {
    using F = cuda::Vector<float, kEach>;
    const float* norm = (head < p.n_heads ? p.q_norm : p.k_norm) + i;
    const F low = *reinterpret_cast<const F*>(norm),
            high = *reinterpret_cast<const F*>(norm + half);
    pair.rotate(cosine, sine, 1.0f, i, [&](float x, int e, bool of_b) {
      return x * inverse * (of_b ? high.at[e] : low.at[e]);
    });
  } else if (!is_v) {
    pair.rotate(cosine, sine, 1.0f, i);
  }
  if (head < p.n_heads)
    pair.store(static_cast<T*>(p.q) + (r * p.n_heads + head) * d, half, i);
  else if (page >= 0)
    pair.store(static_cast<T*>(is_v ? p.v_pool : p.k_pool) +
                   ((page * p.n_kv_heads + kv_head) * kPageTokens + p.slot_in_page[r]) * d,
               half, i);
}

template <class T, int kEach>
__global__ void __launch_bounds__(kThreads) rotate_q_rows(const RotateQParams p) {
  cuda::start_after_previous();
  const int half = p.head_dim / 2, each_head = half / kEach;
  const int item = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x;
  if (item >= p.n_heads * each_head) return;
  const int head = item / each_head, i = item % each_head * kEach;
  const int64_t r = blockIdx.x, at = (r * p.n_heads + head) * p.head_dim;
  auto pair = Pair<T, kEach>::load(static_cast<const T*>(p.q) + at, half, i);
  const int32_t beyond = p.pos[r] - p.max_pos;
  const int64_t angle = int64_t{beyond > 0 ? beyond : 0} * half;
  pair.rotate(p.cos_table + angle, p.sin_table + angle, -1.0f, i);
  pair.store(static_cast<T*>(p.out) + at, half, i);
}

template <class Params>
void launch_rows(void (*kernel)(Params), int n_heads, int each_head, int n_threads, const Params& p,
                 Stream stream) {
  const dim3 grid(static_cast<unsigned>(p.n_rows),
                  cuda::blocks_for(n_heads * each_head, n_threads));
  cuda::launch(kernel, grid, kThreads, stream, p);
}

template <class T, int kEach>
void launch_rope(const RopeKvParams& p, Stream stream) {
  const bool normed = p.q_norm != nullptr;
  const int each_head = p.head_dim / 2 / kEach;
  launch_rows(normed ? rope_kv_rows<T, kEach, true> : rope_kv_rows<T, kEach, false>,
              p.n_heads + 2 * p.n_kv_heads, each_head, threads_used(normed, each_head), p, stream);
}

}  // namespace

void rope_kv_cuda(const RopeKvParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = 16 / sizeof(T);
    if (cuda::packable<T>(p.head_dim / 2, p.q, p.k_pool, p.v_pool, p.qkv, p.cos_table, p.sin_table,
                          p.q_norm, p.k_norm))
      launch_rope<T, kEach>(p, stream);
    else
      launch_rope<T, 1>(p, stream);
  });
}

void rotate_q_cuda(const RotateQParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = 16 / sizeof(T);
    const int half = p.head_dim / 2;
    if (cuda::packable<T>(half, p.out, p.q, p.cos_table, p.sin_table))
      launch_rows(rotate_q_rows<T, kEach>, p.n_heads, half / kEach, kThreads, p, stream);
    else
      launch_rows(rotate_q_rows<T, 1>, p.n_heads, half, kThreads, p, stream);
  });
}

}  // namespace tandem
