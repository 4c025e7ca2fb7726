// Products of codes with scales of two levels: a part of quantized_linear.inl.
#include "kernels/linear/quantized_linear.h"

namespace tandem {
namespace {

/// Writes a row of x to blocks[i * stride].
template <class T>
void quantize_blocks(const CodedMatrix& m, const T* x, TwoLevelInputs* blocks, int64_t stride) {
  const int group = m.group;
  for (int first = 0; first < m.in; first += kTwoLevelInputs, blocks += stride) {
    for (int i = 0; i < kTwoLevelInputs; i += kInputGroup)
      blocks->scale[i / kInputGroup] = quantize_group(m, x, first + i, blocks->x + i);
    for (int g = 0; g < kTwoLevelInputs / group; ++g) {
      const int32_t total = total_of(blocks->x + g * group, group);
      if (m.zero == Zero::none)
        blocks->start[g] = -m.block().offset() * total;
      else
        blocks->sum[g] = blocks->scale[g * group / kInputGroup] * static_cast<float>(total);
    }
  }
}

/// A format with scales of two levels.
template <Code kCode, int kGroup, Zero kZero>
struct TwoLevel {
  static constexpr Code code = kCode;
  static constexpr TwoLevelBlock row = {kCode, kZero, kGroup};
  static constexpr TwoLevelPanel panel = {row};
  static constexpr int kGroups = row.groups();
  static constexpr bool has_minimum = kZero == Zero::minimum, two_level = true;
};

/// The integers of a group's scales or minima, which begin at `at`, at a vector of outputs.
TANDEM_INLINE Vec integers_of(const char* block, int at, int vector, int group) {
  return simd::load(reinterpret_cast<const int8_t*>(block) + at + group * kCodePanel + vector * kW);
}

/// Factors of scales, or after them of minima.
template <class F>
TANDEM_INLINE Vec factors_of(const char* block, int vector, bool of_minima) {
  return simd::load(reinterpret_cast<const f16*>(block + F::panel.factors_at()) +
                    of_minima * kCodePanel + vector * kW);
}

/// Fetches a quarter of the block after the next one, which may begin and end inside a line. CPUs
/// fetch too few lines by themselves.
template <class F>
TANDEM_INLINE void fetch_ahead(const char* block, int step) {
  constexpr int kQuarter = F::panel.bytes() / (kTwoLevelInputs / kCodeStep);
  const char* const from = block + 2 * F::panel.bytes() + step * kQuarter;
#pragma GCC unroll 16
  for (int at = 0; at < kQuarter + 63; at += 64) __builtin_prefetch(from + at);
}

/// Adds the products of kRows rows and a block, at a vector of outputs, to sums [kRows][kW].
template <int kRows, class F>
TANDEM_INLINE void add_block(const char* block, int vector, const TwoLevelInputs* x, float* sums) {
  constexpr int kGroup = F::row.group, kLines = kGroup / 4;
  const char* const codes = block + vector * kW * 4;
  Vec sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = simd::zero();
#pragma GCC unroll 1
  for (int step = 0; step < kTwoLevelInputs / kCodeStep; ++step) {
    if constexpr (kRows <= kRowsOfHalves) fetch_ahead<F>(block, step);
#pragma GCC unroll 2
    for (int i = 0; i < kCodeStep / kInputGroup; ++i) {
      constexpr int kGroups = kInputGroup / kGroup;
      const int input = step * kCodeStep + i * kInputGroup, group = input / kGroup;
      Vec part[kRows];
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        Dots<F::code> dots[kRows];
        if constexpr (!F::has_minimum)
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) dots[r].begin(x[r].start[group + g]);
#pragma GCC unroll 8
        for (int line = 0; line < kLines; ++line) {
          const Ints w = codes_at<F::code>(codes + step * F::panel.step_bytes(),
                                           (i * kGroups + g) * kLines + line);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) dots[r].add(w, x[r].x + input + g * kGroup + 4 * line);
        }
        const Vec scale = integers_of(block, F::panel.scales_at(), vector, group + g);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const Vec whole = dots[r].end();
          part[r] = g == 0 ? whole * scale : fma(whole, scale, part[r]);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        sum[r] = fma(part[r], simd::set1(x[r].scale[input / kInputGroup]), sum[r]);
    }
  }
  const auto add = [&](const Vec* some, bool of_minima) __attribute__((always_inline)) {
    const Vec factor = factors_of<F>(block, vector, of_minima);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      simd::store(sums + r * kW, fma(some[r], factor, simd::load(sums + r * kW)));
  };
  add(sum, false);
  if constexpr (F::has_minimum) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r] = simd::zero();
