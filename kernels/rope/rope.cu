#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rope/rope.h"

namespace tandem {
namespace {

constexpr int kThreads = 128;

/// The place of a head's i-th pair: r/2 elements apart if it turns, else half of the others.
struct Place {
  int at, apart;
  bool turns;

  __device__ Place(int i, int turned, int all)
      : at(i < turned ? i : i + turned),
        apart(i < turned ? turned : all - turned),
        turns(i < turned) {}
};

/// Elements [i, i + kEach) of a head and their partners `apart` further.
template <class T, int kEach>
struct Pair {
  using V = cuda::Vector<T, kEach>;
  V a, b;

  __device__ static Pair load(const T* head, const Place& p) {
    return {*reinterpret_cast<const V*>(head + p.at),
            *reinterpret_cast<const V*>(head + p.at + p.apart)};
  }
  __device__ void store(T* head, const Place& p) const {
    *reinterpret_cast<V*>(head + p.at) = a;
    *reinterpret_cast<V*>(head + p.at + p.apart) = b;
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
  template <class Of>
  __device__ void change(Of&& of) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      a.at[e] = cuda::from_float<T>(of(cuda::to_float(a.at[e]), e, false));
      b.at[e] = cuda::from_float<T>(of(cuda::to_float(b.at[e]), e, true));
    }
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
  const int half = p.head_dim / 2, each_head = half / kEach, turned = rotated_dims(p) / 2;
  const int n_heads = p.n_heads + 2 * p.n_kv_heads, n_threads = threads_used(kNormed, each_head);
  const int item = static_cast<int>(blockIdx.y) * n_threads + threadIdx.x;
  const bool idle = item >= n_heads * each_head || static_cast<int>(threadIdx.x) >= n_threads;
  if (!kNormed && idle) return;
  const int head = item / each_head, i = item % each_head * kEach;
  const int64_t r = blockIdx.x, d = p.head_dim;
  const Place place(i, turned, half);
  Pair<T, kEach> pair = {};
  if (!idle)
    pair = Pair<T, kEach>::load(static_cast<const T*>(p.qkv) + (r * n_heads + head) * d, place);
  float inverse = 1;
  if (kNormed) {
    const float mean = head_sum(pair.square_sum(), each_head) / static_cast<float>(p.head_dim);
    inverse = 1.0f / sqrtf(mean + p.norm_eps);
    if (idle) return;
  }
  const int64_t pos = p.pos[r], page = p.slot_page[r];
  const int kv_head = (head - p.n_heads) % p.n_kv_heads;  // of k and v heads
  const bool is_v = head >= p.n_heads + p.n_kv_heads;
  const float *cosine = p.cos_table + pos * turned, *sine = p.sin_table + pos * turned;
  if (kNormed && !is_v) {
    using F = cuda::Vector<float, kEach>;
    const float* norm = (head < p.n_heads ? p.q_norm : p.k_norm) + place.at;
    const F low = *reinterpret_cast<const F*>(norm),
            high = *reinterpret_cast<const F*>(norm + place.apart);
    const auto normalised = [&](float x, int e, bool of_b) {
      return x * inverse * (of_b ? high.at[e] : low.at[e]);
    };
    place.turns ? pair.rotate(cosine, sine, 1.0f, i, normalised) : pair.change(normalised);
  } else if (!is_v && place.turns) {
    pair.rotate(cosine, sine, 1.0f, i);
  }
  if (head < p.n_heads)
    pair.store(static_cast<T*>(p.q) + (r * p.n_heads + head) * d, place);
  else if (page >= 0)
    pair.store(static_cast<T*>(is_v ? p.v_pool : p.k_pool) +
                   ((page * p.n_kv_heads + kv_head) * kPageTokens + p.slot_in_page[r]) * d,
               place);
}

template <class T, int kEach>
__global__ void __launch_bounds__(kThreads) rotate_q_rows(const RotateQParams p) {
  cuda::start_after_previous();
  const int half = p.head_dim / 2, each_head = half / kEach, turned = rotated_dims(p) / 2;
  const int item = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x;
  if (item >= p.n_heads * each_head) return;
  const int head = item / each_head, i = item % each_head * kEach;
  const int64_t r = blockIdx.x, at = (r * p.n_heads + head) * p.head_dim;
  const Place place(i, turned, half);
  auto pair = Pair<T, kEach>::load(static_cast<const T*>(p.q) + at, place);
  const int32_t beyond = p.pos[r] - p.max_pos;
  const int64_t angle = int64_t{beyond > 0 ? beyond : 0} * turned;
  if (place.turns)
    pair.rotate(p.cos_table + angle, p.sin_table + angle, -1.0f, i,
                [&](float x, int, bool) { return x * p.scale; });
  pair.store(static_cast<T*>(p.out) + at, place);
}

/// One row a block in x; the threads of the blocks in y share what turns of its heads of q and k.
template <class T, int kEach>
__global__ void __launch_bounds__(kThreads) rope_backward_rows(const RopeBackwardParams p) {
  cuda::start_after_previous();
  const int turned = rotated_dims(p) / 2, each_head = turned / kEach;
  const int item = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x;
  if (item >= (p.n_heads + p.n_kv_heads) * each_head) return;
  const int head = item / each_head, i = item % each_head * kEach;
  const int64_t r = blockIdx.x, pos = p.pos[r];
  T* dy = static_cast<T*>(p.dqkv) + (r * (p.n_heads + 2 * p.n_kv_heads) + head) * p.head_dim;
  const Place place(i, turned, turned);
  auto pair = Pair<T, kEach>::load(dy, place);
  pair.rotate(p.cos_table + pos * turned, p.sin_table + pos * turned, -1.0f, i);
  pair.store(dy, place);
}

/// With norms of heads: one row a block, one head after another, a thread for a pair of elements.
/// The gradient through x inverse norm is that of rms_norm_backward.
template <class T>
__global__ void __launch_bounds__(kThreads) rope_backward_normed(const RopeBackwardParams p) {
  cuda::start_after_previous();
  const int half = p.head_dim / 2, turned = rotated_dims(p) / 2;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t r = blockIdx.x, d = p.head_dim;
  const bool idle = thread >= half;
  const Place place(thread, turned, half);
  const int i = place.at, j = place.at + place.apart;
  const int64_t row = r * (p.n_heads + 2 * p.n_kv_heads) * d,
                angle = int64_t{p.pos[r]} * turned + thread;
  const bool turns = !idle && place.turns;
  const float c = turns ? p.cos_table[angle] : 1.0f, s = turns ? p.sin_table[angle] : 0.0f;
  const auto dim = static_cast<float>(p.head_dim);
  float of_norms[2][2] = {};  // of q and k, this thread's two elements
  for (int head = 0; head < p.n_heads + p.n_kv_heads; ++head) {
    const bool is_k = head >= p.n_heads;
    T* dy = static_cast<T*>(p.dqkv) + row + head * d;
    const T* x = static_cast<const T*>(p.qkv) + row + head * d;
    float x1 = 0, x2 = 0, h1 = 0, h2 = 0, dy1 = 0, dy2 = 0;
    if (!idle) {
      const float a = cuda::to_float(dy[i]), b = cuda::to_float(dy[j]);
      // Rounded as where norms are a separate kernel.
      dy1 = cuda::to_float(cuda::from_float<T>(fmaf(b, s, a * c)));
      dy2 = cuda::to_float(cuda::from_float<T>(fmaf(-a, s, b * c)));
      const float* norm = is_k ? p.k_norm : p.q_norm;
      x1 = cuda::to_float(x[i]);
      x2 = cuda::to_float(x[j]);
      h1 = dy1 * norm[i];
      h2 = dy2 * norm[j];
    }
    const float squares = cuda::block_sum<kThreads>(fmaf(x2, x2, x1 * x1));
    const float products = cuda::block_sum<kThreads>(fmaf(x2, h2, x1 * h1));
    if (idle) continue;
    const float inverse = 1.0f / sqrtf(squares / dim + p.norm_eps);
    const float mean = products * inverse / dim;
    dy[i] = cuda::from_float<T>(inverse * (h1 - x1 * inverse * mean));
    dy[j] = cuda::from_float<T>(inverse * (h2 - x2 * inverse * mean));
    of_norms[is_k][0] = fmaf(dy1, x1 * inverse, of_norms[is_k][0]);
    of_norms[is_k][1] = fmaf(dy2, x2 * inverse, of_norms[is_k][1]);
  }
  if (p.dnorms == nullptr || idle) return;
  for (int k = 0; k < 2; ++k)
    for (int e = 0; e < 2; ++e) p.dnorms[(2 * r + k) * d + (e == 0 ? i : j)] = of_norms[k][e];
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
    if (rotated_dims(p) / 2 % kEach == 0 &&
        cuda::packable<T>(p.head_dim / 2, p.q, p.k_pool, p.v_pool, p.qkv, p.cos_table, p.sin_table,
                          p.q_norm, p.k_norm))
      launch_rope<T, kEach>(p, stream);
    else
      launch_rope<T, 1>(p, stream);
  });
}

