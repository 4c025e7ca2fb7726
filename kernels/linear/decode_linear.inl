#include "kernels/linear/decode_linear.h"

#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using simd::kW;
using simd::Vec;

TANDEM_INLINE __m512bh as_bf16(__m512i a) { return reinterpret_cast<__m512bh>(a); }

/// Inputs k and k + 1 of a row in every lane; the one after the last is zero.
TANDEM_INLINE __m512bh two_inputs(const bf16* row, int k, int in) {
  uint32_t both;
  if (k + 1 < in)
    __builtin_memcpy(&both, row + k, sizeof both);
  else
    both = row[k].bits;
  return as_bf16(_mm512_set1_epi32(static_cast<int>(both)));
}

template <class Y>
TANDEM_INLINE void finish(const DecodeLinearParams& p, int row, int output, Vec sum) {
  const int n = p.out - output < kW ? p.out - output : kW;
  if (n <= 0) return;
  Y* const y = static_cast<Y*>(p.y) + int64_t{row} * p.out + output;
  if (p.bias != nullptr) sum = sum + simd::load_n(p.bias + output, n);
  if (p.accumulate) sum = sum + simd::load_n(y, n);
  simd::store_n(y, sum, n);
}

/// Rows whose sums, with a panel's weights for a pair, fill the registers.
constexpr int kSliverRows = 6;
/// Inputs of a panel that several slivers of rows read in turn: 256 KiB, which L2 holds.
constexpr int kBlock = 2048;

/// Some rows, and inputs [first, end) of them, times vectors of outputs of one panel.
struct Block {
  const bf16* x;  // of the first row
  const bf16* w;  // of the first output and input
  int in, first, end;
  float* sums;  // [rows][kPairPanel]
};

/// sums = or += x w for kRows rows and kVectors vectors of outputs.
template <int kRows, int kVectors>
__attribute__((noinline)) void multiply(const Block& block) {
  const Block b = block;  // in registers: no store can change it
  Vec sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = b.first == 0 ? simd::zero() : simd::load(b.sums + r * kPairPanel + v * kW);
  const bf16* w = b.w;
  for (int k = b.first; k < b.end; k += 2, w += 2 * kPairPanel) {
    __m512bh weights[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weights[v] = as_bf16(_mm512_loadu_si512(w + v * 2 * kW));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512bh inputs = two_inputs(b.x + int64_t{r} * b.in, k, b.in);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sum[r][v].v = _mm512_dpbf16_ps(sum[r][v].v, inputs, weights[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) simd::store(b.sums + r * kPairPanel + v * kW, sum[r][v]);
}

template <int kVectors, int kRows = kSliverRows>
TANDEM_INLINE void multiply_rows(int rows, const Block& b) {
  if (rows == kRows) return multiply<kRows, kVectors>(b);
  if constexpr (kRows > 1) multiply_rows<kVectors, kRows - 1>(rows, b);
}

/// All rows times kVectors vectors of outputs of one panel, from `output` on.
template <int kVectors>
void multiply_panel(const DecodeLinearParams& p, int output) {
  alignas(64) float sums[kDecodeRows * kPairPanel];
  const bf16* const w = p.w +
                        output / kPairPanel * (pair_panel_bytes(p.in) / int64_t{sizeof(bf16)}) +
                        output % kPairPanel * 2;
  const int slivers = (p.rows + kSliverRows - 1) / kSliverRows;
  const int block = slivers == 1 ? p.in : kBlock;
  for (int k = 0; k < p.in; k += block)
    for (int i = 0; i < slivers; ++i) {
      const int row = p.rows * i / slivers, end = p.rows * (i + 1) / slivers;
      multiply_rows<kVectors>(end - row, {.x = p.x + int64_t{row} * p.in,
                                          .w = w + int64_t{k} * kPairPanel,
                                          .in = p.in,
                                          .first = k,
                                          .end = p.in - k < block ? p.in : k + block,
                                          .sums = sums + row * kPairPanel});
    }
  for (int r = 0; r < p.rows; ++r)
    for (int v = 0; v < kVectors; ++v) {
      const Vec sum = simd::load(sums + r * kPairPanel + v * kW);
      if (p.y_type == DType::bf16)
        finish<bf16>(p, r, output + v * kW, sum);
      else
        finish<float>(p, r, output + v * kW, sum);
    }
}

}  // namespace

void TANDEM_ISA_FN(decode_linear)(const DecodeLinearParams& p, Range items) {
  constexpr int kItems = kPairPanel / kPairItem;
  for (int i = items.begin; i < items.end;) {
    const bool whole = i % kItems == 0 && i + kItems <= items.end;
    if (whole)
      multiply_panel<kPairPanel / kW>(p, i * kPairItem);
    else
      multiply_panel<kPairItem / kW>(p, i * kPairItem);
    i += whole ? kItems : 1;
  }
}

}  // namespace tandem
