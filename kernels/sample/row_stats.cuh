#pragma once
#include "kernels/cuda/number.cuh"
#include "kernels/sample/row_group.cuh"
#include "kernels/sample/weight_sum.cuh"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

/// log sum exp of the row whose best is given, in all threads; NaN for a meaningless row.
__device__ inline float log_sum_exp(RowGroup& row, Best best) {
  const float max = best.logit();
  WeightSum mine;
  if (best.is_valid()) row.each<4>([&](int i) { mine.add(row.logit(i) - max); });
  const auto sum = static_cast<double>(row.sum(mine.total()).total);
  return best.is_valid() ? static_cast<float>(max + log(sum * 0x1p-40)) : quiet_nan();
}

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
