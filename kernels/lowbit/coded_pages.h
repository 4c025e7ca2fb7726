#pragma once
// Keys and values in eight to four bits: layout and contract. No STL: included by sources compiled
// with per-ISA flags.
//
// A page holds 64 tokens of one KV head. A frame (center, unit axis) belongs to a sequence, layer
// and head. A key k becomes z = k - center, p = z . axis, x = R (z - p axis) and m = |x| / sqrt(d),
// where R is rotate_rows of code.h. A coordinate u = x_i / m becomes its sign and one of eight
// cells of the Lloyd-Max quantizer for a standard normal variable. Two or four further bits divide
// a cell evenly (code_levels.h). With y the numbers of the cells in units of m,
//
//   k' = center + p axis + w less its share along the axis,   w = R^T (e y),   e = m^2 d / (x . y)
//
// The scale e is unbiased over rotations (RaBitQ, arXiv 2405.12497). A value has no frame: x = R v.
// No decoded key is ever formed. R^T is applied once, to the sum of values, and
//   q . k' = q . center + (q . axis) p + e (R (q - (q . axis) axis) . y)
#include <stddef.h>

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

/// Offsets of the blocks in a page of one KV head, in bytes. A bit plane of a row is d / 8 bytes,
/// coordinate c at bit c % 8 of byte c / 8. Planes of a coordinate, the most significant first:
/// sign (set if negative), three bits of the cell, then bits that divide it.
struct CodedLayout {
  int d;  // head_dim, a multiple of 32
  CodedBits bits;

  constexpr int plane() const { return d / 8; }
  constexpr int signs() const { return 0; }                           // keys: [64][plane]
  constexpr int scales() const { return kPageTokens * plane(); }      // keys: [64] {f16 e, f16 p}
  constexpr int cells() const { return scales() + kPageTokens * 4; }  // keys: [64][3][plane]
  constexpr int parts() const {
    return cells() + kPageTokens * 3 * plane();
  }  // keys: [64][k - 4][plane]
  constexpr int values() const { return parts() + kPageTokens * (bits.k - 4) * plane(); }
  constexpr int value_scales() const {  // values: [64][v][plane]; these: [64] f16 e
    return values() + kPageTokens * bits.v * plane();
  }
  /// Bytes of a page of one KV head, a multiple of 64.
  constexpr int64_t page_bytes() const { return value_scales() + kPageTokens * 2; }
};

struct CodedRowsParams {
  uint8_t* page;  // in, out
  CodedLayout layout;
  const void* k;  // [64, d] of dtype, row t of the page at index t; null: keys stay as they are
  const void* v;  // [64, d]; null: values stay
  DType dtype;    // f32 or bf16
  const float* center;  // [d]
  const float* axis;    // [d] of length 1 or 0
  const float* signs;   // [2, d] +-1, of the rotation
};
/// Codes rows [begin, end) of a page. Every row has its own bytes: threads may share a page.
/// numerics each operation rounds to f32 once. Sums over coordinates are eight partial ones, c % 8.
///          They are joined as (i, i + 4), (i, i + 2), (i, i + 1). e and p are rounded to f16.
///          Bytes are the same on every ISA. |x| below 2^-60: all planes
///          and e are 0. A number without a finite square: planes and p are 0, e is NaN.
/// cost     reads a wide row, writes its code; some 5 d operations and 4 d log2(d) of the rotation
/// errors   none (preconditions checked by the caller)
using CodeRowsOfPageFn = void(const CodedRowsParams&, Range rows);
CodeRowsOfPageFn code_rows_of_page_scalar, code_rows_of_page_avx2, code_rows_of_page_avx512;

struct WidenCodedRowsParams {
  const uint8_t* page;
  CodedLayout layout;
  void* k;      // out: [64, d] of dtype, row t of the page at index t; null: not wanted
  void* v;      // out: [64, d]; null: not wanted
  DType dtype;  // f32 or bf16
  const float *center, *axis, *signs;  // as above
};
/// The rows k' and v' that rows [begin, end) of a page stand for.
/// numerics f32, rounded to dtype once. The same bits on every ISA. Coded again a row may get other
///          codes: scale and cells move
/// cost     as code_rows_of_page
/// errors   none
using WidenCodedRowsFn = void(const WidenCodedRowsParams&, Range rows);
WidenCodedRowsFn widen_coded_rows_scalar, widen_coded_rows_avx2, widen_coded_rows_avx512;

/// The meaning of a query's whole numbers n. The score of a key, in exponents of 2, is
/// sum * (n . y) * e + share * p + offset, y in whole numbers.
struct CodedGains {
  float sum, share, offset;
};

struct CodedQueriesParams {
  int16_t* numbers;   // [n, d] out: rotated queries less their share along the axis
  CodedGains* gains;  // [n] out
  const float* q;     // [n, d]
  CodedLayout layout;
  const float *center, *axis, *signs;
  float scale;  // > 0, usually 1/sqrt(d)
};
/// Makes queries [begin, end) ready for keys of one frame: n . y is below 2^31.
/// numerics the error of a number is half of 2^-14 of the largest (d to 128: 2^-15)
/// cost     some d log2(d) operations a query
/// errors   none
using PrepareCodedQueriesFn = void(const CodedQueriesParams&, Range queries);
PrepareCodedQueriesFn prepare_coded_queries_scalar, prepare_coded_queries_avx2,
    prepare_coded_queries_avx512;

struct AttendCodedParams {
  float* o;                 // [n_queries, d] out, rotated
  float* lse;               // [n_queries] out: natural log, scale included; -inf if no key
  const int16_t* numbers;   // [n_queries, d]
  const CodedGains* gains;  // [n_queries]
  int n_queries;            // any rows and heads of a KV head's group
  const uint8_t* pool;      // [n_pages, n_kv_heads, page_bytes]
  CodedLayout layout;
  int n_kv_heads, kv_head;
  const int32_t* pages;  // page table of the sequence: token t lies in pages[t / 64], row t % 64
  int begin, end;        // tokens, any numbers; usually within one split of kSplitTokens
  void* scratch;         // 64-byte aligned, of attend_coded_scratch bytes
};
/// o = R sum softmax(q . k')_t v'_t over tokens [begin, end). States of splits merge as those of
/// other attention (merge_states), then rotate_rows_back makes o.
/// numerics n . y exact: scores have the same bits on every ISA. A page's weights
///          w e are rounded to whole numbers, the largest to 32767. Their products with y are
///          exact (those of 16 keys, for values in 8 bits), sums of pages are f32. No key: o = 0,
///          lse = -inf. A row's e of NaN: all of o is NaN, of a key lse too. Bits depend on the
///          query, its keys, begin and end
/// cost     reads page_bytes / 64 a key once, the codes of whole pages
/// errors   none
using AttendCodedFn = void(const AttendCodedParams&);
AttendCodedFn attend_coded_scalar, attend_coded_avx2, attend_coded_avx512, attend_coded_avx512_bf16;

/// Bytes that any body needs.
constexpr size_t attend_coded_scratch(int d, int n_queries) {
  const size_t padded = (static_cast<size_t>(d) + 127) / 128 * 128;
  const size_t numbers = 8 * padded, sums = 8 * padded, of_page = 6 * kPageTokens + 256;
  const size_t tile = 2 * kPageTokens * padded;
  return static_cast<size_t>(n_queries + 3) * (numbers + sums + of_page) + tile + 4096;
}

}  // namespace tandem
