#include "bench/roofline.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::bench {

Roofline roofline(const Work& work, double ms, const machine::Ceilings& c, DType dtype) {
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
  r.from_cache = r.frac_of_copy > 1 && work.bytes <= machine::kUncachedBytes;
  r.frac_of_copy = r.from_cache ? 0 : std::min(r.frac_of_copy, 1.0);
  r.frac_of_matmul = std::min(r.frac_of_matmul, 1.0);
  r.frac_of_copy_in = std::min(r.frac_of_copy_in, 1.0);
  return r;
}

machine::SeenRates seen_rates(const Work& work, double ms, DType dtype) {
  const double gbps = work.bytes / ms * 1e-6;
  const bool beyond = work.bytes > machine::kUncachedBytes;
  return {.read_gbps = beyond ? gbps : 0,
          .cached_gbps = beyond ? 0 : gbps,
          .gflops = work.flops / ms * 1e-6,
          .dtype = dtype};
}

std::string percent(double share) {
  return share > 0 ? fmt::format("{:.{}f}", 100 * share, share < 0.1 ? 1 : 0) : "";
}

}  // namespace tandem::bench
