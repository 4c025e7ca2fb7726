#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/ffn/gate.cuh"
#include "kernels/ffn/gate_mul.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMaxGridRows = 65535;

/// kEach elements a thread and access; blocks along y share the rows.
template <Gate kGate, class T, int kEach>
__global__ void __launch_bounds__(kThreads) gate_mul_rows(const GateMulParams p) {
  using V = cuda::Vector<T, kEach>;
  cuda::start_after_previous();
  const int n = p.ffn_dim / kEach, i = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  for (int64_t r = blockIdx.y; r < p.n_rows; r += gridDim.y) {
    const V* gate_up = static_cast<const V*>(p.gate_up) + r * 2 * n;
    const V gate = gate_up[i], up = gate_up[n + i];
    V out;
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      out.at[e] = cuda::from_float<T>(cuda::gate_value<T>(kGate, cuda::to_float(gate.at[e])) *
                                      cuda::to_float(up.at[e]));
    static_cast<V*>(p.out)[r * n + i] = out;
  }
}

}  // namespace

void gate_mul_cuda(const GateMulParams& p, Stream stream) {
  if (p.n_rows == 0 || p.ffn_dim == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    constexpr int kEach = 16 / sizeof(T);
    const bool packed = cuda::packable<T>(p.ffn_dim, p.out, p.gate_up);
    const unsigned blocks = cuda::blocks_for(p.ffn_dim / (packed ? kEach : 1), kThreads);
    const unsigned rows = static_cast<unsigned>(p.n_rows);
    const dim3 grid(blocks, rows < kMaxGridRows ? rows : kMaxGridRows);
    with_gate(p.gate, [&](auto gate) {
      cuda::launch(packed ? gate_mul_rows<gate, T, kEach> : gate_mul_rows<gate, T, 1>, grid,
                   kThreads, stream, p);
    });
  });
}

}  // namespace tandem
