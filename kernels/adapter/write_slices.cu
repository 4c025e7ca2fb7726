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

// Merging: a block makes 128 rows by 128 columns, a thread 8 by 8 of them. Along the numbers that
// are neighbours in memory a thread's are 16 bytes at a time.
constexpr int kTile = 128, kOfThread = 8, kRanks = 16, kMergeThreads = 256;
constexpr int kAcross = kTile / kOfThread;  // threads

template <class T>
__global__ void __launch_bounds__(kMergeThreads) merge_low_rank(const MergeLowRankParams p) {
  using Numbers = cuda::Vector<T, kOfThread>;
  // Of the slow dimension of memory and of the fast one: b and a, or a and b of weights by input.
  __shared__ float slow[kRanks][kTile], fast[kRanks][kTile];
  cuda::wait_for_previous();
  const int64_t n_slow = p.by_input ? p.in : p.rows, n_fast = p.by_input ? p.rows : p.in;
  const int64_t first_slow = int64_t{blockIdx.y} * kTile, first_fast = int64_t{blockIdx.x} * kTile;
  const int thread = static_cast<int>(threadIdx.x);
  const int of_slow = thread / kAcross * kOfThread, of_fast = thread % kAcross * kOfThread;
  const int64_t begin_fast = first_fast + of_fast;
  const bool whole = begin_fast + kOfThread <= n_fast && n_fast % kOfThread == 0;
  const auto at = [&](int i) { return (first_slow + of_slow + i) * n_fast + begin_fast; };

  float sum[kOfThread][kOfThread] = {};
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    if (first_slow + of_slow + i >= n_slow) break;
    const T* const from = static_cast<const T*>(p.base) + at(i);
    if (whole) {
      const Numbers numbers = *reinterpret_cast<const Numbers*>(from);
#pragma unroll
      for (int j = 0; j < kOfThread; ++j) sum[i][j] = cuda::to_float(numbers.at[j]);
    } else {
      for (int j = 0; j < kOfThread; ++j)
        if (begin_fast + j < n_fast) sum[i][j] = cuda::to_float(from[j]);
    }
  }
  for (int begin = 0; begin < p.rank; begin += kRanks) {
    const int ranks = min(kRanks, p.rank - begin);
    float(*const of_a)[kTile] = p.by_input ? slow : fast;
    float(*const of_b)[kTile] = p.by_input ? fast : slow;
    const int64_t first_in = p.by_input ? first_slow : first_fast;
    const int64_t first_row = p.by_input ? first_fast : first_slow;
    __syncthreads();
    for (int i = thread; i < kRanks * kTile; i += kMergeThreads) {
      const int64_t c = first_in + i % kTile, r = first_row + i / kRanks;
      const int of_column = i / kTile, of_row = i % kRanks;
      of_a[of_column][i % kTile] =
          of_column < ranks && c < p.in ? p.a[(begin + of_column) * p.in + c] : 0.0f;
      of_b[of_row][i / kRanks] =
          of_row < ranks && r < p.rows ? p.b[r * p.rank + begin + of_row] : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < ranks; ++k) {
      float x[kOfThread], y[kOfThread];
#pragma unroll
      for (int i = 0; i < kOfThread; ++i) x[i] = slow[k][of_slow + i];
#pragma unroll
      for (int j = 0; j < kOfThread; ++j) y[j] = fast[k][of_fast + j];
#pragma unroll
      for (int i = 0; i < kOfThread; ++i)
#pragma unroll
        for (int j = 0; j < kOfThread; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
    }
  }
  const auto scale_of = [&](int i, int j) {
    if (p.scale == nullptr) return 1.0f;
    const int64_t row = p.by_input ? begin_fast + j : first_slow + of_slow + i;
    return row < p.rows ? p.scale[row] : 1.0f;
  };
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    if (first_slow + of_slow + i >= n_slow) break;
    T* const to = static_cast<T*>(p.weights) + at(i);
    Numbers numbers;
#pragma unroll
    for (int j = 0; j < kOfThread; ++j)
      numbers.at[j] = cuda::from_float<T>(scale_of(i, j) * sum[i][j]);
    if (whole)
      *reinterpret_cast<Numbers*>(to) = numbers;
    else
      for (int j = 0; j < kOfThread; ++j)
        if (begin_fast + j < n_fast) to[j] = numbers.at[j];
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
  const dim3 grid(cuda::blocks_for(p.by_input ? p.rows : p.in, kTile),
                  cuda::blocks_for(p.by_input ? p.in : p.rows, kTile));
  cuda::with_act(p.type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    cuda::launch(merge_low_rank<T>, grid, kMergeThreads, stream, p);
  });
}

}  // namespace tandem
