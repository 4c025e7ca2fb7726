#pragma once
// Keys and values in eight to four bits: layout and contract. No STL: included by sources compiled
// with per-ISA flags.
//
// A page holds 64 tokens of one KV head. A key k, relative to a frame of its sequence, layer and
// head (center, unit axis), becomes z = k - center; p = z . axis; x = R (z - p axis), where R is
// rotate_rows of code.h; m = |x| / sqrt(d). A coordinate u = x_i / m becomes its sign and one of
// eight cells of the Lloyd-Max quantizer of a standard normal variable; two or four further bits
// divide a cell evenly. With y the numbers of the cells in units of m,
//
//   k' = center + p axis + R^T (e y),   e = m^2 d / (x . y)
//
// which is unbiased over rotations (RaBitQ, arXiv 2405.12497). A value has no frame: x = R v. No
// decoded key is ever formed: q . k' = q . center + (q . axis) p + e (R (q - (q . axis) axis) . y),
// and R^T is applied once, to the sum of values.
#include "base/page.h"
#include "base/types.h"

namespace tandem {

/// Bits of a key's and of a value's coordinates: 8 and 8, 8 and 4, 6 and 4, or 4 and 4.
struct CodedBits {
  uint8_t k = 0, v = 0;
  constexpr bool operator==(const CodedBits&) const = default;
};

/// Most coordinates of a coded row; fewest, and what they are a multiple of, is 32.
inline constexpr int kMostCodedDims = 512;

/// Where a page of one KV head has its blocks, in bytes. A bit plane of a row is d / 8 bytes,
/// coordinate c at bit c % 8 of byte c / 8. Planes of a coordinate, the most significant first:
/// sign, three bits of the cell, then bits that divide it.
struct CodedLayout {
  int d;  // head_dim, a multiple of 32
  CodedBits bits;

  constexpr int plane() const { return d / 8; }
  constexpr int signs() const { return 0; }                       // of keys, [64][plane]
  constexpr int scales() const { return kPageTokens * plane(); }  // of keys, [64] {f16 e, f16 p}
  constexpr int cells() const { return scales() + kPageTokens * 4; }  // of keys, [64][3][plane]
  constexpr int parts() const { return cells() + kPageTokens * 3 * plane(); }  // [64][k - 4][plane]
  constexpr int values() const { return parts() + kPageTokens * (bits.k - 4) * plane(); }
  constexpr int value_scales() const {  // values: [64][v][plane]; these: [64] f16 e
    return values() + kPageTokens * bits.v * plane();
  }
  /// Bytes of a page of one KV head, a multiple of 64.
  constexpr int64_t page_bytes() const { return value_scales() + kPageTokens * 2; }
};

struct CodePageParams {
  uint8_t* page;  // of one KV head, out
  CodedLayout layout;
  const void *k, *v;           // [64, d] of dtype: row t becomes the page's token t
  DType dtype;                 // f32 or bf16
  const float *center, *axis;  // [d] of the frame
  const float* signs;          // [2, d] of the rotation
};
/// Codes tokens [begin, end) of a page; the bytes of others stay.
/// numerics sums of a row in eight parts, element c in part c % 8, joined pairwise; e is rounded to
///          f16, as p is. A row of less than 2^-60 becomes 0; one with a number that is not finite
///          gets a scale that is NaN. The same bytes on every ISA
/// cost     reads 4 d bytes a token of bf16, writes layout.page_bytes() / 64
using CodePageFn = void(const CodePageParams&, Range tokens);
CodePageFn code_page_scalar, code_page_avx2, code_page_avx512;

struct WidenPageParams {
  void *k, *v;  // [64, d] of dtype, out
  const uint8_t* page;
  CodedLayout layout;
  DType dtype;
  const float *center, *axis, *signs;
};
/// Writes the keys and values that tokens [begin, end) of a page stand for, rounded to dtype.
using WidenPageFn = void(const WidenPageParams&, Range tokens);
WidenPageFn widen_page_scalar, widen_page_avx2, widen_page_avx512;

/// Most queries of a call of attend_coded.
inline constexpr int kCodedQueries = 16;

struct AttendCodedParams {
  float* o;             // [n_queries, d] out: R v, the weighted mean of values; 0 without keys
  float* lse;           // [n_queries] out, natural log; -inf without keys
  const float* q;       // [n_queries, d] scale R (q - (q . axis) axis)
  const float* along;   // [n_queries] scale q . axis
  const float* center;  // [n_queries] scale q . center
  int n_queries;        // <= kCodedQueries
  const uint8_t* pool;  // [n_pages, n_kv_heads, layout.page_bytes()]
  CodedLayout layout;
  int n_kv_heads, kv_head;
  const int32_t* pages;  // of the sequence
};
/// Attention of queries of one KV head over tokens [begin, end) of a sequence.
/// numerics f32; the result depends on the query and the tokens alone
/// cost     reads layout.page_bytes() / 64 bytes a token, once for all queries
using AttendCodedFn = void(const AttendCodedParams&, Range tokens);
AttendCodedFn attend_coded_scalar, attend_coded_avx2, attend_coded_avx512;

}  // namespace tandem
