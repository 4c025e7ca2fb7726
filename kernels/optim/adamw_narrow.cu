#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/optim/adamw_element.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;

__device__ float narrow(const AdamWNarrowParams&, float w, const PhiloxBlock&, int, float*) {
  return w;
}
__device__ __nv_bfloat16 narrow(const AdamWNarrowParams& p, float w, const PhiloxBlock& draw,
                                int place, __nv_bfloat16*) {
  if (!p.stochastic || !isfinite(w)) return __float2bfloat16_rn(w);
  return __ushort_as_bfloat16(round_by(__float_as_uint(w), rounding_bits(draw, place)));
}

/// A group a thread, so that every element's place is known when this is compiled. Only the first
/// and the last may be cut; whole ones are moved in as few accesses as they fill, if kPacked.
template <class W, bool kPacked>
__global__ void __launch_bounds__(kThreads) adamw_narrow_groups(const AdamWNarrowParams p) {
  using M = cuda::Vector<__nv_bfloat16, kGroup>;
  using F = cuda::Vector<float, kGroup>;
  cuda::start_after_previous();
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t begin = group_begin(p.first_element, index);
  if (begin >= p.n) return;
  const bool whole = begin >= 0 && begin + kGroup <= p.n;
  W* const weights = static_cast<W*>(p.weights) + begin;
  auto* const first = reinterpret_cast<__nv_bfloat16*>(p.first) + begin;
  auto* const second = reinterpret_cast<__nv_bfloat16*>(p.second) + begin;
  const float* const gradient = p.gradient + begin;
  const float* const base = p.base == nullptr ? nullptr : p.base + begin;
  const auto has = [&](int e) { return whole || (begin + e >= 0 && begin + e < p.n); };
  cuda::Vector<W, kGroup> w = {};
  M m = {}, v = {};
  F g = {}, b = {};
  if (kPacked && whole) {
    w = *reinterpret_cast<const cuda::Vector<W, kGroup>*>(weights);
    m = *reinterpret_cast<const M*>(first);
    v = *reinterpret_cast<const M*>(second);
    g = *reinterpret_cast<const F*>(gradient);
    if (base != nullptr) b = *reinterpret_cast<const F*>(base);
  } else {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      if (!has(e)) continue;
      w.at[e] = weights[e];
      m.at[e] = first[e];
      v.at[e] = second[e];
      g.at[e] = gradient[e];
      if (base != nullptr) b.at[e] = base[e];
    }
  }
  PhiloxBlock draw{};
  if (p.stochastic)
    draw = rounding_draw(p.seed, p.step, rounding_place(p.first_element).group + index);
#pragma unroll
  for (int e = 0; e < kGroup; ++e) {
    float of_m = cuda::to_float(m.at[e]), of_v = cuda::to_float(v.at[e]);
    const float next = adamw_element(p.by, g.at[e], cuda::to_float(w.at[e]), b.at[e], of_m, of_v);
    w.at[e] = narrow(p, next, draw, e, static_cast<W*>(nullptr));
    m.at[e] = __float2bfloat16_rn(of_m);
    v.at[e] = __float2bfloat16_rn(of_v);
  }
  if (kPacked && whole) {
    *reinterpret_cast<cuda::Vector<W, kGroup>*>(weights) = w;
    *reinterpret_cast<M*>(first) = m;
    *reinterpret_cast<M*>(second) = v;
    return;
  }
#pragma unroll
  for (int e = 0; e < kGroup; ++e) {
    if (!has(e)) continue;
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
    const bool packed = group_begin(p.first_element, 0) == 0 &&
                        cuda::packable<float>(0, p.weights, p.first, p.second, p.gradient, p.base);
    const dim3 grid(cuda::blocks_for(n_groups(p.first_element, p.n), kThreads));
    cuda::launch(packed ? adamw_narrow_groups<W, true> : adamw_narrow_groups<W, false>, grid,
                 kThreads, stream, p);
  });
}

}  // namespace tandem
