#include "kernels/adapter/write_slices.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 32;  // of a slice

/// A warp a row of the slice, in pieces of 16 bytes where addresses allow.
template <class T>
__device__ void write_rows(const SliceWrite& s, int warp, int warps) {
  constexpr int kEach = cuda::Pack<T>::kSize;
  const bool packed = s.width % kEach == 0 && s.stride % kEach == 0 &&
                      reinterpret_cast<uintptr_t>(s.weights) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(s.values) % 16 == 0;
  for (int i = warp; i < s.n; i += warps) {
    T* const to = static_cast<T*>(s.weights) + s.index[i] * s.stride;
    const T* const from = static_cast<const T*>(s.values) + int64_t{i} * s.width;
    if (packed)
#pragma unroll 4
      for (int c = cuda::lane_of() * kEach; c < s.width; c += cuda::kWarp * kEach)
        *reinterpret_cast<uint4*>(to + c) = __ldg(reinterpret_cast<const uint4*>(from + c));
    else
      for (int c = cuda::lane_of(); c < s.width; c += cuda::kWarp) to[c] = from[c];
  }
}

/// Neighbouring lanes have neighbouring columns of the slice, which often are neighbours in the
/// matrix too: those of a head.
template <class T>
__device__ void write_columns(const SliceWrite& s, int64_t thread, int64_t threads) {
  const int64_t all = int64_t{s.n} * s.width;
#pragma unroll 4
  for (int64_t at = thread; at < all; at += threads) {
    const int64_t row = at / s.n;
    static_cast<T*>(s.weights)[row * s.stride + s.index[at - row * s.n]] =
        __ldg(static_cast<const T*>(s.values) + at);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) write_slices(const WriteSlicesParams p) {
  cuda::wait_for_previous();
  const SliceWrite s = p.slices[blockIdx.y];
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  constexpr int kAll = kBlocks * kThreads;
  if (s.columns)
    write_columns<T>(s, thread, kAll);
  else
    write_rows<T>(s, thread / cuda::kWarp, kAll / cuda::kWarp);
}

// Merging: a block makes 64 rows by 64 columns, a thread 4 by 4 of them.
constexpr int kTile = 64, kOfThread = 4, kRanks = 32, kMergeThreads = 256;

template <class T>
__global__ void __launch_bounds__(kMergeThreads) merge_low_rank(const MergeLowRankParams p) {
  __shared__ float a[kRanks][kTile], b[kRanks][kTile + 1];
  cuda::wait_for_previous();
  const int64_t first_row = int64_t{blockIdx.y} * kTile, first_column = int64_t{blockIdx.x} * kTile;
  const int thread = static_cast<int>(threadIdx.x);
  // Neighbouring threads have neighbouring numbers of memory.
  const int slow = thread / 16 * kOfThread, fast = thread % 16 * kOfThread;
  const int row = p.by_input ? fast : slow, column = p.by_input ? slow : fast;
  const auto at = [&](int i, int j) {
    const int64_t r = first_row + row + i, c = first_column + column + j;
    return p.by_input ? c * p.rows + r : r * p.in + c;
  };
  const auto inside = [&](int i, int j) {
    return first_row + row + i < p.rows && first_column + column + j < p.in;
  };
  float sum[kOfThread][kOfThread] = {};
#pragma unroll
  for (int i = 0; i < kOfThread; ++i)
#pragma unroll
    for (int j = 0; j < kOfThread; ++j)
      if (inside(i, j)) sum[i][j] = cuda::to_float(static_cast<const T*>(p.base)[at(i, j)]);
  for (int begin = 0; begin < p.rank; begin += kRanks) {
    const int ranks = min(kRanks, p.rank - begin);
    __syncthreads();
    for (int i = thread; i < kRanks * kTile; i += kMergeThreads) {
      const int k = i / kTile;
      const int64_t c = first_column + i % kTile;
      a[k][i % kTile] = k < ranks && c < p.in ? p.a[(begin + k) * p.in + c] : 0.0f;
      const int64_t r = first_row + i / kRanks;
      const int rank = i % kRanks;
      b[rank][i / kRanks] = rank < ranks && r < p.rows ? p.b[r * p.rank + begin + rank] : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < ranks; ++k)
#pragma unroll
      for (int i = 0; i < kOfThread; ++i)
#pragma unroll
        for (int j = 0; j < kOfThread; ++j)
          sum[i][j] = fmaf(b[k][row + i], a[k][column + j], sum[i][j]);
  }
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const bool real = first_row + row + i < p.rows;
    const float scale = p.scale != nullptr && real ? p.scale[first_row + row + i] : 1.0f;
#pragma unroll
    for (int j = 0; j < kOfThread; ++j)
      if (inside(i, j))
        static_cast<T*>(p.weights)[at(i, j)] = cuda::from_float<T>(scale * sum[i][j]);
  }
}

}  // namespace

void write_slices_cuda(const WriteSlicesParams& p, Stream stream) {
  if (p.n == 0) return;
  const dim3 grid(kBlocks, static_cast<unsigned>(p.n));
  cuda::launch(p.number_bytes == 2 ? write_slices<unsigned short> : write_slices<float>, grid,
               kThreads, stream, p);
}

void merge_low_rank_cuda(const MergeLowRankParams& p, Stream stream) {
  const dim3 grid(cuda::blocks_for(p.in, kTile), cuda::blocks_for(p.rows, kTile));
  cuda::with_act(p.type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    cuda::launch(merge_low_rank<T>, grid, kMergeThreads, stream, p);
  });
}

}  // namespace tandem
