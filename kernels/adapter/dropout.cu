#include "base/philox.h"
#include "kernels/adapter/dropout.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 16;                     // threads of a group, each with one Philox block
constexpr int kEach = kDropoutGroup / kLanes;  // neighbouring columns of a thread

/// A row begins a new group.
__host__ __device__ uint32_t threads_of_row(const DropoutParams& p) {
  return static_cast<uint32_t>((p.width + kDropoutGroup - 1) / kDropoutGroup * kLanes);
}

/// Bit e: the thread keeps its column e. The block that a thread draws decides about columns kLanes
/// apart, so the threads of a warp exchange their decisions; all must call.
__device__ unsigned kept_columns(const DropoutParams& p, uint32_t block) {
  const PhiloxBlock draw =
      philox_block({{block, p.step, static_cast<uint32_t>(DrawPurpose::dropout), p.place}}, p.seed);
  const int thread = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int column = thread % kLanes * kEach;
  unsigned kept = 0;
#pragma unroll
  for (int slot = 0; slot < kEach; ++slot) {
    const uint32_t random = draw.w[slot / 2] >> (slot % 2 * 16) & 0xffffu;
    const unsigned of_slot = __ballot_sync(cuda::kAllLanes, random >= p.threshold);
    if (slot == column / kLanes) kept = of_slot;
  }
  return kept >> (thread / kLanes * kLanes + column % kLanes);
}

/// kEach elements a thread, in one access if kPacked.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kThreads) dropout_elements(const DropoutParams p) {
  using V = cuda::Vector<T, kEach>;
  cuda::start_after_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto block = static_cast<uint32_t>(i);
  const unsigned kept = kept_columns(p, block);
  const uint32_t of_row = threads_of_row(p);
  const int column = static_cast<int>(block % of_row) * kEach;
  if (i >= int64_t{of_row} * p.n_rows || column >= p.width) return;
  const int64_t at = int64_t{block / of_row} * p.width + column;
  const int n = p.width - column < kEach ? p.width - column : kEach;
  const T* const in = static_cast<const T*>(p.in) + at;
  T* const out = static_cast<T*>(p.out) + at;
  V x = {}, y = {};
  if (kPacked) {
    x = *reinterpret_cast<const V*>(in);
    if (p.add) y = *reinterpret_cast<const V*>(out);
  } else {
    for (int e = 0; e < n; ++e) x.at[e] = in[e];
    for (int e = 0; p.add && e < n; ++e) y.at[e] = out[e];
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const float factor = (kept >> e & 1u) != 0 ? p.scale : 0.0f;
    y.at[e] = cuda::from_float<T>(fmaf(cuda::to_float(x.at[e]), factor, cuda::to_float(y.at[e])));
  }
  if (kPacked)
    *reinterpret_cast<V*>(out) = y;
  else
    for (int e = 0; e < n; ++e) out[e] = y.at[e];
}

}  // namespace

void dropout_cuda(const DropoutParams& p, Stream stream) {
  if (p.n_rows == 0 || p.width == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    const bool packed = p.width % kEach == 0 && cuda::packable<T>(0, p.in, p.out);
    cuda::launch(packed ? dropout_elements<T, true> : dropout_elements<T, false>,
                 dim3(cuda::blocks_for(int64_t{threads_of_row(p)} * p.n_rows, kThreads)), kThreads,
                 stream, p);
  });
}

}  // namespace tandem
