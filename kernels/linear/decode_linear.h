#pragma once
// Contract of decode_linear, dense layers of few rows on CPUs that multiply bf16. No STL: included
// by sources compiled with per-ISA flags.
#include <stdint.h>

#include "base/types.h"

namespace tandem {

/// Outputs of a panel of weights, and the outputs that one item computes.
inline constexpr int kPairPanel = 64, kPairItem = 32;
/// Inputs of a panel are filled up with zeros to a multiple of this.
inline constexpr int kPairBlock = 32;
/// Rows that a call takes at most.
inline constexpr int kDecodeRows = 32;

/// Bytes of one panel.
inline constexpr int64_t pair_panel_bytes(int64_t in) {
  return (in + kPairBlock - 1) / kPairBlock * kPairBlock * kPairPanel *
         static_cast<int64_t>(sizeof(bf16));
}

struct DecodeLinearParams {
  void* y;        // [rows, out] of y_type
  const bf16* x;  // [rows, in]
  const bf16* w;  // panels of pairs of inputs: [in / 2][kPairPanel][2], as pack_pairs makes them
  const float* bias;  // [out], or null
  int rows, out, in;  // at most kDecodeRows rows
  DType y_type;       // f32 or bf16
  bool accumulate;    // y += instead of y =; y_type is f32 then
};

/// y = x W^T + bias for the outputs of items [begin, end), kPairItem each.
/// numerics products of pairs are added in f32 in the order of the inputs (vdpbf16ps), then the
///          bias and y: a row's bits depend on its own row and weights alone
/// cost     reads the panels from memory once, and from a cache once for each six rows
using DecodeLinearFn = void(const DecodeLinearParams&, Range items);

DecodeLinearFn decode_linear_avx512_bf16;

struct PackPairsParams {
  bf16* panels;
  const bf16* rows;  // [n_rows, in]
  int n_rows, in;
};

/// Packs rows into panels by number; the last panel is filled up with zeros.
void pack_pairs(const PackPairsParams&, Range panels);

}  // namespace tandem
