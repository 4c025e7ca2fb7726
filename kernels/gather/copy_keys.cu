#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/gather/copy_keys.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
// Rows are copied in accesses of 16 bytes, or of 2 where a row is no multiple of 16.
constexpr int kWide = 16, kNarrow = 2;

template <int kBytes>
using Chunk = cuda::Vector<unsigned short, kBytes / 2>;

/// A chunk of K and of V a thread: those of a row lie side by side. Releases nothing early: kernels
/// that begin ahead of the one before them may read these keys.
template <int kBytes>
__global__ void __launch_bounds__(kThreads) copy_keys(const CopyKeysParams p) {
  cuda::wait_for_previous();
  const int each_row = p.row_bytes / kBytes, head = static_cast<int>(blockIdx.y);
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int i = static_cast<int>(item / each_row), chunk = static_cast<int>(item % each_row);
  if (i >= p.n) return;
  const int token = p.ids[head * p.id_stride + i / p.run] * p.run + i % p.run;
  const auto place = [&](int page, int row) {
    return ((int64_t{page} * p.n_kv_heads + head) * kPageTokens + row) * each_row + chunk;
  };
  const int64_t from = place(p.from_pages[token / kPageTokens], token % kPageTokens),
                to = place(p.to_pages[i / kPageTokens], i % kPageTokens);
  const Chunk<kBytes> k = static_cast<const Chunk<kBytes>*>(p.k_from)[from],
                      v = static_cast<const Chunk<kBytes>*>(p.v_from)[from];
  static_cast<Chunk<kBytes>*>(p.k_to)[to] = k;
  static_cast<Chunk<kBytes>*>(p.v_to)[to] = v;
}

}  // namespace

void copy_keys_cuda(const CopyKeysParams& p, Stream stream) {
  if (p.n == 0) return;
  const bool wide = p.row_bytes % kWide == 0;
  const int64_t chunks = int64_t{p.n} * (p.row_bytes / (wide ? kWide : kNarrow));
  cuda::launch(wide ? copy_keys<kWide> : copy_keys<kNarrow>,
               dim3(cuda::blocks_for(chunks, kThreads), static_cast<unsigned>(p.n_kv_heads)),
               kThreads, stream, p);
}

}  // namespace tandem
