// Makes and assigns clusters of values.
#include <math.h>

#include "kernels/code/indexed_rows.cuh"
#include "kernels/code/value_clusters.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = kClusterSample, kWarps = kThreads / cuda::kWarp;
constexpr int kAssignThreads = 128, kAssignWarps = kAssignThreads / cuda::kWarp;

using cuda::lane_of;
using cuda::warp_of;

struct DeviceCell {
  __nv_bfloat16* means;
  int8_t* centers;
  float* unit;

  __device__ DeviceCell(const DeviceClusters& c, int slot, int head, int d) {
    uint8_t* const at =
        c.cells + (slot * c.slot_stride + head * c.head_stride) * cluster_cell_bytes(d);
    means = reinterpret_cast<__nv_bfloat16*>(at);
    centers = reinterpret_cast<int8_t*>(at + 2 * kValueClusters * d);
    unit = reinterpret_cast<float*>(at + 3 * kValueClusters * d);
  }
};

/// Word w of a value's whole numbers, four coordinates; zeros beyond d.
template <class T>
__device__ int number_word(const KeyRow<T>& value, int w, int d, float unit) {
  uint32_t word = 0;
  for (int j = 0; j < 4; ++j) {
    const int c = 4 * w + j;
    const float x = c < d ? rintf(value[c] / unit) : 0.0f;
    const int number = static_cast<int>(fminf(fmaxf(x, -kMostValue), kMostValue));
    word |= static_cast<uint32_t>(number & 255) << (8 * j);
  }
  return static_cast<int>(word);
}

/// Centers in shared memory as words, and their squares; by the whole block.
__device__ void load_centers(const int8_t* centers, int words, int d, int* to, int* squares) {
  for (int i = static_cast<int>(threadIdx.x); i < kValueClusters * words;
       i += static_cast<int>(blockDim.x)) {
    uint32_t word = 0;
    for (int j = 0; j < 4; ++j) {
      const int c = i % words * 4 + j;
      if (c < d) word |= static_cast<uint32_t>(centers[i / words * d + c] & 255) << (8 * j);
    }
    to[i] = static_cast<int>(word);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kValueClusters;
       i += static_cast<int>(blockDim.x)) {
    int square = 0;
    for (int w = 0; w < words; ++w) square = __dp4a(to[i * words + w], to[i * words + w], square);
    squares[i] = square;
  }
  __syncthreads();
}

