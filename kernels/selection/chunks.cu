#include <cfloat>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/selection/best_keys.cuh"
#include "kernels/selection/chunks_cuda.h"

namespace tandem {
namespace {

using cuda::Vector;

constexpr int kMeanThreads = 256;
constexpr int kScoreThreads = 256;
constexpr int kTile = 256;   // means that a block of scores reads
constexpr int kAbreast = 4;  // of them, those that a group of lanes reads at once

template <class T>
__device__ T* mean_of(const ChunkBlocks& b, int chunk, int layer, int kv_head, int d) {
  return static_cast<T*>(b.means) + b.blocks[chunk / b.block_chunks] * b.block_stride +
         layer * b.layer_stride + kv_head * b.head_stride + int64_t{chunk % b.block_chunks} * d;
}

/// A thread kVec channels of a chunk; block (chunks, KV head).
template <class T, int kVec>
__global__ void __launch_bounds__(kMeanThreads) chunk_means(const ChunkMeansCudaParams p) {
  cuda::start_after_previous();
  const int vecs = p.d / kVec, kv_head = static_cast<int>(blockIdx.y);
  const int64_t i = int64_t{blockIdx.x} * kMeanThreads + threadIdx.x;
  if (i >= int64_t{p.n} * vecs) return;
  const int chunk = p.first + static_cast<int>(i / vecs), c = static_cast<int>(i % vecs) * kVec;
  const int token = chunk * p.chunk;
  const int64_t row =
      (int64_t{p.pages[token / kPageTokens]} * p.n_kv_heads + kv_head) * kPageTokens +
      token % kPageTokens;
  const T* keys = static_cast<const T*>(p.k_pool) + row * p.d + c;
  float sum[kVec] = {};
#pragma unroll 4
  for (int t = 0; t < p.chunk; ++t) {
    const auto key = *reinterpret_cast<const Vector<T, kVec>*>(keys + int64_t{t} * p.d);
#pragma unroll
    for (int v = 0; v < kVec; ++v) sum[v] += cuda::to_float(key.at[v]);
  }
  const float share = 1.0f / static_cast<float>(p.chunk);  // exact
  Vector<T, kVec> mean;
#pragma unroll
  for (int v = 0; v < kVec; ++v) mean.at[v] = cuda::from_float<T>(sum[v] * share);
  *reinterpret_cast<Vector<T, kVec>*>(mean_of<T>(p.to, chunk, 0, kv_head, p.d) + c) = mean;
}

/// Sums of the queries to q: [1, d], or a head in turn [group, d].
template <class T>
__device__ void sum_queries(const ChunkScoresCudaParams& p, int layer, int kv_head, float* q) {
  const int group = p.n_heads / p.n_kv_heads;
  const bool one = p.group == ChunkGroup::sum;
  const T* const all = static_cast<const T*>(p.q) + p.layers[layer] * p.q_layer_stride +
                       int64_t{kv_head} * group * p.d;
  for (int i = static_cast<int>(threadIdx.x); i < (one ? 1 : group) * p.d; i += kScoreThreads) {
    float sum = 0;
    for (int t = p.first_query; t < p.first_query + p.n_queries; ++t) {
      const T* const at = all + int64_t{t % p.capacity} * p.n_heads * p.d + i;
      for (int h = 0; h < (one ? group : 1); ++h) sum += cuda::to_float(at[int64_t{h} * p.d]);
    }
    q[i] = sum;
  }
}

/// Block (tile of chunks, KV head, layer). Groups of `lanes` lanes, a power of two, read a mean
/// each: a lane every lanes-th of its vectors.
template <class T, int kVec>
__global__ void __launch_bounds__(kScoreThreads)
    chunk_scores(const ChunkScoresCudaParams p, int lanes) {
  extern __shared__ float q[];
  cuda::wait_for_previous();
  const int kv_head = static_cast<int>(blockIdx.y), layer = static_cast<int>(blockIdx.z);
  sum_queries<T>(p, layer, kv_head, q);
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x), lane = thread & (lanes - 1);
  const int groups = kScoreThreads / lanes, vecs = p.d / kVec;
  const int n_q = p.group == ChunkGroup::sum ? 1 : p.n_heads / p.n_kv_heads;
  const int first = static_cast<int>(blockIdx.x) * kTile, end = min(first + kTile, p.n);
  float* const scores = p.scores + (int64_t{layer} * p.n_kv_heads + kv_head) * p.score_stride;
  // All lanes of a warp go around as often as each other: shuffles need them.
  for (int base = first; base < end; base += kAbreast * groups) {
    const T* mean[kAbreast];
    float best[kAbreast];
#pragma unroll
    for (int a = 0; a < kAbreast; ++a) {
      const int chunk = min(base + a * groups + thread / lanes, end - 1);
      mean[a] = mean_of<const T>(p.from, chunk, layer, kv_head, p.d);
      best[a] = -FLT_MAX;
    }
    for (int h = 0; h < n_q; ++h) {
      float sum[kAbreast] = {};
      for (int v = lane; v < vecs; v += lanes) {
        Vector<T, kVec> keys[kAbreast];
#pragma unroll
        for (int a = 0; a < kAbreast; ++a)
          keys[a] = *reinterpret_cast<const Vector<T, kVec>*>(mean[a] + v * kVec);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const float x = q[h * p.d + v * kVec + i];
#pragma unroll
          for (int a = 0; a < kAbreast; ++a) sum[a] += x * cuda::to_float(keys[a].at[i]);
        }
      }
#pragma unroll
      for (int a = 0; a < kAbreast; ++a) {
        for (int step = lanes / 2; step > 0; step /= 2)
          sum[a] += __shfl_xor_sync(cuda::kAllLanes, sum[a], step);
        if (sum[a] > best[a]) best[a] = fminf(sum[a], FLT_MAX);  // not where it is NaN
      }
    }
#pragma unroll
    for (int a = 0; a < kAbreast; ++a) {
      const int chunk = base + a * groups + thread / lanes;
      if (lane == 0 && chunk < end) scores[chunk] = best[a];
    }
  }
}

