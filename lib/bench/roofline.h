#pragma once
#include "base/types.h"
#include "bench/hardware.h"

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
  double copy_in_gbps = 0;      // from host memory to the GPU
  double frac_of_copy = 0;      // of the memory read rate; above 1 the data came from a cache
  double frac_of_matmul = 0;    // of the GEMM rate of the dtype; of f32 multiply-adds without one
  double frac_of_copy_in = 0;   // of the rate of copies from pinned host memory
  Bound bound = Bound::memory;  // the ceiling that allows this work the lower speed
};

/// dtype  of the operands: chooses the ceiling for operations
Roofline roofline(const Work& work, double ms, const Ceilings& ceilings, DType dtype);

}  // namespace tandem::bench