/// The nearest center of the value whose words word_at(w) gives, of several the first.
template <class WordAt>
__device__ int nearest(const WordAt& word_at, int words, const int* centers, const int* squares) {
  constexpr int kAtOnce = 8;
  int best = 0, least = 0;
  for (int first = 0; first < kValueClusters; first += kAtOnce) {
    int sums[kAtOnce] = {};
    for (int w = 0; w < words; ++w) {
      const int word = word_at(w);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        sums[j] = __dp4a(word, centers[(first + j) * words + w], sums[j]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int distance = squares[first + j] - 2 * sums[j];
      if (first + j > 0 && distance >= least) continue;
      least = distance;
      best = first + j;
    }
  }
  return best;
}

/// Block head: the clusters of a KV head; thread i has the i-th sampled value. Shared memory:
/// words of centers, and sums of values.
template <class T>
__global__ void __launch_bounds__(kThreads) make_clusters(const MakeClustersParams p) {
  extern __shared__ int centers[];
  __shared__ int squares[kValueClusters], counts[kValueClusters];
  __shared__ double parts[kWarps];
  cuda::wait_for_previous();
  const int head = static_cast<int>(blockIdx.x), d = p.d, words = cluster_words(d);
  const int i = static_cast<int>(threadIdx.x), n = min(p.tokens.n, kClusterSample);
  int* const sums = centers + kValueClusters * words;  // [kValueClusters, d]
  const DeviceCell cell(p.clusters, p.slot, head, d);
  const KeyRow<T> value = value_of<T>(
      p.tokens, head, p.tokens.token + (i < n ? cluster_sample(i, n, p.tokens.n) : 0), d);
  double square = 0;
  for (int c = 0; c < d && i < n; ++c) square += double{value[c]} * value[c];
  for (int step = cuda::kWarp / 2; step > 0; step /= 2)
    square += __shfl_xor_sync(cuda::kAllLanes, square, step);
  if (lane_of() == 0) parts[warp_of()] = square;
  __syncthreads();
  square = 0;
  for (int w = 0; w < kWarps; ++w) square += parts[w];
  const float unit = cluster_unit(square / (static_cast<double>(n) * d));
  if (i == 0) *cell.unit = unit;
  // A column of words a thread.
  auto* const numbers =
      reinterpret_cast<int*>(p.numbers) + int64_t{head} * words * kClusterSample + i;
  for (int w = 0; w < words && i < n; ++w)
    numbers[int64_t{w} * kClusterSample] = number_word(value, w, d, unit);
  const auto word_at = [&](int w) { return numbers[int64_t{w} * kClusterSample]; };
  for (int first = 0; first < kValueClusters; ++first)
    if (i < n && i == cluster_sample(first, kValueClusters, n))
      for (int c = 0; c < d; ++c)
        cell.centers[first * d + c] = static_cast<int8_t>(word_at(c / 4) >> (c % 4 * 8));
  __syncthreads();
  for (int round = 0; round <= kClusterRounds; ++round) {
    for (int j = i; j < kValueClusters * d; j += kThreads) sums[j] = 0;
    if (i < kValueClusters) counts[i] = 0;
    load_centers(cell.centers, words, d, centers, squares);
    if (i < n) {
      const int id = nearest(word_at, words, centers, squares);
      atomicAdd(&counts[id], 1);
      for (int c = 0; c < d; ++c)
        atomicAdd(&sums[id * d + c], static_cast<int8_t>(word_at(c / 4) >> (c % 4 * 8)));
    }
    __syncthreads();
    for (int j = i; j < kValueClusters * d; j += kThreads) {
      if (round < kClusterRounds)
        cell.centers[j] = next_center(cell.centers[j], sums[j], counts[j / d]);
      else
        cell.means[j] =
            __float2bfloat16_rn(cluster_mean(cell.centers[j], sums[j], counts[j / d]) * unit);
    }
    __syncthreads();
  }
}

/// Block (tokens, head): a token a thread. Shared memory: words of centers and of values.
template <class T>
__global__ void __launch_bounds__(kAssignThreads) assign_clusters(const AssignClustersParams p) {
  extern __shared__ int centers[];
  __shared__ int squares[kValueClusters];
  cuda::wait_for_previous();
  const int head = static_cast<int>(blockIdx.y), d = p.d, words = cluster_words(d);
  const int first = static_cast<int>(blockIdx.x) * kAssignThreads,
            n = min(p.tokens.n - first, kAssignThreads), i = static_cast<int>(threadIdx.x);
  int* const numbers = centers + kValueClusters * words;  // [words, kAssignThreads]
  const DeviceCell cell(p.clusters, p.slot, head, d);
  const float unit = *cell.unit;
  for (int t = warp_of(); t < n; t += kAssignWarps) {
    const KeyRow<T> value = value_of<T>(p.tokens, head, p.tokens.token + first + t, d);
    for (int w = lane_of(); w < words; w += cuda::kWarp)
      numbers[w * kAssignThreads + t] = number_word(value, w, d, unit);
  }
  load_centers(cell.centers, words, d, centers, squares);
  if (i >= n) return;
  p.clusters.ids[p.block * p.clusters.id_block_stride + head * p.clusters.id_head_stride +
                 p.offset + first + i] =
      static_cast<uint8_t>(
          nearest([&](int w) { return numbers[w * kAssignThreads + i]; }, words, centers, squares));
}

template <class Kernel, class Params>
void launch_with(Kernel kernel, dim3 grid, int threads, int bytes, const Params& p, Stream stream) {
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cuda::launch(kernel, grid, threads, static_cast<size_t>(bytes), 1, stream, p);
}

}  // namespace

void make_clusters_cuda(const MakeClustersParams& p, Stream stream) {
  const int bytes = 4 * kValueClusters * (cluster_words(p.d) + p.d);
  cuda::with_act(p.tokens.dtype, [&](auto* type) {
    launch_with(make_clusters<std::remove_pointer_t<decltype(type)>>,
                dim3(static_cast<unsigned>(p.tokens.n_kv_heads)), kThreads, bytes, p, stream);
  });
}

void assign_clusters_cuda(const AssignClustersParams& p, Stream stream) {
  if (p.tokens.n == 0) return;
  const int bytes = 4 * cluster_words(p.d) * (kValueClusters + kAssignThreads);
  cuda::with_act(p.tokens.dtype, [&](auto* type) {
    launch_with(assign_clusters<std::remove_pointer_t<decltype(type)>>,
                dim3(cuda::blocks_for(p.tokens.n, kAssignThreads),
                     static_cast<unsigned>(p.tokens.n_kv_heads)),
                kAssignThreads, bytes, p, stream);
  });
}

}  // namespace tandem