#pragma GCC unroll 16
    for (int group = 0; group < F::kGroups; ++group) {
      const Vec minimum = integers_of(block, F::panel.minima_at(), vector, group);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sum[r] = fma(minimum, simd::set1(x[r].sum[group]), sum[r]);
    }
    add(sum, true);
  }
}

/// Adds n blocks.
/// stride   from a block of x to the next one
template <int kRows, class F>
void add_blocks(const char* block, int vector, const TwoLevelInputs* x, int64_t stride, int n,
                float* sums) {
  for (int i = 0; i < n; ++i, block += F::panel.bytes(), x += stride)
    add_block<kRows, F>(block, vector, x, sums);
}

using AddBlocksFn = void(const char* block, int vector, const TwoLevelInputs* x, int64_t stride,
                         int n, float* sums);

template <class F, int kRows = kSliver>
AddBlocksFn* add_blocks_fn(int rows) {
  if constexpr (kRows > 1)
    if (rows < kRows) return add_blocks_fn<F, kRows - 1>(rows);
  return add_blocks<kRows, F>;
}

/// Calls f with the TwoLevel of a matrix.
template <class F>
auto with_two_level(const CodedMatrix& m, const F& f) {
  if (m.code == Code::i6) return f(TwoLevel<Code::i6, 16, Zero::none>());
  if (m.code == Code::i5) return f(TwoLevel<Code::i5, 32, Zero::minimum>());
  if (m.group == 32) return f(TwoLevel<Code::i4, 32, Zero::minimum>());
  if (m.zero == Zero::none) return f(TwoLevel<Code::i4, 16, Zero::none>());
  return f(TwoLevel<Code::i4, 16, Zero::minimum>());
}

/// Rows of a sliver times panels. Sums and some blocks of x stay in the first-level cache.
void multiply_blocks(const QuantizedLinearParams& p, const QuantizedInputs& in, Range panels,
                     Range rows) {
  constexpr int kPanels = 16, kBlocks = 4;
  const int blocks = p.matrix.blocks(), n = rows.end - rows.begin;
  const int most = n <= kRowsOfHalves ? blocks : kBlocks;  // few rows read panels in their order
  AddBlocksFn* const add =
      with_two_level(p.matrix, [&](auto format) { return add_blocks_fn<decltype(format)>(n); });
  const int64_t block_bytes = TwoLevelPanel{p.matrix.block()}.bytes();
  for (int begin = panels.begin; begin < panels.end; begin += kPanels) {
    const int end = simd::least(begin + kPanels, panels.end);
    alignas(64) float sums[kPanels][kVectors][kSliver * kW];
    for (int i = 0; i < (end - begin) * kVectors; ++i)
      for (int r = 0; r < n; ++r) simd::store(&sums[0][i][r * kW], simd::zero());
    for (int first = 0; first < blocks; first += most)
      for (int panel = begin; panel < end; ++panel)
        for (int v = 0; v < kVectors; ++v)
          add(static_cast<const char*>(p.w) + panel * p.matrix.panel_bytes() + first * block_bytes,
              v, in.blocks + int64_t{first} * p.rows + rows.begin, p.rows,
              simd::least(most, blocks - first), sums[panel - begin][v]);
    for (int panel = begin; panel < end; ++panel)
      for (int v = 0; v < kVectors; ++v)
        for (int r = 0; r < n; ++r) {
          const Vec sum = simd::load(&sums[panel - begin][v][r * kW]);
          const int output = panel * kCodePanel + v * kW;
          if (p.y_type == DType::bf16)
            finish<bf16>(p, rows.begin + r, output, sum);
          else
            finish<float>(p, rows.begin + r, output, sum);
        }
  }
}

/// kW outputs of one panel, to[input * stride].
void widen_blocks(const CodedMatrix& m, const char* panel, int vector, float* to, int stride) {
  with_two_level(m, [&](auto format) {
    using F = decltype(format);
    const Vec offset = simd::set1(static_cast<float>(F::row.offset()));
    for (int k = 0; k < m.in; ++k) {
      const int i = k % kTwoLevelInputs, group = i / F::row.group;
      const char* const block = panel + k / kTwoLevelInputs * F::panel.bytes();
      const Ints line = codes_at<F::code>(
          block + vector * kW * 4 + i / kCodeStep * F::panel.step_bytes(), i % kCodeStep / 4);
      const Vec scale = factors_of<F>(block, vector, false) *
                        integers_of(block, F::panel.scales_at(), vector, group);
      Vec w = scale * (to_float(bits_of_ints(line, k % 4 * 8, 255)) - offset);
      if constexpr (F::has_minimum)
        w = w + factors_of<F>(block, vector, true) *
                    integers_of(block, F::panel.minima_at(), vector, group);
      simd::store(to + int64_t{k} * stride, w);
    }
  });
}

}  // namespace
}  // namespace tandem
