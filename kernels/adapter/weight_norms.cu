#include "kernels/adapter/weight_norms.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kRows = 4;   // of a warp in weight_norms, which reads A A^T once for them

__device__ double warp_sum(double x) {
  for (int step = cuda::kWarp / 2; step > 0; step /= 2)
    x += __shfl_xor_sync(cuda::kAllLanes, x, step);
  return x;
}

__device__ float norm_of(double squares) {
  return fmaxf(static_cast<float>(sqrt(fmax(0.0, squares))), kLeastWeightNorm);
}

/// A warp a row, kEach elements an access.
template <class T, int kEach>
__global__ void __launch_bounds__(kWarps* cuda::kWarp) row_squares_row(const RowSquaresParams p) {
  using V = cuda::Vector<T, kEach>;
  cuda::start_after_previous();
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int64_t r = int64_t{blockIdx.x} * kWarps + threadIdx.x / cuda::kWarp;
  if (r >= p.rows) return;
  const V* const row = reinterpret_cast<const V*>(static_cast<const T*>(p.weights) + r * p.in);
  double sum = 0;
  for (int i = lane; i < p.in / kEach; i += cuda::kWarp) {
    const V w = row[i];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const double x = cuda::to_float(w.at[e]);
      sum += x * x;
    }
  }
  const auto squares = static_cast<float>(warp_sum(sum));
  if (lane == 0) p.squares[r] = p.root ? norm_of(squares) : squares;
}

/// kRows rows a warp. Lanes share the columns of A A^T.
template <class T>
__global__ void __launch_bounds__(kWarps* cuda::kWarp)
    weight_norms_rows(const WeightNormsParams p) {
  cuda::start_after_previous();
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / cuda::kWarp) * kRows;
  if (first >= p.rows) return;
  int64_t row[kRows];  // past the end the last one again
  double change[kRows] = {};
#pragma unroll
  for (int k = 0; k < kRows; ++k) row[k] = first + k < p.rows ? first + k : p.rows - 1;
  const T* const b = static_cast<const T*>(p.b);
  const int64_t rank = p.rank;
  for (int64_t j = lane; j < rank; j += cuda::kWarp) {
    double along[kRows] = {};  // B_o A A^T, column j
    for (int64_t i = 0; i < rank; ++i) {
      const double aa = p.aa[i * rank + j];
#pragma unroll
      for (int k = 0; k < kRows; ++k) along[k] += double{cuda::to_float(b[row[k] * rank + i])} * aa;
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t at = row[k] * rank + j;
      change[k] +=
          double{cuda::to_float(b[at])} * (2 * double{p.wa[at]} + double{p.gamma} * along[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const double sum = double{p.gamma} * warp_sum(change[k]);
    if (lane == 0 && first + k < p.rows)
      p.scale[row[k]] = p.magnitude[row[k]] / norm_of(double{p.squares[row[k]]} + sum);
  }
}

}  // namespace

void row_squares_cuda(const RowSquaresParams& p, Stream stream) {
  if (p.rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = cuda::Pack<T>::kSize;
    const bool packed = cuda::packable<T>(p.in, p.weights);
    cuda::launch(packed ? row_squares_row<T, kEach> : row_squares_row<T, 1>,
                 dim3(cuda::blocks_for(p.rows, kWarps)), kWarps * cuda::kWarp, stream, p);
  });
}

void weight_norms_cuda(const WeightNormsParams& p, Stream stream) {
  if (p.rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    cuda::launch(weight_norms_rows<T>, dim3(cuda::blocks_for(p.rows, kWarps * kRows)),
                 kWarps * cuda::kWarp, stream, p);
  });
}

}  // namespace tandem
