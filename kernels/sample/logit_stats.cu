#include "kernels/sample/row_launch.cuh"
#include "kernels/sample/row_stats.cuh"
#include "kernels/sample/sample_cuda.h"

namespace tandem {
namespace {

__global__ void __launch_bounds__(cuda::kRowThreads)
    logit_stats_rows(const LogitStatsParams p, const cuda::RowSplit split) {
  extern __shared__ float4 dynamic[];
  __shared__ cuda::RowShared shared;
  cuda::start_after_previous();
  cuda::RowCluster row(split, reinterpret_cast<float*>(dynamic), shared);
  const int64_t r = blockIdx.x / static_cast<unsigned>(split.parts);
  const cuda::Best best = row.load(p.logits + r * split.vocab);
  const float lse = cuda::log_sum_exp(row, best);
  if (row.rank() == 0 && threadIdx.x == 0) {
    p.argmax[r] = best.is_valid() ? best.id : kInvalidToken;
    p.max[r] = best.is_valid() ? best.logit() : cuda::quiet_nan();
    p.lse[r] = lse;
  }
  row.sync();  // others may still read this block's sums
}

}  // namespace

void logit_stats_cuda(const LogitStatsParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  const cuda::RowSplit split = cuda::split_row(p.vocab, p.n_rows);
  cuda::launch_rows(logit_stats_rows, p.n_rows, split, split.part_bytes(), stream, p);
}

}  // namespace tandem
