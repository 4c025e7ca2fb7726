#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/optim/adamw_element.h"

namespace tandem {
namespace {

constexpr int kThreads = 256, kEach = 8;

__device__ float narrow(const AdamWNarrowParams&, float w, const PhiloxBlock&, int64_t, float*) {
  return w;
}
__device__ __nv_bfloat16 narrow(const AdamWNarrowParams& p, float w, const PhiloxBlock& draw,
                                int64_t element, __nv_bfloat16*) {
  if (!p.stochastic || !isfinite(w)) return __float2bfloat16_rn(w);
  return __ushort_as_bfloat16(round_by(__float_as_uint(w), draw, element));
}

/// kEach elements a thread, in one access if kPacked.
template <class W, bool kPacked>
__global__ void __launch_bounds__(kThreads) adamw_narrow_elements(const AdamWNarrowParams p) {
  using M = cuda::Vector<__nv_bfloat16, kEach>;
  cuda::start_after_previous();
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  if (begin >= p.n) return;
  const int n = p.n - begin < kEach ? static_cast<int>(p.n - begin) : kEach;
  W* const weights = static_cast<W*>(p.weights) + begin;
  auto* const first = reinterpret_cast<__nv_bfloat16*>(p.first) + begin;
  auto* const second = reinterpret_cast<__nv_bfloat16*>(p.second) + begin;
  cuda::Vector<W, kEach> w = {};
  M m = {}, v = {};
  cuda::Vector<float, kEach> g = {};
  if (kPacked && n == kEach) {
    w = *reinterpret_cast<const cuda::Vector<W, kEach>*>(weights);
    m = *reinterpret_cast<const M*>(first);
    v = *reinterpret_cast<const M*>(second);
    g = *reinterpret_cast<const cuda::Vector<float, kEach>*>(p.gradient + begin);
  } else {
    for (int e = 0; e < n; ++e) {
      w.at[e] = weights[e];
      m.at[e] = first[e];
      v.at[e] = second[e];
      g.at[e] = p.gradient[begin + e];
    }
  }
  PhiloxBlock draw{};
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int64_t element = p.first_element + begin + e;
    if (p.stochastic && (e == 0 || element % kElementsADraw == 0)) draw = rounding_draw(p, element);
    float of_m = cuda::to_float(m.at[e]), of_v = cuda::to_float(v.at[e]);
    const float base = p.base == nullptr || e >= n ? 0.0f : p.base[begin + e];
    const float next = adamw_element(p.by, g.at[e], cuda::to_float(w.at[e]), base, of_m, of_v);
    w.at[e] = narrow(p, next, draw, element, static_cast<W*>(nullptr));
    m.at[e] = __float2bfloat16_rn(of_m);
    v.at[e] = __float2bfloat16_rn(of_v);
  }
  if (kPacked && n == kEach) {
    *reinterpret_cast<cuda::Vector<W, kEach>*>(weights) = w;
    *reinterpret_cast<M*>(first) = m;
    *reinterpret_cast<M*>(second) = v;
    return;
  }
  for (int e = 0; e < n; ++e) {
    weights[e] = w.at[e];
    first[e] = m.at[e];
    second[e] = v.at[e];
  }
}

}  // namespace

void adamw_narrow_cuda(const AdamWNarrowParams& p, Stream stream) {
  if (p.n == 0) return;
  cuda::with_act(p.weight_type, [&](auto* type) {
    using W = std::remove_pointer_t<decltype(type)>;
    const bool packed = cuda::packable<float>(0, p.weights, p.first, p.second, p.gradient);
    cuda::launch(packed ? adamw_narrow_elements<W, true> : adamw_narrow_elements<W, false>,
                 dim3(cuda::blocks_for(p.n, kThreads * kEach)), kThreads, stream, p);
  });
}

}  // namespace tandem
