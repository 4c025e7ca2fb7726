#pragma once
// Contract of packed_linear, dense layers on the CPU. No STL: included by sources compiled with
// per-ISA flags.
#include <stddef.h>

#include "base/types.h"

namespace tandem {

/// Inputs whose products are summed before the next ones' begin. A panel's weights for them, in
/// f32, are 128 KiB at 16 outputs and 256 KiB at 32: the second-level caches of CPUs with AVX2 and
/// of those with AVX-512 hold that and a sliver of rows. A multiple of every vector's lanes.
inline constexpr int kLinearBlock = 2048;

struct PackedLinearParams {
  void* y;            // [rows, y_stride] of y_type, from the first output on
  const void* x;      // [rows, in] of type; must not alias y
  const void* w;      // panels of type, as pack_weights makes them; the reference: [out, in]
  const float* bias;  // [out], or null
  int rows, out, in, y_stride;
  DType type;       // of x and w: f32 or bf16
  DType y_type;     // f32 or bf16
  bool accumulate;  // y += instead of y =; y_type is f32 then
};

/// Rows of x that are multiplied together, widened to f32. They are divided evenly into slivers,
/// the rows that one pass over a panel's weights takes.
/// layout   [block of kLinearBlock inputs][sliver][group of a vector's lanes of inputs][row][lane],
///          the last group of inputs filled up with zeros
struct PackedRows {
  float* x;
  int begin, n;  // rows of PackedLinearParams::x
  int n_slivers;

  int sliver_begin(int i) const {
    return static_cast<int>(static_cast<int64_t>(n) * i / n_slivers);
  }
};

struct PackWeightsParams {
  void* panels;      // of rows [0, n_rows) of the matrix
  const void* rows;  // [n_rows, in]
  int n_rows, in;
  DType type;  // f32 or bf16
};

/// One ISA's body. A panel is panel_outputs rows of the matrix [out, in] with the inputs outermost,
/// [in][panel_outputs]; the last panel is filled up with zeros.
/// numerics every output is one chain of f32 multiply-adds over the inputs in order, from zero (on
///          scalar each rounds twice), then the bias and y are added: its bits depend on its own
///          row and weights alone. |y - ref| <= (in + 2) eps_f32 (sum |x w| + |bias| + |y before|),
///          and one rounding to y_type
/// cost     reads the panels once per sliver from a cache, from memory once per PackedRows
/// errors   none (preconditions checked by ops)
struct PackedLinearKernel {
  /// Panels by number, of params.panels.
  void (*pack_weights)(const PackWeightsParams&, Range panels);
  void (*pack_rows)(const PackedLinearParams&, const PackedRows&, Range slivers);
  /// Writes the outputs of the panels for the rows of the slivers. `scratch` is one thread's.
  void (*run)(const PackedLinearParams&, const PackedRows&, Range panels, Range slivers,
              float* scratch);
  int panel_outputs, sliver_rows;  // of a sliver at most
};

/// Reference, for rows [begin, end) of x: double accumulation, rounded once to y_type.
void packed_linear_ref(const PackedLinearParams&, Range rows);

extern const PackedLinearKernel packed_linear_scalar, packed_linear_avx2, packed_linear_avx512;

}  // namespace tandem
