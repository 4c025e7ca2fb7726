#pragma once
// Contract of round_inputs. No STL.
#include "base/types.h"

namespace tandem {

struct RoundInputsParams {
  uint8_t* codes;  // [rows, in] e4m3, aligned to 8 bytes
  float* scales;   // [in / group][rows]
  const bf16* x;   // [rows, in], aligned to 16 bytes
  int rows, in;    // in is a multiple of 8, and of `group`
  int group;       // inputs that share a scale: 128; 0: all
};

/// Rounds inputs to e4m3 on a GPU. A group's scale is its largest magnitude / 448, a code is
/// input / scale, rounded to nearest even. Groups of zeros have scale 0.
/// cost     reads x twice, the second time from cache
void round_inputs_cuda(const RoundInputsParams&, Stream);

}  // namespace tandem
