#pragma once
// Products in f32 on Vec, a tile at a time in registers. Included by ISA files only.
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

/// C[v, i] = sum over k of B[v, k] A[i, k], where elements of C and B are vectors, and one of A is
/// a number for all lanes, or a pair of bf16 whose lanes of B are pairs too. Numbers say how far
/// elements lie apart along each index.
/// numerics one chain of FMAs over k per lane and element, whatever the tiles; it starts from zero,
///          or where alpha is given from C * alpha
template <class A = float>
struct Product {
  struct {
    float* at;
    int v, i;
  } c;
  struct {
    const A* at;
    int i, k;
  } a;
  struct {
    const float* at;
    int v, k;
  } b;
  int n_k;
  struct {
    const float* at = nullptr;  // of all i
    int v = 0;
  } alpha = {};
};

/// The tile of vectors [0, NV) and rows [first_i, first_i + NI).
template <int NV, int NI>
TANDEM_INLINE void multiply_tile(const Product<>& p, int first_i) {
  using simd::Vec;
  float* c = p.c.at + first_i * p.c.i;
  const float* a = p.a.at + first_i * p.a.i;
  Vec sum[NV][NI];
#pragma GCC unroll 16
  for (int v = 0; v < NV; ++v)
#pragma GCC unroll 16
    for (int i = 0; i < NI; ++i) {
      if (p.alpha.at == nullptr) {
        sum[v][i] = simd::zero();
        continue;
      }
      sum[v][i] = simd::load(c + v * p.c.v + i * p.c.i) * simd::load(p.alpha.at + v * p.alpha.v);
    }
  for (int k = 0; k < p.n_k; ++k) {
    // Operands of the shorter side stay in registers while those of the other pass through one.
    if constexpr (NI < NV) {
      Vec ak[NI];
#pragma GCC unroll 16
      for (int i = 0; i < NI; ++i) ak[i] = simd::set1(a[i * p.a.i + k * p.a.k]);
#pragma GCC unroll 16
      for (int v = 0; v < NV; ++v) {
        const Vec bk = simd::load(p.b.at + v * p.b.v + k * p.b.k);
#pragma GCC unroll 16
        for (int i = 0; i < NI; ++i) sum[v][i] = fma(ak[i], bk, sum[v][i]);
      }
    } else {
      Vec bk[NV];
#pragma GCC unroll 16
      for (int v = 0; v < NV; ++v) bk[v] = simd::load(p.b.at + v * p.b.v + k * p.b.k);
#pragma GCC unroll 16
      for (int i = 0; i < NI; ++i) {
        const Vec ak = simd::set1(a[i * p.a.i + k * p.a.k]);
#pragma GCC unroll 16
        for (int v = 0; v < NV; ++v) sum[v][i] = fma(ak, bk[v], sum[v][i]);
      }
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < NV; ++v)
#pragma GCC unroll 16
    for (int i = 0; i < NI; ++i) simd::store(c + v * p.c.v + i * p.c.i, sum[v][i]);
}

}  // namespace
}  // namespace tandem
