// Products of many rows on AMX: a part of quantized_linear.inl. A tile holds 16 rows of x, or 16
// outputs of a panel with signed codes. Vectors add tiles of products to sums, with the operations
// of the other bodies and in their order.
#include <immintrin.h>

#include "kernels/linear/quantized_linear.h"

namespace tandem {
namespace {

static_assert(kW == kCodePanel);
/// Fewer rows are faster without tiles, and so are groups of 16 inputs.
constexpr int kLeastTileRows = 48;
constexpr int kTileRows = 16;
// Panels and inputs whose codes are unpacked together, for at most kTileRowsAtOnce rows of x.
constexpr int kTilePanels = 4, kTileInputs = 1024, kTileRowsAtOnce = 256;
constexpr int kMostUnits = kTileInputs / kInputGroup;

/// Inputs of a panel. Units have scales and minima. With two levels these are the integers.
struct alignas(64) UnpackedPanel {
  int8_t codes[kTileInputs / 4][kCodePanel][4];
  float scales[kMostUnits][kCodePanel], minima[kMostUnits][kCodePanel];
  float factors[kTileInputs / kTwoLevelInputs][2][kCodePanel];  // scales' factors, minima's
};

/// Tiles 0 to 3 are of products, 4 and 5 of rows of x, 6 and 7 of codes.
inline void configure_tiles(int rows) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = static_cast<uint16_t>(i / 2 == 2 ? kInputGroup : kLineBytes);
    config.rows[i] = static_cast<uint8_t>(i < 6 ? rows : kInputGroup / 4);
  }
  _tile_loadconfig(&config);
}

/// Rows of x in a tile, from one input on.
struct TileInputs {
  const int8_t* x;
  const float *scale, *sum;
  int64_t stride, scale_stride, sum_stride;  // from a row to the next one

  TANDEM_INLINE TileInputs(const CodedMatrix& m, const QuantizedInputs& in, int64_t row, int first)
      : x(in.x + row * m.row_stride() + first),
        scale(in.scale + row * m.scale_stride() + first / kInputGroup),
        sum(in.sum + row * m.unit_stride() + first / m.unit()),
        stride(m.row_stride()),
        scale_stride(m.scale_stride()),
        sum_stride(m.unit_stride()) {}
  explicit TANDEM_INLINE TileInputs(const TwoLevelInputs& in)
      : x(in.x),
        scale(in.scale),
        sum(in.sum),
        stride(sizeof in),
        scale_stride(sizeof in / sizeof(float)),
        sum_stride(scale_stride) {}
};

/// Units that are multiplied, and then added to sums, together: a block of two levels.
constexpr int kUnitsAtOnce = kTwoLevelInputs / kInputGroup;
using Products = int32_t[kUnitsAtOnce][kTileRows][kCodePanel];

/// Writes the products of kUnitsAtOnce units. Four units are under way at a time, since a tile that
/// is written again waits for its readers.
TANDEM_INLINE void multiply_units(const TileInputs& in, const int8_t* codes, Products& to) {
  constexpr int kX = kInputGroup, kW4 = kInputGroup * kCodePanel;
#pragma GCC unroll 2
  for (int i = 0; i < kUnitsAtOnce; i += 4) {
    const int8_t *const x = in.x + i * kX, *const w = codes + i * kW4;
    _tile_zero(0);
    _tile_loadd(4, x, in.stride);
    _tile_loadd(6, w, kLineBytes);
    _tile_dpbssd(0, 4, 6);
    _tile_zero(1);
    _tile_loadd(5, x + kX, in.stride);
    _tile_loadd(7, w + kW4, kLineBytes);
    _tile_dpbssd(1, 5, 7);
    _tile_zero(2);
    _tile_loadd(4, x + 2 * kX, in.stride);
    _tile_loadd(6, w + 2 * kW4, kLineBytes);
    _tile_dpbssd(2, 4, 6);
    _tile_zero(3);
    _tile_loadd(5, x + 3 * kX, in.stride);
    _tile_loadd(7, w + 3 * kW4, kLineBytes);
    _tile_dpbssd(3, 5, 7);
    _tile_stored(0, to[i], kLineBytes);
    _tile_stored(1, to[i + 1], kLineBytes);
    _tile_stored(2, to[i + 2], kLineBytes);
    _tile_stored(3, to[i + 3], kLineBytes);
  }
}

/// Adds the products of kUnitsAtOnce units to sums.
template <class F, int kRows>
TANDEM_INLINE void add_units(Vec (&sum)[kTileRows], const Products& products, const TileInputs& in,
                             const UnpackedPanel& w, int unit, int rows) {
  constexpr bool kAddsMinimum = F::has_minimum && !F::two_level;
  const int n = kRows > 0 ? kRows : rows;
#pragma GCC unroll 8
  for (int i = 0; i < kUnitsAtOnce; ++i) {
    const Vec scale = simd::load(w.scales[unit + i]);
    const Vec minimum = kAddsMinimum ? simd::load(w.minima[unit + i]) : scale;
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r) {
      const Vec x_scale = simd::set1(in.scale[r * in.scale_stride + i]);
      sum[r] = fma(to_float(load_ints(products[i][r])) * scale, x_scale, sum[r]);
      if constexpr (kAddsMinimum)
        sum[r] = fma(minimum, simd::set1(in.sum[r * in.sum_stride + i]), sum[r]);
    }
  }
}

