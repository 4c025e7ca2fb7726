#include "kernels/linear/quantized_linear.h"

#include "kernels/linear/code_vec.h"

namespace tandem {
namespace {

// Sums of a sliver, and of its integers, fill the registers.
#if defined(TANDEM_ISA_scalar)
constexpr int kSliver = 1;
#elif defined(TANDEM_ISA_avx2)
constexpr int kSliver = 5;
#else
constexpr int kSliver = 12;
#endif
/// Rows of which both halves of i4 lines are multiplied at once.
constexpr int kRowsOfHalves = 4;
/// Vectors of a panel's outputs.
constexpr int kVectors = kCodePanel / kW;
constexpr int kLineBytes = 4 * kCodePanel;  // four inputs of a panel's outputs

/// The number that every stored code has too much.
int offset_of(const CodedMatrix& m) {
  return m.code == Code::i8 ? Dots<Code::i8>::kOffset : m.block().offset();
}

/// Rounds the inputs [first, first + kInputGroup) of a row to integers and returns their scale.
template <class T>
TANDEM_INLINE float quantize_group(const CodedMatrix& m, const T* x, int first, int8_t* to) {
  alignas(64) float group[kInputGroup];
  Vec most = simd::zero(), faults = simd::zero();  // 0 times a number that is not finite is NaN
  for (int i = 0; i < kInputGroup; i += kW) {
    const int left = m.in - first - i;
    const Vec v =
        left >= kW ? simd::load(x + first + i) : simd::load_n(x + first + i, left > 0 ? left : 0);
    simd::store(group + i, v);
    most = max(most, abs(v));
    faults = fma(v, simd::zero(), faults);
  }
  const float largest = simd::reduce_max(most),
              inverse = largest > kLeastInput ? 127.0f / largest : 0.0f;
  for (int i = 0; i < kInputGroup; i += kW)
    simd::store(to + i, simd::load(group + i) * simd::set1(inverse));
  return largest / 127.0f + simd::reduce_add(faults);
}

TANDEM_INLINE int32_t total_of(const int8_t* x, int n) {
  int32_t total = 0;
  for (int i = 0; i < n; ++i) total += x[i];
  return total;
}

template <class T>
void quantize_row(const CodedMatrix& m, const T* x, int8_t* to, float* scales, int32_t* start,
                  float* sum) {
  const int per_group = kInputGroup / m.unit(), offset = offset_of(m);
  for (int first = 0; first < m.padded(); first += kInputGroup) {
    const float scale = quantize_group(m, x, first, to + first);
    scales[first / kInputGroup] = scale;
    for (int u = 0; u < per_group; ++u) {
      const int32_t total = total_of(to + first + u * m.unit(), m.unit());
      *start++ = -offset * total;
      *sum++ = scale * static_cast<float>(total);
    }
  }
}

/// Widens rows to f32, with zeros past the last input.
template <class T>
void widen_inputs(const CodedMatrix& m, const T* x, float* to) {
  for (int i = 0; i < m.inputs(); i += kW) {
    const int left = m.in - i;
    simd::store(to + i, left >= kW ? simd::load(x + i) : simd::load_n(x + i, left > 0 ? left : 0));
  }
}

/// Scales and offsets of a panel's groups, from one vector of outputs on.
struct Scales {
  const char *scales, *zeros;
  ScaleType type;
  Zero zero;

