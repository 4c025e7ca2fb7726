#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/ffn/gate.cuh"
#include "kernels/ffn/gate_mul_backward.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMaxGridRows = 65535;

dim3 grid_of(int64_t columns, int n_rows) {
  const auto rows = static_cast<unsigned>(n_rows);
  return {cuda::blocks_for(columns, kThreads), rows < kMaxGridRows ? rows : kMaxGridRows};
}

/// Listed columns of a; blocks along y share the rows.
template <Gate kGate, class T>
__global__ void __launch_bounds__(kThreads) gated_columns(const GateMulBackwardParams p) {
  cuda::start_after_previous();
  const int c = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= p.n_columns) return;
  const int64_t width = p.ffn_dim, column = p.columns == nullptr ? c : p.columns[c];
  for (int64_t r = blockIdx.y; r < p.n_rows; r += gridDim.y) {
    const T* gate = static_cast<const T*>(p.gate_up) + r * 2 * width + column;
    static_cast<T*>(p.a_columns)[r * p.n_columns + c] = cuda::from_float<T>(
        cuda::gate_value<T>(kGate, cuda::to_float(*gate)) * cuda::to_float(gate[width]));
  }
}

/// kEach elements a thread and access. kGated: all of a is written too.
template <Gate kGate, class T, int kEach, bool kGated>
__global__ void __launch_bounds__(kThreads) gate_mul_backward_rows(const GateMulBackwardParams p) {
  using V = cuda::Vector<T, kEach>;
  cuda::start_after_previous();
  const int n = p.ffn_dim / kEach, i = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  for (int64_t r = blockIdx.y; r < p.n_rows; r += gridDim.y) {
    V* gate_up = static_cast<V*>(p.gate_up) + r * 2 * n;
    V gate = gate_up[i], up = gate_up[n + i], gated;
    const V da = static_cast<const V*>(p.da)[r * n + i];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float g = cuda::to_float(gate.at[e]), u = cuda::to_float(up.at[e]);
      const float d = cuda::to_float(da.at[e]), s = cuda::gate_sigmoid<T>(kGate, g);
      if (kGated) gated.at[e] = cuda::from_float<T>(cuda::gate_value<T>(kGate, g) * u);
      gate.at[e] = cuda::from_float<T>(d * u * s * cuda::gate_slope_over_s(kGate, g, s));
      up.at[e] = cuda::from_float<T>(d * g * s);
    }
    if (kGated) static_cast<V*>(p.a_columns)[r * n + i] = gated;
    gate_up[i] = gate;
    gate_up[n + i] = up;
  }
}

}  // namespace

void gate_mul_backward_cuda(const GateMulBackwardParams& p, Stream stream) {
  if (p.n_rows == 0 || p.ffn_dim == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = 16 / sizeof(T);
    const bool columns = p.a_columns != nullptr && p.n_columns > 0;
    const bool gated = columns && p.columns == nullptr && p.n_columns == p.ffn_dim && p.da;
    const bool packed = cuda::packable<T>(p.ffn_dim, p.gate_up, p.da, p.a_columns);
    const auto run = [&](auto* kernel, int each) {
      cuda::launch(kernel, grid_of(p.ffn_dim / each, p.n_rows), kThreads, stream, p);
    };
    with_gate(p.gate, [&](auto gate) {
      if (columns && !gated)
        cuda::launch(gated_columns<gate, T>, grid_of(p.n_columns, p.n_rows), kThreads, stream, p);
      if (p.da == nullptr) return;
      if (packed)
        run(gated ? gate_mul_backward_rows<gate, T, kEach, true>
                  : gate_mul_backward_rows<gate, T, kEach, false>,
            kEach);
      else
        run(gated ? gate_mul_backward_rows<gate, T, 1, true>
                  : gate_mul_backward_rows<gate, T, 1, false>,
            1);
    });
  });
}

}  // namespace tandem
