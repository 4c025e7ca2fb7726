#include "kernels/lsh/sign_project.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

// A tile of 6 rows keeps kTileRows * kVecs sums in registers next to kVecs vectors of w and one
// number of x: 29 of 32 registers with avx512, where a tile is as wide as a word, 15 of 16 with
// avx2.
constexpr int kTileRows = 6;
constexpr int kVecs = Vec::kLanes == 16 ? 4 : 2;
constexpr int kCols = kVecs * Vec::kLanes;
// Rows of w lie some power of two apart, so kCols columns of it fall into few sets of the
// first-level cache. A copy (32 KB at d = 128 with avx512) does not: 200 instead of 165 GFLOP/s of
// 240 where enough rows use it. Heads wider than any known do without.
constexpr int kPackedDim = 256;
constexpr int kPackedRows = 4 * kTileRows;
// x of a block of rows, 192 KB at d = 128, stays in the second-level cache while all of w passes.
constexpr int kBlockRows = 64 * kTileRows;

/// kCols columns of w and the rows of a block, whose bits go to words from bit `at` on.
struct Panel {
  const float* w;
  int64_t w_stride;
  const float* x;
  uint64_t* word;
  int64_t words;  // from one row to the next
  int d, at;
};

/// ORs in the bits of rows [r, r + n).
template <int n>
void project_tile(const Panel& p, int r) {
  const float* x = p.x + static_cast<int64_t>(r) * p.d;
  const float* w = p.w;
  Vec sum[n][kVecs];
  for (int j = 0; j < n; ++j)
    for (int v = 0; v < kVecs; ++v) sum[j][v] = zero();
  for (int i = 0; i < p.d; ++i, w += p.w_stride) {
    Vec wv[kVecs];
    for (int v = 0; v < kVecs; ++v) wv[v] = load(w + v * Vec::kLanes);
    for (int j = 0; j < n; ++j) {
      const Vec xi = set1(x[static_cast<int64_t>(j) * p.d + i]);
      for (int v = 0; v < kVecs; ++v) sum[j][v] = fma(xi, wv[v], sum[j][v]);
    }
  }
  for (int j = 0; j < n; ++j) {
    uint64_t bits = 0;
    for (int v = 0; v < kVecs; ++v)
      bits |= static_cast<uint64_t>(bits_of(lt(zero(), sum[j][v]))) << (v * Vec::kLanes);
    p.word[(r + j) * p.words] |= bits << p.at;
  }
}

void project_panel(const Panel& p, int n_rows) {
  int r = 0;
  for (; r + kTileRows <= n_rows; r += kTileRows) project_tile<kTileRows>(p, r);
  for (; r + 4 <= n_rows; r += 4) project_tile<4>(p, r);
  for (; r + 2 <= n_rows; r += 2) project_tile<2>(p, r);
  if (r < n_rows) project_tile<1>(p, r);
}

void pack(Panel& p, float* to) {
  for (int i = 0; i < p.d; ++i)
    for (int v = 0; v < kVecs; ++v)
      store(to + i * kCols + v * Vec::kLanes, load(p.w + i * p.w_stride + v * Vec::kLanes));
  p.w = to;
  p.w_stride = kCols;
}

}  // namespace

void TANDEM_ISA_FN(sign_project)(const SignProjectParams& p, Range rows) {
  alignas(64) float packed[kPackedDim * kCols];
  const int words = (p.n_bits + 63) / 64;
  for (int begin = rows.begin; begin < rows.end; begin += kBlockRows) {
    const int n_rows = rows.end - begin < kBlockRows ? rows.end - begin : kBlockRows;
    uint64_t* bits = p.bits + static_cast<int64_t>(begin) * words;
    for (int i = 0; i < n_rows * words; ++i) bits[i] = 0;
    for (int col = 0; col < 64 * words; col += kCols) {
      Panel panel{.w = p.w + col,
                  .w_stride = p.w_stride,
                  .x = p.x + static_cast<int64_t>(begin) * p.d,
                  .word = bits + col / 64,
                  .words = words,
                  .d = p.d,
                  .at = col % 64};
      if (p.d <= kPackedDim && n_rows >= kPackedRows) pack(panel, packed);
      project_panel(panel, n_rows);
    }
    if (p.n_bits % 64 != 0)
      for (int r = 1; r <= n_rows; ++r) bits[r * words - 1] &= (uint64_t{1} << (p.n_bits % 64)) - 1;
  }
}

}  // namespace tandem