  Scales(const CodedMatrix& m, const char* panel, int vector)
      : scales(panel + m.scales_at() + vector * kW * m.scale_bytes()),
        zeros(panel + m.zeros_at() + vector * kW * m.zero_bytes()),
        type(m.scale),
        zero(m.zero) {}
  /// The scales or minima of a group.
  TANDEM_INLINE Vec numbers(const char* all, int group) const {
    if (type == ScaleType::f32)
      return simd::load(reinterpret_cast<const float*>(all) + group * kCodePanel);
    const char* const p = all + group * kCodePanel * 2;
    return type == ScaleType::f16 ? simd::load(reinterpret_cast<const f16*>(p))
                                  : simd::load(reinterpret_cast<const bf16*>(p));
  }
  TANDEM_INLINE Vec scale(int group) const { return numbers(scales, group); }
  /// The number that is added to scale * code.
  TANDEM_INLINE Vec minimum(int group, Vec scale) const {
    if (zero == Zero::minimum) return numbers(zeros, group);
    return simd::zero() -
           scale * simd::load(reinterpret_cast<const int8_t*>(zeros) + group * kCodePanel);
  }
};

/// CPUs fetch too few lines by themselves while so much is computed for each.
TANDEM_INLINE void fetch_ahead(const char* line) { __builtin_prefetch(line + 32 * kLineBytes); }

/// The codes of four inputs, from input 4 * line of a step on.
template <Code code>
TANDEM_INLINE Ints codes_at(const char* step, int line) {
  constexpr CodeBits kStep{code, kCodeStep};
  if constexpr (kStep.whole()) return load_ints(step + line * kLineBytes);
  constexpr int kLines = kInputGroup / 4, kBits = kStep.high_bits();
  const Ints both = load_ints(step + line % kLines * kLineBytes);
  const Ints low = bits_of_ints(both, line < kLines ? 0 : 4, kLowHalves);
  if constexpr (kBits == 0) {
    return low;
  } else {
    constexpr int kLinesOfHigh = 8 / kBits, kMask = kBits == 1 ? 0x10101010 : 0x30303030;
    const Ints high =
        load_ints(step + kStep.high_at() * kCodePanel + line / kLinesOfHigh * kLineBytes);
    return either(low, bits_of_ints(high, line % kLinesOfHigh * kBits - 4, kMask));
  }
}

template <class Y>
TANDEM_INLINE void finish(const QuantizedLinearParams& p, int64_t row, int output, Vec sum) {
  const int n = simd::least(kW, p.out - output);
  if (n <= 0) return;
  Y* const y = static_cast<Y*>(p.y) + row * p.y_stride + output;
  if (p.bias != nullptr) sum = sum + simd::load_n(p.bias + output, n);
  if (p.accumulate) sum = sum + simd::load_n(y, n);
  simd::store_n(y, sum, n);
}

}  // namespace
}  // namespace tandem

#include "kernels/linear/two_level.inl"
#if defined(TANDEM_ISA_amx)
#include "kernels/linear/quantized_tiles.inl"
#endif

