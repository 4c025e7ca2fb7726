#pragma once
// Contract of quantized_linear, dense layers on the CPU whose weights are codes in groups. No STL:
// included by sources compiled with per-ISA flags.
#include <stddef.h>

#include "base/two_level.h"
#include "base/types.h"

namespace tandem {

/// Outputs of a panel and inputs of a step; inputs of activations that share a scale.
inline constexpr int kCodePanel = 16, kCodeStep = 64, kInputGroup = 32;
/// A group of activations that are no larger counts as zeros: 127 / x would be infinite.
inline constexpr float kLeastInput = 1e-35f;

/// Bytes of kCodeStep inputs of a panel.
constexpr int code_step_bytes(Code code) { return CodeBits{code, kCodeStep}.bytes() * kCodePanel; }

/// A block of kTwoLevelInputs inputs of a panel. Its parts are as large as those of kCodePanel
/// rows (base/two_level.h).
/// layout   codes [4][bytes of a step], scales [groups][kCodePanel], minima [groups][kCodePanel],
///          factors of scales [kCodePanel], factors of minima [kCodePanel]
struct TwoLevelPanel {
  TwoLevelBlock row;

  constexpr int step_bytes() const { return code_step_bytes(row.code); }
  constexpr int scales_at() const { return row.scales_at() * kCodePanel; }
  constexpr int minima_at() const { return row.minima_at() * kCodePanel; }
  constexpr int factors_at() const { return row.factors_at() * kCodePanel; }
  /// A multiple of 64.
  constexpr int bytes() const { return (row.bytes() * kCodePanel + 63) / 64 * 64; }
};

/// Encoding of a matrix [out, in], and the layout of its panels of kCodePanel outputs.
/// layout   codes [steps][bytes of a step], scales [groups][kCodePanel], zeros [groups][kCodePanel].
///          Byte 64 r + 4 n + j of an i4 step holds two inputs of output n. Its low half is input
///          4 r + j, its high half input 32 + 4 r + j. In an i8 step that byte is input 4 r + j,
///          plus 128, in an fp8 step without. A step of i5 or i6 has its low bits like i4, then
///          its high bits [line / n][kCodePanel][4]. A line is four inputs. A byte of high bits
///          holds n lines, 8 of i5 or 4 of i6, the first at the lowest bits. Scales past the last
///          input or output are 0. With scales of two levels, panels are blocks of TwoLevelPanel
struct CodedMatrix {
  Code code;  // i4, i5, i8 or fp8; with two levels i4, i5 or i6
  ScaleType scale;
  Zero zero;
  int group;  // inputs that share a scale: 16 (not for i5) or a multiple of 32; 0: all
  int in;

  bool two_level() const { return scale == ScaleType::two_level; }
  TwoLevelBlock block() const { return {code, zero, group}; }
  int blocks() const { return (in + kTwoLevelInputs - 1) / kTwoLevelInputs; }
  int steps() const {
    return two_level() ? blocks() * (kTwoLevelInputs / kCodeStep)
                       : (in + kCodeStep - 1) / kCodeStep;
  }
  int inputs() const { return steps() * kCodeStep; }
  /// Inputs of a row of x, whose last ones are zeros.
  int padded() const {
    return (inputs() + kTwoLevelInputs - 1) / kTwoLevelInputs * kTwoLevelInputs;
  }
  /// From a row of x to the next: integers, scales, units. Rows at a power of two would share the
  /// places of a cache.
  int64_t row_stride() const { return padded() + kCodeStep; }
  int64_t scale_stride() const { return padded() / kInputGroup; }
  int64_t unit_stride() const { return padded() / unit(); }
  int groups() const { return group == 0 ? 1 : (inputs() + group - 1) / group; }
  /// Inputs whose products are summed as integers.
  int unit() const { return group == 16 ? 16 : kInputGroup; }
  int units() const { return inputs() / unit(); }
  int64_t step_bytes() const { return code_step_bytes(code); }
  int64_t scales_at() const { return steps() * step_bytes(); }
  int scale_bytes() const { return scale == ScaleType::f32 ? 4 : 2; }
  int zero_bytes() const {
    return zero == Zero::none ? 0 : zero == Zero::integer ? 1 : scale_bytes();
  }
  int64_t zeros_at() const { return scales_at() + groups() * kCodePanel * int64_t{scale_bytes()}; }
  /// Bytes of a panel, a multiple of 64.
  int64_t panel_bytes() const {
    if (two_level()) return int64_t{blocks()} * TwoLevelPanel{block()}.bytes();
    return (zeros_at() + groups() * kCodePanel * int64_t{zero_bytes()} + 63) / 64 * 64;
  }
};

struct QuantizedLinearParams {
  void* y;            // [rows, y_stride] of y_type, from the first output on
  const void* x;      // [rows, in] of x_type; must not alias y
  const void* w;      // panels; the reference: rows of codes (base/weight_format.h)
  const float* bias;  // [out], or null
  CodedMatrix matrix;
  int rows, out, y_stride;
  DType x_type, y_type;  // f32 or bf16
  bool accumulate;       // y += instead of y =; y_type is f32 then
};

/// A block of a row of x as integers, for codes with scales of two levels.
struct alignas(64) TwoLevelInputs {
  int8_t x[kTwoLevelInputs];
  float scale[kTwoLevelInputs / kInputGroup];
  union {                                 // by group of weights
    int32_t start[kTwoLevelInputs / 16];  // without minima: sum of x times what codes have too much
    float sum[kTwoLevelInputs / 16];      // with minima: scale times the sum of x
  };
};

/// Rows of x as integers of 8 bits: round(x / scale), with scale = max |x| / 127 of each
/// kInputGroup inputs. An infinite number or NaN makes its group's scale NaN. For fp8 codes they
/// stay numbers, in f32.
struct QuantizedInputs {
  int8_t* x;       // [rows, row_stride()]
  float* scale;    // [rows, scale_stride()]
  int32_t* start;  // [rows, unit_stride()]: sum of x times what every stored code has too much
  float* sum;      // [rows, unit_stride()]: scale times the sum of x
  float* numbers;  // [rows, inputs()], for fp8 in place of all the others

