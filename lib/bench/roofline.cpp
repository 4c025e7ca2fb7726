#include "bench/roofline.h"

#include <algorithm>

namespace tandem::bench {

Roofline roofline(const Work& work, double ms, const Ceilings& c, DType dtype) {
  // A library that is slower than plain multiply-adds is no ceiling.
  const double compute = std::max(c.gemm_gflops(dtype), c.f32_gflops);
  Roofline r;
  r.achieved_gbps = work.bytes / ms * 1e-6;
  r.achieved_gflops = work.flops / ms * 1e-6;
  if (c.mem_read_gbps > 0) r.frac_of_copy = r.achieved_gbps / c.mem_read_gbps;
  if (compute > 0) r.frac_of_matmul = r.achieved_gflops / compute;
  r.copy_in_gbps = work.host_bytes / ms * 1e-6;
  if (c.copy_in_gbps > 0) r.frac_of_copy_in = r.copy_in_gbps / c.copy_in_gbps;
  r.bound = r.frac_of_matmul > r.frac_of_copy ? Bound::compute : Bound::memory;
  if (r.frac_of_copy_in > std::max(r.frac_of_copy, r.frac_of_matmul)) r.bound = Bound::host;
  return r;
}

}  // namespace tandem::bench
