#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/norm/rms_norm_backward.h"

namespace tandem {
namespace {

/// One block a row; kEach elements an access. A thread keeps kKept vectors of both inputs between
/// the two passes and reads the rest again.
template <class Dy, class X, int kEach, int kThreads, int kKept>
__global__ void __launch_bounds__(kThreads) rms_norm_backward_rows(const RmsNormBackwardParams p) {
  using F = cuda::Vector<float, kEach>;
  cuda::start_after_previous();
  const int n = p.dim / kEach, first = static_cast<int>(threadIdx.x);
  const int64_t from = blockIdx.x, row = p.rows == nullptr ? from : p.rows[from];
  const auto* weight = reinterpret_cast<const F*>(p.weight);
  const auto* x = static_cast<const cuda::Vector<X, kEach>*>(p.x) + row * n;
  const auto* dy = static_cast<const cuda::Vector<Dy, kEach>*>(p.dy) + from * n;
  F* dx = reinterpret_cast<F*>(p.dx) + row * n;

  float squares = 0, products = 0;  // sums of x^2 and of x h
  const auto load = [&](int i, F& of_x, F& h) {
    const auto a = x[i];
    const auto g = dy[i];
    const F w = weight[i];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      of_x.at[e] = cuda::to_float(a.at[e]);
      h.at[e] = cuda::to_float(g.at[e]) * w.at[e];
    }
  };
  const auto add = [&](const F& of_x, const F& h) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      squares = fmaf(of_x.at[e], of_x.at[e], squares);
      products = fmaf(of_x.at[e], h.at[e], products);
    }
  };
  F kept_x[kKept], kept_h[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (const int i = first + k * kThreads; i < n) load(i, kept_x[k], kept_h[k]);
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (first + k * kThreads < n) add(kept_x[k], kept_h[k]);
  F more_x, more_h;
  for (int i = first + kKept * kThreads; i < n; i += kThreads) {
    load(i, more_x, more_h);
    add(more_x, more_h);
  }
  const auto dim = static_cast<float>(p.dim);
  const float inverse = 1.0f / sqrtf(cuda::block_sum<kThreads>(squares) / dim + p.eps);
  const float mean = cuda::block_sum<kThreads>(products) * inverse / dim;
  if (p.inverse != nullptr && first == 0) p.inverse[from] = inverse * p.scale;
  const float scale = inverse * p.scale;
  const auto write = [&](int i, const F& of_x, const F& h) {
    F to = dx[i];
#pragma unroll
    for (int e = 0; e < kEach; ++e) to.at[e] += scale * (h.at[e] - of_x.at[e] * inverse * mean);
    dx[i] = to;
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (const int i = first + k * kThreads; i < n) write(i, kept_x[k], kept_h[k]);
  for (int i = first + kKept * kThreads; i < n; i += kThreads) {
    load(i, more_x, more_h);
    write(i, more_x, more_h);
  }
}

/// One block a row that was not normalised.
template <class Dy>
__global__ void __launch_bounds__(256) add_scaled_rows(const RmsNormBackwardParams p) {
  cuda::start_after_previous();
  const int64_t from = blockIdx.x, row = p.rows == nullptr ? from : p.rows[from];
  const Dy* dy = static_cast<const Dy*>(p.dy) + from * p.dim;
  float* dx = p.dx + row * p.dim;
  for (int i = static_cast<int>(threadIdx.x); i < p.dim; i += 256)
    dx[i] = fmaf(cuda::to_float(dy[i]), p.scale, dx[i]);
}

template <class Dy, class X, int kEach>
void launch_rows(const RmsNormBackwardParams& p, Stream stream) {
  if (p.weight == nullptr)
    return cuda::launch(add_scaled_rows<Dy>, dim3(static_cast<unsigned>(p.n_rows)), 256, stream, p);
  // The order of the sums follows from the width alone.
  const bool wide = p.dim / kEach > 1024;
  cuda::launch(wide ? rms_norm_backward_rows<Dy, X, kEach, 512, 4>
                    : rms_norm_backward_rows<Dy, X, kEach, 256, 4>,
               dim3(static_cast<unsigned>(p.n_rows)), wide ? 512 : 256, stream, p);
}

}  // namespace

void rms_norm_backward_cuda(const RmsNormBackwardParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.dy_type, [&](auto* dy) {
    cuda::with_act(p.x_type, [&](auto* x) {
      using Dy = std::remove_pointer_t<decltype(dy)>;
      using X = std::remove_pointer_t<decltype(x)>;
      if (cuda::packable<float>(p.dim, p.dx, p.dy, p.x, p.weight))
        launch_rows<Dy, X, 4>(p, stream);
      else
        launch_rows<Dy, X, 1>(p, stream);
    });
  });
}

}  // namespace tandem
