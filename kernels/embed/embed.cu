#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/embed/embed.h"

namespace tandem {
namespace {

constexpr int kThreads = 128;

/// One row a block in x; the threads of the blocks in y share its elements, kEach a thread.
template <class From, int kEach>
__global__ void __launch_bounds__(kThreads) embed_rows(const EmbedParams p) {
  cuda::start_after_previous();
  const int n = p.dim / kEach, i = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t r = blockIdx.x, given = p.ids[r], id = given - p.first;
  cuda::Vector<float, kEach> out;
  if (id >= 0 && id < p.vocab) {
    const auto in = static_cast<const cuda::Vector<From, kEach>*>(p.table)[id * n + i];
#pragma unroll
    for (int e = 0; e < kEach; ++e) out.at[e] = cuda::to_float(in.at[e]);
  } else {
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      out.at[e] = given >= 0 && given < p.whole ? 0 : cuda::quiet_nan();
  }
  reinterpret_cast<cuda::Vector<float, kEach>*>(p.out)[r * n + i] = out;
}

}  // namespace

void embed_cuda(const EmbedParams& p, Stream stream) {
  if (p.n_rows == 0 || p.dim == 0) return;
  cuda::with_number(p.from, [&](auto* from) {
    using From = std::remove_pointer_t<decltype(from)>;
    constexpr int kEach = 16 / sizeof(From);
    const bool packed = cuda::packable<From>(p.dim, p.out, p.table);
    const dim3 grid(static_cast<unsigned>(p.n_rows),
                    cuda::blocks_for(p.dim / (packed ? kEach : 1), kThreads));
    cuda::launch(packed ? embed_rows<From, kEach> : embed_rows<From, 1>, grid, kThreads, stream, p);
  });
}

}  // namespace tandem
