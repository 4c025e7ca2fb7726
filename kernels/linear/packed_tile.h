#pragma once
// The innermost part of packed_linear: the rows of one sliver times panels of weights.
#include "kernels/linear/packed_linear.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using simd::kW;
using simd::Vec;

/// Two vectors: as many loads of weights as it takes to use each broadcast of x twice.
constexpr int kPanel = 2 * kW;

// Chains fill the registers but for a panel's weights and a broadcast: 12 of 16, or 28 of 32.
#if defined(TANDEM_ISA_scalar)
constexpr int kSliverRows = 4;
#elif defined(TANDEM_ISA_avx2)
constexpr int kSliverRows = 6;
#else
constexpr int kSliverRows = 14;
#endif

/// Inputs of one turn of the loop, so that its control takes a few per cent of the instructions.
constexpr int unrolled(int chains) { return kW == 1 ? 1 : chains < 16 ? 4 : 2; }

/// Panels that few rows take at once: a multiply-add takes four cycles, and two can begin in each,
/// so that a thread needs eight chains to be no slower than memory.
constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

/// The weights of one panel and input.
TANDEM_INLINE void load_panel(const float* w, Vec& low, Vec& high) {
  low = simd::load(w);
  high = simd::load(w + kW);
}
TANDEM_INLINE void load_panel(const bf16* w, Vec& low, Vec& high) {
  simd::load_even_odd(w, low, high);
}

/// Where an output's weight lies among those of its panel and input: bf16 in the order that is
/// cheapest to widen, even places first.
template <class W>
constexpr int place_in_panel(int output) {
  return sizeof(W) == sizeof(float) ? output : output % kW * 2 + output / kW;
}

/// What a tile works on.
template <class W>
struct Tile {
  float* sums;         // [rows][panels * kPanel]
  const float* x;      // a sliver of PackedRows
  const W* w;          // [n_k][kPanel]
  int64_t next_panel;  // elements between panels
  int n_k;
  bool begins;     // sums start from zero, not from where they are
  float* widened;  // [n_k][kPanel]: gets the weights in f32, where the tile asks for that
};

template <int kRows, int kPanels, bool kWiden, class W>
TANDEM_INLINE void multiply_add(Vec (&sum)[kRows][2 * kPanels], const Tile<W>& t, const float* x,
                                int64_t k) {
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
    Vec low, high;
    load_panel(t.w + p * t.next_panel + k * kPanel, low, high);
    if constexpr (kWiden) {
      simd::store(t.widened + k * kPanel, low);
      simd::store(t.widened + k * kPanel + kW, high);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec a = simd::set1(x[r * kW]);
      sum[r][2 * p] = fma(a, low, sum[r][2 * p]);
      sum[r][2 * p + 1] = fma(a, high, sum[r][2 * p + 1]);
    }
  }
}

/// sums (+)= x times the panels' weights.
template <int kRows, int kPanels, bool kWiden, class W>
__attribute__((noinline)) void multiply_tile(const Tile<W>& tile) {
  const Tile<W> t = tile;  // in registers: no store can change it
  Vec sum[kRows][2 * kPanels];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < 2 * kPanels; ++v)
      sum[r][v] = t.begins ? simd::zero() : simd::load(t.sums + (r * 2 * kPanels + v) * kW);
  constexpr int kUnroll = unrolled(2 * kRows * kPanels);
  const float* x = t.x;
  int k = 0;
  for (; k + kW <= t.n_k; k += kW, x += kRows * kW) {
    for (int lane = 0; lane < kW; lane += kUnroll)
#pragma GCC unroll 4
      for (int i = 0; i < kUnroll; ++i)
        multiply_add<kRows, kPanels, kWiden>(sum, t, x + lane + i, k + lane + i);
  }
  for (; k < t.n_k; ++k, ++x) multiply_add<kRows, kPanels, kWiden>(sum, t, x, k);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < 2 * kPanels; ++v)
      simd::store(t.sums + (r * 2 * kPanels + v) * kW, sum[r][v]);
}

/// The tile of one panel for a number of rows known at run time.
template <bool kWiden, int kRows = kSliverRows, class W>
inline void multiply_rows(int rows, const Tile<W>& t) {
  if (rows == kRows) return multiply_tile<kRows, 1, kWiden>(t);
  if constexpr (kRows > 1) multiply_rows<kWiden, kRows - 1>(rows, t);
}

}  // namespace
}  // namespace tandem
