#pragma once
// How a block reads rows of the pools from anywhere: a group of lanes a row, 16 bytes a lane where
// rows are aligned to them.
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {

/// kLanes_ lanes read a row of T, kPacks_ times kSize_ elements each.
template <class T, int kLanes_, int kPacks_, int kSize_ = cuda::Pack<T>::kSize>
struct RowShape {
  using Number = T;
  using Pack = cuda::Vector<T, kSize_>;
  static constexpr int kLanes = kLanes_, kPacks = kPacks_, kThreads = 128;
  static constexpr int kSize = kSize_, kOwn = kPacks * kSize;
  static constexpr int kGroups = kThreads / kLanes;
  static_assert(cuda::kWarp % kLanes == 0);

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ static int group() { return static_cast<int>(threadIdx.x) / kLanes; }
  /// First element of the lane's pack i of a row.
  __device__ static int element(int i) { return (i * kLanes + lane()) * kSize; }

  /// The lane's part of a row of d elements, zeros beyond.
  __device__ static void load(const T* row, int d, Pack (&x)[kPacks]) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      x[i] = {};
      if (element(i) < d) x[i] = *reinterpret_cast<const Pack*>(row + element(i));
    }
  }
  /// The sum of x over the lanes of a row; each gets it.
  __device__ static float sum(float x) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(cuda::kAllLanes, x, step);
    return x;
  }
};

/// Calls f with the shape for rows of d elements.
template <class F>
void with_row_shape(DType dtype, int d, const F& f) {
  cuda::with_act(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int packs = d / cuda::Pack<T>::kSize;
    if (d % cuda::Pack<T>::kSize != 0) return f(RowShape<T, 32, 8, 1>{});
    if (packs <= 8) return f(RowShape<T, 8, 1>{});
    if (packs <= 16) return f(RowShape<T, 16, 1>{});
    packs <= 32 ? f(RowShape<T, 32, 1>{}) : f(RowShape<T, 32, 2>{});
  });
}

}  // namespace tandem
