#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/loss/cross_entropy.h"

namespace tandem {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / cuda::kWarp;

/// The largest of some numbers, and the sum of the exponentials of their distances to it.
struct Softmax {
  float top = -INFINITY, sum = 0;

  __device__ void add(const Softmax& other) {
    const float both = fmaxf(top, other.top);
    if (both == -INFINITY) {  // but NaN, which a maximum does not see, must stay
      sum += other.sum;
      return;
    }
    sum = sum * expf(top - both) + other.sum * expf(other.top - both);
    top = both;
  }
};

__device__ Softmax block_softmax(Softmax mine) {
  __shared__ Softmax parts[kWarps];
  for (int step = cuda::kWarp / 2; step > 0; step /= 2)
    mine.add({__shfl_xor_sync(cuda::kAllLanes, mine.top, step),
              __shfl_xor_sync(cuda::kAllLanes, mine.sum, step)});
  if (threadIdx.x % cuda::kWarp == 0) parts[threadIdx.x / cuda::kWarp] = mine;
  __syncthreads();
  Softmax all = parts[0];
  for (int w = 1; w < kWarps; ++w) all.add(parts[w]);
  return all;
}

/// One row a block, kEach elements an access. Where dlogits are the logits, a thread writes only
/// what it has read itself, and the target's logit is read before any is written.
template <class T, int kEach>
__global__ void __launch_bounds__(kThreads) cross_entropy_rows(const CrossEntropyParams p) {
  using F = cuda::Vector<float, kEach>;
  using Out = cuda::Vector<T, kEach>;
  cuda::start_after_previous();
  const int64_t row = blockIdx.x, vocab = p.vocab;
  const int n = p.vocab / kEach, target = p.targets[row];
  const float* logits = p.logits + row * vocab;
  const F* z = reinterpret_cast<const F*>(logits);
  Softmax mine;
  for (int i = static_cast<int>(threadIdx.x); i < n && target >= 0; i += kThreads) {
    const F v = z[i];
    float top = v.at[0];
#pragma unroll
    for (int e = 1; e < kEach; ++e) top = fmaxf(top, v.at[e]);
    if (top > mine.top) {
      mine.sum *= expf(mine.top - top);
      mine.top = top;
    }
    if (mine.top == -INFINITY && !isnan(top)) continue;
#pragma unroll
    for (int e = 0; e < kEach; ++e) mine.sum += expf(v.at[e] - mine.top);
  }
  const float of_target = target < 0 ? 0.0f : logits[target];
  const Softmax all = block_softmax(mine);
  if (threadIdx.x == 0) p.loss[row] = target < 0 ? 0.0f : logf(all.sum) + (all.top - of_target);
  if (p.dlogits == nullptr) return;
  Out* out = reinterpret_cast<Out*>(static_cast<T*>(p.dlogits) + row * vocab);
  const float by = target < 0 ? 0.0f : p.scale / all.sum;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    const F v = target < 0 ? F{} : z[i];
    Out o;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float share = target < 0 ? 0.0f : expf(v.at[e] - all.top) * by;
      o.at[e] = cuda::from_float<T>(i * kEach + e == target ? share - p.scale : share);
    }
    out[i] = o;
  }
}

}  // namespace

void cross_entropy_cuda(const CrossEntropyParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    const bool packed = p.vocab % 4 == 0 && cuda::packable<float>(0, p.logits, p.dlogits);
    cuda::launch(packed ? cross_entropy_rows<T, 4> : cross_entropy_rows<T, 1>,
                 dim3(static_cast<unsigned>(p.n_rows)), kThreads, stream, p);
  });
}

}  // namespace tandem
