#pragma once
// Products of matrices that stay in the caches. Included by ISA files only.
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

struct SmallProduct {
  float* c;
  int64_t ldc;
  const float* a;  // element (i, k) is a[i * a_row + k * a_col]
  int64_t a_row, a_col;
  const float* b;  // [k, ldb]
  int64_t ldb;
  int m, n, k;  // n a multiple of the lanes
};

// A tile's chains and its vectors of b fill the registers: 16 and 4 of 32, or 8 and 2 of 16.
#if defined(TANDEM_ISA_scalar)
constexpr int kTileRows = 2, kTileVectors = 2;
#elif defined(TANDEM_ISA_avx2)
constexpr int kTileRows = 4, kTileVectors = 2;
#else
constexpr int kTileRows = 4, kTileVectors = 4;
#endif

template <int kRows, int kVectors>
TANDEM_INLINE void add_tile(const SmallProduct& p, int i, int j) {
  using simd::Vec;
  Vec sum[kRows][kVectors];
  float* c = p.c + i * p.ldc + j;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = simd::load(c + r * p.ldc + v * Vec::kLanes);
  const float *a = p.a + i * p.a_row, *b = p.b + j;
  for (int k = 0; k < p.k; ++k, a += p.a_col, b += p.ldb) {
    Vec row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = simd::load(b + v * Vec::kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec x = simd::set1(a[r * p.a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = simd::fma(x, row[v], sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) simd::store(c + r * p.ldc + v * Vec::kLanes, sum[r][v]);
}

template <int kRows>
TANDEM_INLINE void add_rows(const SmallProduct& p, int i) {
  constexpr int kWide = kTileVectors * simd::Vec::kLanes;
  int j = 0;
  for (; j + kWide <= p.n; j += kWide) add_tile<kRows, kTileVectors>(p, i, j);
  for (; j < p.n; j += simd::Vec::kLanes) add_tile<kRows, 1>(p, i, j);
}

/// c += a b, each element one chain over k in order.
void add_product(const SmallProduct& p) {
  int i = 0;
  for (; i + kTileRows <= p.m; i += kTileRows) add_rows<kTileRows>(p, i);
  for (; i < p.m; ++i) add_rows<1>(p, i);
}

}  // namespace
}  // namespace tandem