namespace tandem {
namespace {

void quantize(const QuantizedLinearParams& p, const QuantizedInputs& to, Range rows) {
  const CodedMatrix m = p.matrix;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const auto quantized = [&](const auto* x) {
      if (m.two_level()) return quantize_blocks(m, x + r * m.in, to.blocks + r, p.rows);
      if (m.code == Code::fp8) return widen_inputs(m, x + r * m.in, to.numbers + r * m.inputs());
      quantize_row(m, x + r * m.in, to.x + r * m.row_stride(), to.scale + r * m.scale_stride(),
                   to.start + r * m.unit_stride(), to.sum + r * m.unit_stride());
    };
    if (p.x_type == DType::bf16)
      quantized(static_cast<const bf16*>(p.x));
    else
      quantized(static_cast<const float*>(p.x));
  }
}

/// Rows [row, row + kRows) times a vector of outputs of a panel.
template <int kRows, Code code, bool kHasZero, int kUnit>
__attribute__((noinline)) void multiply(const QuantizedLinearParams& p, const QuantizedInputs& in,
                                        int panel, int vector, int row) {
  const CodedMatrix m = p.matrix;
  const char* const at = static_cast<const char*>(p.w) + panel * m.panel_bytes();
  const Scales scales(m, at, vector);
  const int64_t stride = m.row_stride(), scale_stride = m.scale_stride(),
                unit_stride = m.unit_stride();
  const int units = m.units();
  const int8_t* x = in.x + row * stride;
  const float* const x_scale = in.scale + row * scale_stride;
  const int32_t* const start = in.start + row * unit_stride;
  const float* const x_sum = in.sum + row * unit_stride;
  constexpr int kLines = kUnit / 4, kUnits = kCodeStep / kUnit;
  Vec sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = simd::zero();
  const int units_each = m.group == 0 ? units : m.group / kUnit;  // units of a group
  int group = -1, left = 0;
  Vec scale = simd::zero(), minimum = simd::zero();
  const auto begin = [&](auto& dots, int unit) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) dots[r].begin(start[r * unit_stride + unit]);
  };
  const auto add_unit = [&](int unit, const auto& dots) __attribute__((always_inline)) {
    if (left == 0) {
      scale = scales.scale(++group);
      if constexpr (kHasZero) minimum = scales.minimum(group, scale);
      left = units_each;
    }
    --left;
    const Vec of_sums = dots[0].kTimes == 1 ? scale : scale * simd::set1(1.0f / dots[0].kTimes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float xs = x_scale[r * scale_stride + unit * kUnit / kInputGroup];
      sum[r] = fma(dots[r].end() * of_sums, simd::set1(xs), sum[r]);
      if constexpr (kHasZero)
        sum[r] = fma(minimum, simd::set1(x_sum[r * unit_stride + unit]), sum[r]);
    }
  };
  const char* step = at + vector * kW * 4;
  for (int unit = 0; unit < units; step += m.step_bytes()) {
    if constexpr (code == Code::i4 && kUnit == kInputGroup && kRows <= kRowsOfHalves) {
      // Both halves of a line at once: few rows are as fast as their weights come.
      Dots<code> low[kRows];
      HighDots high[kRows];
      begin(low, unit);
      begin(high, unit + 1);
#pragma GCC unroll 8
      for (int line = 0; line < kLines; ++line) {
        const Ints both = load_ints(step + line * kLineBytes);
        fetch_ahead(step + line * kLineBytes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          low[r].add(bits_of_ints(both, 0, kLowHalves), x + r * stride + 4 * line);
          high[r].add(HighDots::half(both), x + r * stride + kInputGroup + 4 * line);
        }
      }
      add_unit(unit, low);
      add_unit(unit + 1, high);
      unit += 2;
      x += kCodeStep;
    } else {
#pragma GCC unroll 4
      for (int i = 0; i < kUnits; ++i, ++unit, x += kUnit) {
        Dots<code> dots[kRows];
        begin(dots, unit);
#pragma GCC unroll 8
        for (int line = 0; line < kLines; ++line) {
          const int in_step = i * kLines + line;
          const Ints w = codes_at<code>(step, in_step);
          if (in_step * kLineBytes < code_step_bytes(code))
            fetch_ahead(step + in_step * kLineBytes);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) dots[r].add(w, x + r * stride + 4 * line);
        }
        add_unit(unit, dots);
      }
    }
  }
  const int output = panel * kCodePanel + vector * kW;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    if (p.y_type == DType::bf16)
      finish<bf16>(p, row + r, output, sum[r]);
    else
      finish<float>(p, row + r, output, sum[r]);
}

template <Code code, bool kHasZero, int kUnit, int kRows = kSliver>
TANDEM_INLINE void multiply_rows(const QuantizedLinearParams& p, const QuantizedInputs& in,
                                 int panel, int vector, Range rows) {
  if (rows.end - rows.begin == kRows)
    return multiply<kRows, code, kHasZero, kUnit>(p, in, panel, vector, rows.begin);
  if constexpr (kRows > 1)
    multiply_rows<code, kHasZero, kUnit, kRows - 1>(p, in, panel, vector, rows);
}

using SliverFn = void(const QuantizedLinearParams&, const QuantizedInputs&, int panel, int vector,
                      Range rows);

template <Code code>
SliverFn* sliver_fn(const CodedMatrix& m) {
  if constexpr (code != Code::i5)
    if (m.unit() == 16)
      return m.zero == Zero::none ? multiply_rows<code, false, 16> : multiply_rows<code, true, 16>;
  return m.zero == Zero::none ? multiply_rows<code, false, kInputGroup>
                              : multiply_rows<code, true, kInputGroup>;
}

