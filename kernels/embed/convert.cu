#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/embed/convert.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // elements a thread: 16 bytes of a two-byte type

/// The elements after the last whole vector, or all of them if not kPacked, are done one by one.
template <class To, class From, bool kPacked>
__global__ void __launch_bounds__(kThreads) convert_elements(const ConvertParams p) {
  cuda::start_after_previous();
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  To* out = static_cast<To*>(p.out) + begin;
  const From* in = static_cast<const From*>(p.in) + begin;
  if (kPacked && begin + kEach <= p.n) {
    const auto v = *reinterpret_cast<const cuda::Vector<From, kEach>*>(in);
    cuda::Vector<To, kEach> o;
#pragma unroll
    for (int e = 0; e < kEach; ++e) o.at[e] = cuda::from_float<To>(cuda::to_float(v.at[e]));
    *reinterpret_cast<cuda::Vector<To, kEach>*>(out) = o;
    return;
  }
  for (int e = 0; e < kEach && begin + e < p.n; ++e)
    out[e] = cuda::from_float<To>(cuda::to_float(in[e]));
}

}  // namespace

void convert_cuda(const ConvertParams& p, Stream stream) {
  if (p.n == 0) return;
  cuda::with_number(p.from, [&](auto* from) {
    cuda::with_act(p.to, [&](auto* to) {
      using From = std::remove_pointer_t<decltype(from)>;
      using To = std::remove_pointer_t<decltype(to)>;
      const bool packed = cuda::packable<float>(0, p.out, p.in);
      const dim3 grid(cuda::blocks_for(p.n, kThreads * kEach));
      cuda::launch(packed ? convert_elements<To, From, true> : convert_elements<To, From, false>,
                   grid, kThreads, stream, p);
    });
  });
}

}  // namespace tandem
