#pragma once
#include <string>

#include "base/types.h"
#include "machine/hardware.h"

namespace tandem::bench {

/// What one step must do at least: bytes that have to be read or written, operations on numbers.
struct Work {
  double bytes = 0;
  double flops = 0;
  double host_bytes = 0;  // of those that come from host memory to a GPU
};

enum class Bound : uint8_t { memory, compute, host };

/// A step's rates, and their shares of the machine's.
struct Roofline {
  double achieved_gbps = 0, achieved_gflops = 0;
  double copy_in_gbps = 0;  // from host memory to the GPU
  // Shares of limits, at most 1: a step that is faster has shown what the limit is at least.
  double frac_of_copy = 0;      // of the memory read rate; 0 where from_cache
  double frac_of_matmul = 0;    // of the GEMM rate of the dtype; of f32 multiply-adds without one
  double frac_of_copy_in = 0;   // of the rate of copies from pinned host memory
  bool from_cache = false;      // bytes that a cache can hold came faster than memory is read
  Bound bound = Bound::memory;  // the ceiling that allows this work the lower speed
};

/// dtype  of the operands: chooses the ceiling for operations
Roofline roofline(const Work& work, double ms, const machine::Ceilings& ceilings, DType dtype);

/// What a step says of the limits of the CPU.
machine::SeenRates seen_rates(const Work& work, double ms, DType dtype);

/// Percent without the sign; empty for 0, which is not known.
std::string percent(double share);
/// What "-" in a column of read shares means.
inline constexpr const char* kFromCache =
    "-  faster than memory is read: these bytes come from a cache, or are writes to one";

}  // namespace tandem::bench