/// Rows [row, row + kRows) times kColumns vectors of outputs of fp8 codes, from vector `column` of
/// all panels on. Few rows need several vectors, since each sum waits for its last product.
template <int kRows, int kColumns = 1>
__attribute__((noinline)) void multiply_fp8(const QuantizedLinearParams& p,
                                            const QuantizedInputs& in, int column, int row) {
  const CodedMatrix m = p.matrix;
  const auto panel_of = [&](int c) {
    return static_cast<const char*>(p.w) + (column + c) / kVectors * m.panel_bytes();
  };
  const auto vector_of = [&](int c) { return (column + c) % kVectors; };
  const int64_t stride = m.inputs();
  const float* x = in.numbers + row * stride;
  const char* codes[kColumns];
  for (int c = 0; c < kColumns; ++c) codes[c] = panel_of(c) + vector_of(c) * kW * 4;
  const int lines = m.inputs() / 4, lines_each = m.group == 0 ? lines : m.group / 4;
  Vec sum[kColumns][kRows];
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c)
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[c][r] = simd::zero();
  for (int group = 0, first = 0; first < lines; ++group, first += lines_each) {
    Vec part[2][kColumns][kRows];
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c)
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) part[0][c][r] = part[1][c][r] = simd::zero();
    const int64_t end = kLineBytes * int64_t{simd::least(first + lines_each, lines)};
    for (int64_t at = kLineBytes * int64_t{first}; at < end; at += kLineBytes, x += 4)
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) {
        const Ints line = load_ints(codes[c] + at);
        fetch_ahead(codes[c] + at);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const Vec w = fp8_numbers(line, j);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r)
            part[j % 2][c][r] = fma(simd::set1(x[r * stride + j]), w, part[j % 2][c][r]);
        }
      }
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      const Vec scale = Scales(m, panel_of(c), vector_of(c)).scale(group);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        sum[c][r] = fma(part[0][c][r] + part[1][c][r], scale, sum[c][r]);
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c)
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      if (p.y_type == DType::bf16)
        finish<bf16>(p, row + r, (column + c) * kW, sum[c][r]);
      else
        finish<float>(p, row + r, (column + c) * kW, sum[c][r]);
}

template <int kRows = kSliver>
TANDEM_INLINE void multiply_fp8_rows(const QuantizedLinearParams& p, const QuantizedInputs& in,
                                     int panel, int vector, Range rows) {
  if (rows.end - rows.begin == kRows)
    return multiply_fp8<kRows>(p, in, panel * kVectors + vector, rows.begin);
  if constexpr (kRows > 1) multiply_fp8_rows<kRows - 1>(p, in, panel, vector, rows);
}

/// All outputs of panels, for one row or two.
template <int kRows, int kColumns = 4 / kRows>
void multiply_fp8_panels(const QuantizedLinearParams& p, const QuantizedInputs& in, Range columns,
                         int row) {
  int column = columns.begin;
  for (; column + kColumns <= columns.end; column += kColumns)
    multiply_fp8<kRows, kColumns>(p, in, column, row);
  if constexpr (kColumns > 1)
    multiply_fp8_panels<kRows, kColumns / 2>(p, in, {column, columns.end}, row);
}

SliverFn* sliver_fn(const CodedMatrix& m) {
  if (m.code == Code::fp8) return multiply_fp8_rows<>;
  if (m.code == Code::i5) return sliver_fn<Code::i5>(m);
  return m.code == Code::i4 ? sliver_fn<Code::i4>(m) : sliver_fn<Code::i8>(m);
}

/// Rows whose inputs stay in the second-level cache with the panels of a call.
constexpr int64_t kBlockBytes = int64_t{128} << 10;

