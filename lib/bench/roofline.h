#pragma once
#include "base/types.h"
#include "bench/hardware.h"

namespace tandem::bench {

/// What one step must do at least: bytes that have to be read or written, operations on numbers.
struct Work {
  double bytes = 0;
  double flops = 0;
};

enum class Bound : uint8_t { memory, compute };

/// A step's rates beside the machine's.
struct Roofline {
  double achieved_gbps = 0, achieved_gflops = 0;
  double frac_of_copy = 0;      // of the memory read rate; above 1 the data came from a cache
  double frac_of_matmul = 0;    // of the GEMM rate of the dtype; of f32 multiply-adds without one
  Bound bound = Bound::memory;  // the ceiling that allows this work the lower speed
};

/// dtype  of the operands: chooses the ceiling for operations
Roofline roofline(const Work& work, double ms, const Ceilings& ceilings, DType dtype);

}  // namespace tandem::bench