  TwoLevelInputs* blocks;  // [blocks(), rows], with two levels in place of all the others

  static size_t bytes(const CodedMatrix& m, int64_t rows) {
    if (m.code == Code::fp8)
      return static_cast<size_t>(rows) * static_cast<size_t>(m.inputs()) * sizeof(float);
    if (m.two_level())
      return static_cast<size_t>(rows) * static_cast<size_t>(m.blocks()) * sizeof(TwoLevelInputs);
    return static_cast<size_t>(rows) *
           (static_cast<size_t>(m.row_stride()) +
            sizeof(float) * static_cast<size_t>(m.scale_stride() + 2 * m.unit_stride()));
  }
  QuantizedInputs(const CodedMatrix& m, int64_t rows, void* memory)
      : x(static_cast<int8_t*>(memory)),
        scale(reinterpret_cast<float*>(x + rows * m.row_stride())),
        start(reinterpret_cast<int32_t*>(scale + rows * m.scale_stride())),
        sum(reinterpret_cast<float*>(start + rows * m.unit_stride())),
        numbers(static_cast<float*>(memory)),
        blocks(static_cast<TwoLevelInputs*>(memory)) {}
};

/// One ISA's body.
/// numerics Products of fp8 codes and numbers of x are added in f32, those of even and of odd inputs
///          apart. Each group in turn adds (even + odd) * scale to y.
///          Products of a unit's other codes and integers of x are summed exactly. Each unit in
///          turn adds (sum * weight scale) * x scale to y in f32, and with a zero minimum * sum of
///          x. Each is one multiply-add, on scalar with two roundings. With scales of two levels,
///          blocks of y are summed so from the integers of scales and minima. Two units of 16
///          inputs are added before * x scale. Then block * factor of scales and minima * their
///          factor are added to y. Bias and y before come last.
///          The bits of an output depend only on its own row and weights. All ISAs but scalar give
///          the same
/// cost     Every few rows read the panels once. Memory is read once for a call's rows, if x and
///          256 KiB of panels fit the second-level cache
struct QuantizedLinearKernel {
  void (*quantize)(const QuantizedLinearParams&, const QuantizedInputs&, Range rows);
  void (*run)(const QuantizedLinearParams&, const QuantizedInputs&, Range panels, Range rows);
  /// Writes the weights in f32 as packed_linear's panels [in][panel_outputs] have them.
  void (*widen)(const CodedMatrix&, const void* panels, Range packed_panels, int n_outputs,
                float* to);
};

struct PackCodesParams {
  void* panels;
  const void* rows;  // [n_rows] rows of codes
  CodedMatrix matrix;
  int n_rows;
};
/// Packs rows into panels by number.
void pack_codes(const PackCodesParams&, Range panels);

/// Reference, for rows [begin, end) of x: the same integers of x, sums in double.
void quantized_linear_ref(const QuantizedLinearParams&, Range rows);

extern const QuantizedLinearKernel quantized_linear_scalar, quantized_linear_avx2,
    quantized_linear_avx512, quantized_linear_avx512_bf16, quantized_linear_amx;

}  // namespace tandem