TANDEM_INLINE void store_codes(int8_t (&to)[kCodePanel][4], Ints codes, int offset) {
  _mm512_store_si512(to, _mm512_sub_epi8(codes.v, _mm512_set1_epi8(static_cast<char>(offset))));
}

/// Unpacks inputs [first, first + n) of a panel, with zeros past the last one.
template <class F>
void unpack_groups(const CodedMatrix& m, const char* panel, int first, int n, UnpackedPanel& to) {
  const Scales scales(m, panel, 0);
  const int here = simd::least(n, m.inputs() - first), units = here / kInputGroup;
  for (int line = 0; line < here / 4; ++line) {
    const int input = first + 4 * line;
    store_codes(
        to.codes[line],
        codes_at<F::code>(panel + input / kCodeStep * m.step_bytes(), input % kCodeStep / 4),
        offset_of(m));
  }
  for (int unit = 0; unit < units; ++unit) {
    const int group = m.group == 0 ? 0 : (first + unit * kInputGroup) / m.group;
    const Vec scale = scales.scale(group);
    simd::store(to.scales[unit], scale);
    if constexpr (F::has_minimum) simd::store(to.minima[unit], scales.minimum(group, scale));
  }
  const auto rest = static_cast<size_t>(n / kInputGroup - units);
  __builtin_memset(to.codes + here / 4, 0, static_cast<size_t>(n - here) * kCodePanel);
  __builtin_memset(to.scales + units, 0, rest * sizeof to.scales[0]);
  __builtin_memset(to.minima + units, 0, rest * sizeof to.minima[0]);
}

/// Unpacks blocks with minima.
template <class F>
void unpack_blocks(const char* panel, int first, int n, UnpackedPanel& to) {
  const char* block = panel + first / kTwoLevelInputs * F::panel.bytes();
  for (int i = 0; i < n / kTwoLevelInputs; ++i, block += F::panel.bytes()) {
    constexpr int kLines = kTwoLevelInputs / 4, kStepLines = kCodeStep / 4;
    for (int line = 0; line < kLines; ++line)
      store_codes(
          to.codes[i * kLines + line],
          codes_at<F::code>(block + line / kStepLines * F::panel.step_bytes(), line % kStepLines),
          0);
    for (int g = 0; g < F::kGroups; ++g) {
      const int unit = i * F::kGroups + g;
      simd::store(to.scales[unit], integers_of(block, F::panel.scales_at(), 0, g));
      simd::store(to.minima[unit], integers_of(block, F::panel.minima_at(), 0, g));
    }
    simd::store(to.factors[i][0], factors_of<F>(block, 0, false));
    simd::store(to.factors[i][1], factors_of<F>(block, 0, true));
  }
}

template <class F>
void unpack(const CodedMatrix& m, const char* panel, int first, int n, UnpackedPanel& to) {
  if constexpr (F::two_level)
    unpack_blocks<F>(panel, first, n, to);
  else
    unpack_groups<F>(m, panel, first, n, to);
}

/// A tile of rows of x, and inputs [first, first + n) of them.
struct TileOfInputs {
  const QuantizedLinearParams& p;
  const QuantizedInputs& in;
  int row, rows, first, n;

  /// From input first + i on.
  template <class F>
  TANDEM_INLINE TileInputs at(int i) const {
    if constexpr (!F::two_level) return TileInputs(p.matrix, in, row, first + i);
    const int64_t block = (first + i) / kTwoLevelInputs;
    return TileInputs(in.blocks[block * p.rows + row]);
  }
};

/// Adds the sums of a block times their factors, and the products of its minima.
template <class F, int kRows>
TANDEM_INLINE void add_block_sums(Vec (&sum)[kTileRows], const TileInputs& in,
                                  const UnpackedPanel& w, int block, int rows, float* sums) {
  const int n = kRows > 0 ? kRows : rows;
  const auto add = [&](const float* factors) __attribute__((always_inline)) {
    const Vec factor = simd::load(factors);
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r) {
      float* const to = sums + r * kCodePanel;
      simd::store(to, fma(sum[r], factor, simd::load(to)));
      sum[r] = simd::zero();
    }
  };
  add(w.factors[block][0]);
#pragma GCC unroll 16
  for (int unit = 0; unit < kUnitsAtOnce; ++unit) {
    const Vec minimum = simd::load(w.minima[block * kUnitsAtOnce + unit]);
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r)
      sum[r] = fma(minimum, simd::set1(in.sum[r * in.sum_stride + unit]), sum[r]);
  }
  add(w.factors[block][1]);
}

