#include "kernels/linear/held_part.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/linear/code_tiles.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;

__device__ __nv_bfloat16* values_of(const HeldPart& held) {
  return reinterpret_cast<__nv_bfloat16*>(held.values);
}

__device__ float number_of(const TakeHeldParams& p, int output, int input) {
  if (p.numbers != nullptr)
    return __bfloat162float(
        reinterpret_cast<const __nv_bfloat16*>(p.numbers)[int64_t{output} * p.held.in + input]);
  return tiles::number_at(p.tiles, output, input);
}

__host__ __device__ int64_t size_of(const TakeHeldParams& p) {
  return int64_t{p.held.n} * (p.held.part == WeightPart::rows ? p.held.in : p.tiles.out);
}

__global__ void __launch_bounds__(kThreads) take_held(const TakeHeldParams p) {
  cuda::start_after_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= size_of(p)) return;
  int64_t value = i;
  int output = 0, input = 0;
  if (p.held.part == WeightPart::rows) {
    output = p.held.index[i / p.held.in] - p.first;
    input = static_cast<int>(i % p.held.in);
    if (output < 0 || output >= p.tiles.out) return;
  } else {
    output = static_cast<int>(i / p.held.n);
    input = p.held.index[i % p.held.n];
    value += int64_t{p.first} * p.held.n;
  }
  values_of(p.held)[value] = __float2bfloat16_rn(number_of(p, output, input));
}

__host__ __device__ int64_t size_of(const PutHeldParams& p) {
  return int64_t{p.held.n} * (p.held.part == WeightPart::rows ? p.inputs : p.outputs);
}

__global__ void __launch_bounds__(kThreads) put_held(const PutHeldParams p) {
  cuda::start_after_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= size_of(p)) return;
  auto* const out = reinterpret_cast<__nv_bfloat16*>(p.out);
  if (p.held.part == WeightPart::rows) {
    const int64_t row = i / p.inputs, column = i % p.inputs;
    const int output = p.held.index[row] - p.first;
    if (output >= 0 && output < p.outputs)
      out[int64_t{output} * p.inputs + column] =
          values_of(p.held)[row * p.held.in + p.begin + column];
    return;
  }
  const int64_t output = i / p.held.n;
  const int input = p.held.index[i % p.held.n] - p.begin;
  if (input >= 0 && input < p.inputs)
    out[output * p.inputs + input] = values_of(p.held)[int64_t{p.first} * p.held.n + i];
}

}  // namespace

void take_held_cuda(const TakeHeldParams& p, Stream stream) {
  if (size_of(p) > 0)
    cuda::launch(take_held, dim3(cuda::blocks_for(size_of(p), kThreads)), kThreads, stream, p);
}

void put_held_cuda(const PutHeldParams& p, Stream stream) {
  if (size_of(p) > 0)
    cuda::launch(put_held, dim3(cuda::blocks_for(size_of(p), kThreads)), kThreads, stream, p);
}

}  // namespace tandem