void rope_backward_cuda(const RopeBackwardParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = 16 / sizeof(T);
    const int half = rotated_dims(p) / 2, n_heads = p.n_heads + p.n_kv_heads;
    if (half == 0 && p.q_norm == nullptr) return;
    if (p.q_norm != nullptr)
      cuda::launch(rope_backward_normed<T>, dim3(static_cast<unsigned>(p.n_rows)), kThreads, stream,
                   p);
    else if (p.head_dim % kEach == 0 && cuda::packable<T>(half, p.dqkv, p.cos_table, p.sin_table))
      launch_rows(rope_backward_rows<T, kEach>, n_heads, half / kEach, kThreads, p, stream);
    else
      launch_rows(rope_backward_rows<T, 1>, n_heads, half, kThreads, p, stream);
  });
}

void rotate_q_cuda(const RotateQParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = 16 / sizeof(T);
    const int half = p.head_dim / 2;
    if (rotated_dims(p) / 2 % kEach == 0 &&
        cuda::packable<T>(half, p.out, p.q, p.cos_table, p.sin_table))
      launch_rows(rotate_q_rows<T, kEach>, p.n_heads, half / kEach, kThreads, p, stream);
    else
      launch_rows(rotate_q_rows<T, 1>, p.n_heads, half, kThreads, p, stream);
  });
}

}  // namespace tandem