/// Adds the products of a tile and an unpacked panel to sums [rows][kCodePanel].
/// kRows    rows of the tile, or 0: t.rows
template <class F, int kRows>
__attribute__((noinline)) void add_tile(const TileOfInputs& t, const UnpackedPanel& w,
                                        float* sums) {
  const int n = kRows > 0 ? kRows : t.rows;
  alignas(64) Products products[2];
  const auto multiply = [&](int i) __attribute__((always_inline)) {
    multiply_units(t.at<F>(i), w.codes[i / 4][0], products[i / kTwoLevelInputs % 2]);
  };
  Vec sum[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < n; ++r)
    sum[r] = F::two_level ? simd::zero() : simd::load(sums + r * kCodePanel);
  multiply(0);
  for (int i = 0; i < t.n; i += kTwoLevelInputs) {
    if (i + kTwoLevelInputs < t.n) multiply(i + kTwoLevelInputs);
    const int block = i / kTwoLevelInputs;
    const TileInputs in = t.at<F>(i);
    add_units<F, kRows>(sum, products[block % 2], in, w, block * kUnitsAtOnce, n);
    if constexpr (F::two_level) add_block_sums<F, kRows>(sum, in, w, block, n, sums);
  }
  if constexpr (!F::two_level)
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r) simd::store(sums + r * kCodePanel, sum[r]);
}

/// The functions of a format.
struct TileBody {
  void (*unpack)(const CodedMatrix&, const char* panel, int first, int n, UnpackedPanel&);
  void (*add_whole)(const TileOfInputs&, const UnpackedPanel&, float* sums);
  void (*add_some)(const TileOfInputs&, const UnpackedPanel&, float* sums);
};

/// A format with scales of one level.
template <Code kCode, bool kHasMinimum>
struct OneLevel {
  static constexpr Code code = kCode;
  static constexpr bool has_minimum = kHasMinimum, two_level = false;
};

template <class F>
TileBody tile_body(F) {
  return {unpack<F>, add_tile<F, kTileRows>, add_tile<F, 0>};
}

template <Code code>
TileBody tile_body(const CodedMatrix& m) {
  return m.zero != Zero::none ? tile_body(OneLevel<code, true>())
                              : tile_body(OneLevel<code, false>());
}

bool has_tiles(const CodedMatrix& m) { return m.code != Code::fp8 && m.unit() == kInputGroup; }

/// For matrices that have tiles.
TileBody tile_body(const CodedMatrix& m) {
  if (m.two_level())
    return m.code == Code::i5 ? tile_body(TwoLevel<Code::i5, 32, Zero::minimum>())
                              : tile_body(TwoLevel<Code::i4, 32, Zero::minimum>());
  return m.code == Code::i4   ? tile_body<Code::i4>(m)
         : m.code == Code::i5 ? tile_body<Code::i5>(m)
                              : tile_body<Code::i8>(m);
}

/// The products of at most kTilePanels panels and kTileRowsAtOnce rows.
void multiply_tiles(const QuantizedLinearParams& p, const QuantizedInputs& in, Range panels,
                    Range rows, const TileBody& body) {
  const CodedMatrix& m = p.matrix;
  UnpackedPanel unpacked[kTilePanels];
  alignas(64) float sums[kTilePanels][kTileRowsAtOnce][kCodePanel];
  const int n_panels = panels.end - panels.begin, n_rows = rows.end - rows.begin;
  for (int i = 0; i < n_panels; ++i) __builtin_memset(sums[i], 0, sizeof sums[i][0] * n_rows);
  for (int first = 0; first < m.padded(); first += kTileInputs) {
    const int n = simd::least(kTileInputs, m.padded() - first);
    for (int i = 0; i < n_panels; ++i)
      body.unpack(m, static_cast<const char*>(p.w) + (panels.begin + i) * m.panel_bytes(), first, n,
                  unpacked[i]);
    configure_tiles(kTileRows);
    for (int row = 0; row < n_rows; row += kTileRows) {
      const int left = n_rows - row;
      const TileOfInputs tile{p, in, rows.begin + row, simd::least(kTileRows, left), first, n};
      if (left < kTileRows) configure_tiles(left);
      for (int i = 0; i < n_panels; ++i)
        (left < kTileRows ? body.add_some : body.add_whole)(tile, unpacked[i], sums[i][row]);
    }
  }
  _tile_release();
  for (int i = 0; i < n_panels; ++i)
    for (int r = 0; r < n_rows; ++r) {
      const int output = (panels.begin + i) * kCodePanel;
      const Vec sum = simd::load(sums[i][r]);
      if (p.y_type == DType::bf16)
        finish<bf16>(p, rows.begin + r, output, sum);
      else
        finish<float>(p, rows.begin + r, output, sum);
    }
}

void run_tiles(const QuantizedLinearParams& p, const QuantizedInputs& in, Range panels,
               Range rows) {
  const TileBody body = tile_body(p.matrix);
  for (int row = rows.begin; row < rows.end; row += kTileRowsAtOnce)
    for (int panel = panels.begin; panel < panels.end; panel += kTilePanels)
      multiply_tiles(p, in, {panel, simd::least(panel + kTilePanels, panels.end)},
                     {row, simd::least(row + kTileRowsAtOnce, rows.end)}, body);
}

}  // namespace
}  // namespace tandem
