#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/norm/row_norms.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ float square_sum(const T* x, int begin, int end) {
  float sum = 0;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    const float v = cuda::to_float(x[i]);
    sum = fmaf(v, v, sum);
  }
  return cuda::block_sum<kThreads>(sum);
}

/// One row a block in x; q and k are blocks 0 and 1 in y.
template <class T>
__global__ void __launch_bounds__(kThreads) qk_squares_rows(const RowNormsParams p) {
  cuda::start_after_previous();
  const int64_t r = blockIdx.x;
  const bool is_k = blockIdx.y == 1;
  const T* row = static_cast<const T*>(p.in) + r * (p.q_dim + 2 * p.kv_dim);
  const float sum =
      is_k ? square_sum(row + p.q_dim, p.first_k, p.kv_dim) : square_sum(row, 0, p.q_dim);
  if (threadIdx.x == 0) p.squares[2 * r + is_k] = sum;
}

/// Norms q and k of a row and copies v: block (row, part), parts q, k and v.
template <class T>
__global__ void __launch_bounds__(kThreads) row_norms_rows(const RowNormsParams p) {
  cuda::start_after_previous();
  const int64_t r = blockIdx.x;
  const int part = static_cast<int>(blockIdx.y), n = part == 0 ? p.q_dim : p.kv_dim;
  const int64_t first =
      r * (p.q_dim + 2 * p.kv_dim) + (part == 0 ? 0 : p.q_dim + (part - 1) * p.kv_dim);
  const T* in = static_cast<const T*>(p.in) + first;
  T* out = static_cast<T*>(p.out) + first;
  if (part == 2) {
    for (int i = static_cast<int>(threadIdx.x); in != out && i < n; i += kThreads) out[i] = in[i];
    return;
  }
  const float* norm = part == 0 ? p.q_norm : p.k_norm;
  const auto all = static_cast<float>(part == 0 ? p.q_all : p.k_all);
  const float inverse = 1.0f / sqrtf(p.squares[2 * r + part] / all + p.eps);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads)
    out[i] = cuda::from_float<T>(cuda::to_float(in[i]) * inverse * norm[i]);
}

/// Turns gradients of a row's q and k back: block (row, part), parts q and k.
template <class T>
__global__ void __launch_bounds__(kThreads) row_norms_back(const RowNormsBackwardParams p) {
  cuda::start_after_previous();
  const int64_t r = blockIdx.x;
  const bool is_k = blockIdx.y == 1;
  const int n = is_k ? p.kv_dim : p.q_dim, from = is_k ? p.q_dim : 0;
  const int64_t first = r * (p.q_dim + 2 * p.kv_dim) + from;
  T* dy = static_cast<T*>(p.dqkv) + first;
  const T* x = static_cast<const T*>(p.qkv) + first;
  const float* norm = is_k ? p.k_norm : p.q_norm;
  float* dnorm = p.dnorms == nullptr ? nullptr : p.dnorms + r * (p.q_dim + p.kv_dim) + from;
  const auto count = static_cast<float>(n);
  const float inverse = 1.0f / sqrtf(square_sum(x, 0, n) / count + p.eps);
  float dots = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    const float g = cuda::to_float(dy[i]), unit = cuda::to_float(x[i]) * inverse;
    dots = fmaf(g * norm[i], unit, dots);
    if (dnorm != nullptr) dnorm[i] = g * unit;
  }
  const float mean = cuda::block_sum<kThreads>(dots) / count;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    const float unit = cuda::to_float(x[i]) * inverse;
    dy[i] = cuda::from_float<T>(inverse * (cuda::to_float(dy[i]) * norm[i] - unit * mean));
  }
}

template <class Params>
void launch(void (*kernel)(Params), unsigned parts, const Params& p, Stream stream) {
  cuda::launch(kernel, dim3(static_cast<unsigned>(p.n_rows), parts), kThreads, stream, p);
}

}  // namespace

void qk_squares_cuda(const RowNormsParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    launch(qk_squares_rows<std::remove_pointer_t<decltype(act)>>, 2, p, stream);
  });
}

void row_norms_cuda(const RowNormsParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    launch(row_norms_rows<std::remove_pointer_t<decltype(act)>>, 3, p, stream);
  });
}

void row_norms_backward_cuda(const RowNormsBackwardParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    launch(row_norms_back<std::remove_pointer_t<decltype(act)>>, 2, p, stream);
  });
}

}  // namespace tandem
