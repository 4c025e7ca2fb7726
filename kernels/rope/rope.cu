#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/rope/rope_cuda.h"

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
  /// By the angles whose cosines and sines begin at `cosine` and `sine`; `turn` is 1, or -1 for the
  /// opposite direction.
  __device__ void rotate(const float* cosine, const float* sine, float turn, int i) {
    using F = cuda::Vector<float, kEach>;
    const F c = *reinterpret_cast<const F*>(cosine + i), s = *reinterpret_cast<const F*>(sine + i);
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float x = cuda::to_float(a.at[e]), y = cuda::to_float(b.at[e]), t = turn * s.at[e];
      a.at[e] = cuda::from_float<T>(fmaf(-y, t, x * c.at[e]));
      b.at[e] = cuda::from_float<T>(fmaf(x, t, y * c.at[e]));
    }
  }
};

/// One row a block in x; the threads of the blocks in y share its heads.
template <class T, int kEach>
__global__ void __launch_bounds__(kThreads) rope_kv_rows(const RopeKvParams p) {
  cuda::start_after_previous();
  const int half = p.head_dim / 2, each_head = half / kEach;
  const int n_heads = p.n_heads + 2 * p.n_kv_heads;
  const int item = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x;
  if (item >= n_heads * each_head) return;
  const int head = item / each_head, i = item % each_head * kEach;
  const int64_t r = blockIdx.x, d = p.head_dim;
  auto pair =
      Pair<T, kEach>::load(static_cast<const T*>(p.qkv) + (r * n_heads + head) * d, half, i);
  const int64_t pos = p.pos[r], page = p.slot_page[r];
  const int kv_head = (head - p.n_heads) % p.n_kv_heads;  // of k and v heads
  const bool is_v = head >= p.n_heads + p.n_kv_heads;
  if (!is_v) pair.rotate(p.cos_table + pos * half, p.sin_table + pos * half, 1.0f, i);
  if (head < p.n_heads)
    pair.store(static_cast<T*>(p.q) + (r * p.n_heads + head) * d, half, i);
  else if (page >= 0)
    pair.store(static_cast<T*>(is_v ? p.v_pool : p.k_pool) +
                   ((page * p.n_kv_heads + kv_head) * kRopePageTokens + p.slot_in_page[r]) * d,
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
void launch_rows(void (*kernel)(Params), int n_heads, int each_head, const Params& p,
                 Stream stream) {
  const dim3 grid(static_cast<unsigned>(p.n_rows), cuda::blocks_for(n_heads * each_head, kThreads));
  cuda::launch(kernel, grid, kThreads, stream, p);
}

}  // namespace

void rope_kv_cuda(const RopeKvParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = 16 / sizeof(T);
    const int half = p.head_dim / 2, n_heads = p.n_heads + 2 * p.n_kv_heads;
    if (cuda::packable<T>(half, p.q, p.k_pool, p.v_pool, p.qkv, p.cos_table, p.sin_table))
      launch_rows(rope_kv_rows<T, kEach>, n_heads, half / kEach, p, stream);
    else
      launch_rows(rope_kv_rows<T, 1>, n_heads, half, p, stream);
  });
}

void rotate_q_cuda(const RotateQParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = 16 / sizeof(T);
    const int half = p.head_dim / 2;
    if (cuda::packable<T>(half, p.out, p.q, p.cos_table, p.sin_table))
      launch_rows(rotate_q_rows<T, kEach>, p.n_heads, half / kEach, p, stream);
    else
      launch_rows(rotate_q_rows<T, 1>, p.n_heads, half, p, stream);
  });
}

}  // namespace tandem
