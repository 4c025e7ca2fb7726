#pragma once
// Contract of skinny_linear, a dense layer on few rows. No STL.
#include "base/types.h"

namespace tandem {

/// Rows of x at most.
inline constexpr int kSkinnyRows = 16;

struct SkinnyLinearParams {
  void* y;                   // [rows, out] of y_type; with swiglu [rows, out / 2]
  const void* x;             // [rows, in] bf16; with norm_weight f32
  const bf16* w;             // [out, in], 16-byte aligned like x
  const float* bias;         // [out], or null
  const float* norm_weight;  // [in], or null: x is taken as it is
  float norm_eps;
  int rows, out, in;
  DType y_type;     // bf16 or f32
  bool accumulate;  // y += instead of y =; f32
  bool swiglu;      // the first half of the outputs are gates, the second what they gate
  int stages;       // loads in flight: of 16 KiB of weights each, per block; changes no result
};

}  // namespace tandem
