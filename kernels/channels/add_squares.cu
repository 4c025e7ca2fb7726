#include "kernels/channels/add_squares.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kChannels = 64;  // of a block: a line of bf16 a row
constexpr int kLoads = 4;      // accesses of a thread that are under way together
constexpr float kLeastSum = 0x1p-126f;

__device__ float inverse(float sum) { return sum >= kLeastSum ? 1 / sum : 0; }

/// What the squares of a row, counted from the first that is added, are multiplied by.
__device__ float scale_of(const AddSquaresParams& p, int r) {
  if (p.scale == nullptr) return 1;
  return p.sums ? inverse(p.scale[r]) : p.scale[r];
}

template <class T, int kEach>
__global__ void __launch_bounds__(kThreads) square_scales_row(const SquareScalesParams p) {
  using V = cuda::Vector<T, kEach>;
  cuda::start_after_previous();
  const int64_t r = blockIdx.x;
  const V* const row = reinterpret_cast<const V*>(static_cast<const T*>(p.x) + r * p.row_stride);
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < p.n_channels / kEach; i += kThreads) {
    const V v = row[i];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float x = cuda::to_float(v.at[e]);
      sum = fmaf(x, x, sum);
    }
  }
  sum = cuda::block_sum<kThreads>(sum);
  if (threadIdx.x == 0) p.scale[r] = p.sums ? sum : inverse(sum);
}

/// Tiles of rows pass through registers, where one is under way, to shared memory, where the one
/// before it is added.
template <class T, int kEach>
struct RowTiles {
  using V = cuda::Vector<T, kEach>;
  static constexpr int kAcross = kChannels / kEach;          // accesses of a row
  static constexpr int kRows = kLoads * kThreads / kAcross;  // of a tile

  V v[kLoads];

  __device__ void load(const AddSquaresParams& p, int first, int last) {
    const int64_t channel =
        int64_t{blockIdx.x} * kChannels + static_cast<int>(threadIdx.x) % kAcross * kEach;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = first + row(i);
      if (r < last && channel < p.n_channels)
        v[i] = *reinterpret_cast<const V*>(static_cast<const T*>(p.x) + r * p.row_stride + channel);
    }
  }
  __device__ void store(T (&tile)[kRows][kChannels]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      *reinterpret_cast<V*>(&tile[row(i)][static_cast<int>(threadIdx.x) % kAcross * kEach]) = v[i];
  }
  __device__ static int row(int i) {
    return i * (kThreads / kAcross) + static_cast<int>(threadIdx.x) / kAcross;
  }
};

template <class T, int kEach>
__global__ void __launch_bounds__(kThreads) add_squares_channels(const AddSquaresParams p) {
  using Tiles = RowTiles<T, kEach>;
  constexpr int kRows = Tiles::kRows;
  __shared__ alignas(16) T tile[kRows][kChannels];
  __shared__ float scale[kRows];
  cuda::start_after_previous();
  const int in_block = static_cast<int>(threadIdx.x);
  const int64_t j = int64_t{blockIdx.x} * kChannels + in_block;
  const bool adds = in_block < kChannels && j < p.n_channels;
  for (int b = 0; b < p.n_seqs; ++b) {
    const int begin = p.row_begin[b], end = p.row_begin[b + 1];
    const int first = max(begin, p.first_row), last = min(end, p.last_row);
    if (first >= last) continue;
    float* const sums = p.to.sums + p.slot[b] * p.to.slot_stride;
    float* const rows = p.to.rows + p.slot[b] * p.to.rows_stride;
    float sum = adds ? sums[j] : 0, weight = 1;
    if (p.blend > 0) {
      weight = p.blend * (*rows / static_cast<float>(end - begin));
      if (first == begin) sum *= 1 - p.blend;
    } else if (j == 0) {
      *rows += static_cast<float>(last - first);  // which no other block reads now
    }
    Tiles tiles;
    tiles.load(p, first, last);
    for (int at = first; at < last; at += kRows) {
      const int n = min(kRows, last - at);
      __syncthreads();
      tiles.store(tile);
      for (int r = in_block; r < n; r += kThreads)
        scale[r] = scale_of(p, at + r - p.first_row) * weight;
      __syncthreads();
      tiles.load(p, at + kRows, last);
      if (!adds) continue;
#pragma unroll 8
      for (int r = 0; r < n; ++r) {
        const float x = cuda::to_float(tile[r][in_block]);
        sum = fmaf(x * x, scale[r], sum);
      }
    }
    if (adds) sums[j] = sum;
  }
}

}  // namespace

void square_scales_cuda(const SquareScalesParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.x_type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = cuda::Pack<T>::kSize;
    const bool packed = cuda::packable<T>(p.n_channels, p.x) && p.row_stride % kEach == 0;
    cuda::launch(packed ? square_scales_row<T, kEach> : square_scales_row<T, 1>,
                 dim3(static_cast<unsigned>(p.n_rows)), kThreads, stream, p);
  });
}

void add_squares_cuda(const AddSquaresParams& p, Stream stream) {
  if (p.first_row >= p.last_row || p.n_channels == 0) return;
  cuda::with_act(p.x_type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = cuda::Pack<T>::kSize;
    const bool packed = cuda::packable<T>(p.n_channels, p.x) && p.row_stride % kEach == 0;
    cuda::launch(packed ? add_squares_channels<T, kEach> : add_squares_channels<T, 1>,
                 dim3(cuda::blocks_for(p.n_channels, kChannels)), kThreads, stream, p);
  });
}

}  // namespace tandem
