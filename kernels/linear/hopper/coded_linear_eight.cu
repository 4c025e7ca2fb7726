#include "kernels/linear/hopper/coded_linear.cuh"

// Codes of eight bits.

namespace tandem::coded {

Kernel kernel_of_i8(const CodeTiles& w, int rows) {
  return w.zero == Zero::minimum ? kernel_of<Code::i8, true>(w.unit(), rows)
                                 : kernel_of<Code::i8, false>(w.unit(), rows);
}

Kernel kernel_of_fp8(int rows) { return kernel_of<Code::fp8, kTileInputs, false>(rows); }

}  // namespace tandem::coded