void run(const QuantizedLinearParams& p, const QuantizedInputs& in, Range panels, Range rows) {
  const int64_t n = rows.end - rows.begin, slivers = (n + kSliver - 1) / kSliver;
#if defined(TANDEM_ISA_amx)
  if (n >= kLeastTileRows && has_tiles(p.matrix)) return run_tiles(p, in, panels, rows);
#endif
  const auto sliver = [&](int64_t i) -> Range {
    return {rows.begin + static_cast<int>(n * i / slivers),
            rows.begin + static_cast<int>(n * (i + 1) / slivers)};
  };
  if (p.matrix.two_level()) {
    for (int64_t i = 0; i < slivers; ++i) multiply_blocks(p, in, panels, sliver(i));
    return;
  }
  if (p.matrix.code == Code::fp8 && n <= 2) {
    const Range columns{panels.begin * kVectors, panels.end * kVectors};
    return n == 1 ? multiply_fp8_panels<1>(p, in, columns, rows.begin)
                  : multiply_fp8_panels<2>(p, in, columns, rows.begin);
  }
  SliverFn* const fn = sliver_fn(p.matrix);
  const int64_t bytes = p.matrix.code == Code::fp8 ? sizeof(float) : 1;  // an input takes these
  const int64_t most = kBlockBytes / (bytes * p.matrix.inputs() * kSliver) + 1;
  for (int64_t first = 0; first < slivers; first += most)
    for (int panel = panels.begin; panel < panels.end; ++panel)
      for (int64_t i = first; i < first + most && i < slivers; ++i)
        for (int v = 0; v < kVectors; ++v) fn(p, in, panel, v, sliver(i));
}

/// kW outputs of one panel, to[input * stride].
template <Code code>
void widen_vector(const CodedMatrix& m, const char* panel, int vector, float* to, int stride) {
  const Scales scales(m, panel, vector);
  const char* const codes = panel + vector * kW * 4;
  const Vec offset = simd::set1(code == Code::i8 ? 128.0f : static_cast<float>(m.block().offset()));
  for (int unit = 0; unit * m.unit() < m.in; ++unit) {
    const int first = unit * m.unit(), group = m.group == 0 ? 0 : first / m.group;
    const Vec scale = scales.scale(group);
    for (int k = first; k < first + m.unit() && k < m.in; ++k) {
      const Ints line = codes_at<code>(codes + k / kCodeStep * m.step_bytes(), k % kCodeStep / 4);
      Vec code_of = code == Code::fp8 ? fp8_numbers(line, k % 4)
                                      : to_float(bits_of_ints(line, k % 4 * 8, 255)) - offset;
      if (m.zero == Zero::integer)
        code_of = code_of -
                  simd::load(reinterpret_cast<const int8_t*>(scales.zeros) + group * kCodePanel);
      Vec w = scale * code_of;
      if (m.zero == Zero::minimum) w = w + scales.minimum(group, scale);
      simd::store(to + int64_t{k} * stride, w);
    }
  }
}

void widen(const CodedMatrix& m, const void* panels, Range packed_panels, int n_outputs,
           float* to) {
  constexpr int kPacked = 2 * kW;
  for (int i = packed_panels.begin; i < packed_panels.end; ++i)
    for (int v = 0; v < 2; ++v) {
      const int output = i * kPacked + v * kW;
      float* const column = to + int64_t{i - packed_panels.begin} * kPacked * m.in + v * kW;
      if (output >= (n_outputs + kCodePanel - 1) / kCodePanel * kCodePanel) {
        for (int64_t k = 0; k < m.in; ++k) simd::store(column + k * kPacked, simd::zero());
        continue;
      }
      const char* const panel =
          static_cast<const char*>(panels) + output / kCodePanel * m.panel_bytes();
      const int vector = output % kCodePanel / kW;
      if (m.two_level())
        widen_blocks(m, panel, vector, column, kPacked);
      else if (m.code == Code::i4)
        widen_vector<Code::i4>(m, panel, vector, column, kPacked);
      else if (m.code == Code::i5)
        widen_vector<Code::i5>(m, panel, vector, column, kPacked);
      else if (m.code == Code::fp8)
        widen_vector<Code::fp8>(m, panel, vector, column, kPacked);
      else
        widen_vector<Code::i8>(m, panel, vector, column, kPacked);
    }
}

}  // namespace

const QuantizedLinearKernel TANDEM_ISA_FN(quantized_linear) = {quantize, run, widen};

}  // namespace tandem
