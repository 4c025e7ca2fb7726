#include "kernels/channels/weight_part.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;

/// The place in the matrix of the i-th value.
__device__ int64_t place_of(const WeightPartParams& p, int64_t i) {
  switch (p.part) {
    case WeightPart::all:
      return i;
    case WeightPart::rows:
      return p.index[i / p.in] * p.in + i % p.in;
    case WeightPart::columns:
      return i / p.n * p.in + p.index[i % p.n];
    default:
      return p.index[i];
  }
}

__host__ __device__ int64_t size_of(const WeightPartParams& p) {
  if (p.part == WeightPart::all) return p.out * p.in;
  return p.n * (p.part == WeightPart::rows ? p.in : p.part == WeightPart::columns ? p.out : 1);
}

template <class T, bool kWrite>
__global__ void __launch_bounds__(kThreads) weight_part(const WeightPartParams p) {
  cuda::start_after_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= size_of(p)) return;
  T& weight = static_cast<T*>(p.weights)[place_of(p, i)];
  if (kWrite)
    weight = cuda::from_float<T>(p.values[i]);
  else
    p.values[i] = cuda::to_float(weight);
}

template <bool kWrite>
void run(const WeightPartParams& p, Stream stream) {
  if (size_of(p) == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    cuda::launch(weight_part<T, kWrite>, dim3(cuda::blocks_for(size_of(p), kThreads)), kThreads,
                 stream, p);
  });
}

__global__ void __launch_bounds__(kThreads) add_elements(const AddElementsParams p) {
  cuda::start_after_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < p.n) p.sums[i] += p.matrix[p.index[i]];
}

}  // namespace

void read_weight_part_cuda(const WeightPartParams& p, Stream stream) { run<false>(p, stream); }
void write_weight_part_cuda(const WeightPartParams& p, Stream stream) { run<true>(p, stream); }

void add_elements_cuda(const AddElementsParams& p, Stream stream) {
  if (p.n == 0) return;
  cuda::launch(add_elements, dim3(cuda::blocks_for(p.n, kThreads)), kThreads, stream, p);
}

}  // namespace tandem