/// A block a list. Releases nothing early: kernels that begin ahead of the one before them may read
/// lists.
__global__ void __launch_bounds__(best::kThreads) choose_chunks(const ChooseChunksParams p) {
  __shared__ best::Shared s;
  __shared__ float tile[best::kThreads];
  cuda::wait_for_previous();
  const int64_t list = blockIdx.x;
  const float* const scores = p.scores + list * p.score_stride;
  int32_t* const ids = p.ids + list * p.id_stride;
  int32_t* const found = p.scratch + list * p.n_chosen;  // ascending
  const int m = p.n_chosen - 1, thread = static_cast<int>(threadIdx.x);
  if (thread == 0) ids[0] = 0;
  if (m == 0) return;
  best::choose(s, best::Numbers{scores + 1}, p.n - 1, m,
               [&](int place, int key) { found[place] = key + 1; });
  __syncthreads();
  // The place of each among them: after all that score more, and equal ones before it.
  for (int begin = 0; begin < m; begin += best::kThreads) {
    const int own = begin + thread;
    const float score = own < m ? scores[found[own]] : 0;
    int place = 0;
    for (int other = 0; other < m; other += best::kThreads) {
      __syncthreads();
      if (other + thread < m) tile[thread] = scores[found[other + thread]];
      __syncthreads();
      const int n = min(best::kThreads, m - other);
      for (int i = 0; i < n; ++i)
        place += tile[i] > score || (tile[i] == score && other + i < own) ? 1 : 0;
    }
    if (own < m) ids[1 + place] = found[own];
  }
}

}  // namespace

void chunk_means_cuda(const ChunkMeansCudaParams& p, Stream stream) {
  if (p.n == 0) return;
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kWide = cuda::Pack<T>::kSize;
    const bool wide =
        cuda::packable<T>(p.d, static_cast<const T*>(p.k_pool), static_cast<const T*>(p.to.means));
    const dim3 grid(cuda::blocks_for(int64_t{p.n} * (p.d / (wide ? kWide : 1)), kMeanThreads),
                    static_cast<unsigned>(p.n_kv_heads));
    cuda::launch(wide ? chunk_means<T, kWide> : chunk_means<T, 1>, grid, kMeanThreads, stream, p);
  });
}

void chunk_scores_cuda(const ChunkScoresCudaParams& p, Stream stream) {
  if (p.n == 0 || p.n_layers == 0) return;
  const dim3 grid(cuda::blocks_for(p.n, kTile), static_cast<unsigned>(p.n_kv_heads),
                  static_cast<unsigned>(p.n_layers));
  const int n_q = p.group == ChunkGroup::sum ? 1 : p.n_heads / p.n_kv_heads;
  const size_t bytes = sizeof(float) * static_cast<size_t>(n_q) * static_cast<size_t>(p.d);
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kWide = cuda::Pack<T>::kSize;
    const bool wide = cuda::packable<T>(p.d, static_cast<const T*>(p.from.means));
    int lanes = 4;
    while (lanes < cuda::kWarp && lanes * (wide ? kWide : 1) < p.d) lanes *= 2;
    const auto kernel = wide ? chunk_scores<T, kWide> : chunk_scores<T, 1>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
    cuda::launch(kernel, grid, kScoreThreads, bytes, 1, stream, p, lanes);
  });
}

void choose_chunks_cuda(const ChooseChunksParams& p, Stream stream) {
  if (p.n_lists == 0) return;
  cuda::launch(choose_chunks, dim3(static_cast<unsigned>(p.n_lists)), best::kThreads, stream, p);
}

}  // namespace tandem
