#include <math.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/page/eight_bit_rows.h"
#include "kernels/page/eight_bit_scale.h"

namespace tandem {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarp;
constexpr int kEach = 4;  // elements that a lane moves at a time

/// A warp's row; none past the last.
__device__ int64_t row_of_warp() { return int64_t{blockIdx.x} * kWarps + cuda::warp_of(); }

/// Calls f(element, n) for a lane's elements of a row: four at a time where that divides d.
template <class F>
__device__ void each_part(int d, F&& f) {
  if (d % kEach == 0)
    for (int c = cuda::lane_of() * kEach; c < d; c += cuda::kWarp * kEach) f(c, kEach);
  else
    for (int c = cuda::lane_of(); c < d; c += cuda::kWarp) f(c, 1);
}

/// n is 1, or 4 in one access.
template <class T>
__device__ void copy_part(T* to, const T* from, int n) {
  if (n == kEach)
    *reinterpret_cast<cuda::Vector<T, kEach>*>(to) =
        *reinterpret_cast<const cuda::Vector<T, kEach>*>(from);
  else
    *to = *from;
}

template <class T>
__global__ void __launch_bounds__(kThreads) narrow_rows(const EightBitRowsParams p) {
  cuda::start_after_previous();
  const int64_t row = row_of_warp();
  if (row >= p.n_rows) return;
  const T* x = static_cast<const T*>(p.wide) + row * p.d;
  float most = 0;
  bool finite = true;
  each_part(p.d, [&](int c, int n) {
    alignas(16) T part[kEach];
    copy_part(part, x + c, n);
    for (int i = 0; i < n; ++i) {
      const float magnitude = fabsf(cuda::to_float(part[i]));
      most = fmaxf(most, magnitude);
      finite = finite && magnitude < INFINITY;
    }
  });
  finite = __all_sync(cuda::kAllLanes, finite);
  most = cuda::warp_max(most);
  const float scale = finite ? eight_bit_scale(most) : cuda::quiet_nan();
  const float factor = finite ? eight_bit_factor(scale) : 0;
  each_part(p.d, [&](int c, int n) {
    alignas(16) T part[kEach];
    alignas(4) int8_t numbers[kEach];
    copy_part(part, x + c, n);
    for (int i = 0; i < n; ++i)
      numbers[i] = finite ? static_cast<int8_t>(__float2int_rn(cuda::to_float(part[i]) * factor))
                          : int8_t{0};
    copy_part(p.rows + row * p.d + c, numbers, n);
  });
  if (cuda::lane_of() == 0) p.scales[row * p.scale_stride] = scale;
}

template <class T>
__global__ void __launch_bounds__(kThreads) widen_rows(const EightBitRowsParams p) {
  cuda::start_after_previous();
  const int64_t row = row_of_warp();
  if (row >= p.n_rows) return;
  T* x = static_cast<T*>(p.wide) + row * p.d;
  const float scale = p.scales[row * p.scale_stride];
  each_part(p.d, [&](int c, int n) {
    alignas(16) T part[kEach];
    alignas(4) int8_t numbers[kEach];
    copy_part(numbers, p.rows + row * p.d + c, n);
    for (int i = 0; i < n; ++i)
      part[i] = cuda::from_float<T>(static_cast<float>(numbers[i]) * scale);
    copy_part(x + c, part, n);
  });
}

}  // namespace

void narrow_rows_cuda(const EightBitRowsParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    cuda::launch(narrow_rows<T>, cuda::blocks_for(p.n_rows, kWarps), kThreads, stream, p);
  });
}

void widen_eight_bit_rows_cuda(const EightBitRowsParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    cuda::launch(widen_rows<T>, cuda::blocks_for(p.n_rows, kWarps), kThreads, stream, p);
  });
}

}  // namespace tandem
