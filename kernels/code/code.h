#pragma once
// Key codes, and scores from them: contract. No STL: included by sources with per-ISA flags.
//
// A key k of a head, relative to the head's center and without its share p along the axis of the
// queries, is rotated to x; each of its `dims` coordinates is rounded to one of 2^bits even steps
// about zero (after RaBitQ, arXiv 2405.12497, and RaBitQCache, 2606.31519). Against a query whose
// own share along the axis was taken out, rotated and rounded to small integers q_i,
//
//   q . x  ~  e sum_i q_i y_i,   y_i = step number of x_i, odd halves;  e = |x|^2 / (x . y)
//
// which is unbiased over rotations; of one bit, and where signs alone are looked at, |x| takes the
// place of e's own error: that ranks better. Step numbers are held bit by bit: the highest ones,
// the signs, of all keys together, the lower ones key by key. Signs alone rank all keys; of the
// best, lower bits refine the score. Sums of q_i are integers, so that every body, on any device,
// gives the same bits.
//
// Signs and scales of kCodeKeys keys make a group of group_bytes(dims) bytes:
//   signs   [dims / 4][64]  byte b: signs of four coordinates, in its low half those of key
//                           b / 2 + 32 (b % 2), in its high half of the key 64 further on
//   scale   [128] u8        e / unit: an eight-bit float, code_scale()
//   axis    [128] s8        p / unit
// Lower bits of key i: [i][bits - 1][dims / 8], the more significant plane first, coordinate c at
// bit c % 8 of byte c / 8.
#include "base/types.h"

namespace tandem {

inline constexpr int kCodeKeys = 128;  // of a group
inline constexpr int kCodeDims = 32;   // dims is a multiple of it; as many fit into eight-bit sums
inline constexpr int kMaxCodeBits = 3;

constexpr int64_t code_group_bytes(int dims) { return int64_t{16} * dims + 2 * kCodeKeys; }
constexpr int64_t code_low_bytes(int dims, int bits) { return int64_t{dims} / 8 * (bits - 1); }

/// Three bits of exponent and five of mantissa: 2^-8 to 63/64, one part in 32 apart.
inline constexpr uint32_t kScaleBits = (127u - 8u) << 23;
constexpr float code_scale(uint8_t code) {
  return __builtin_bit_cast(float, kScaleBits + (uint32_t{code} << 18));
}

/// What the codes of one head are relative to.
struct CodeUnits {
  float scale, axis;  // of one, in those two bytes of a key
};

struct CodeRowsParams {
  uint8_t* groups;      // out: keys first .. of them are written
  uint8_t* low;         // out
  const float* rows;    // [n, dims] rotated
  const float* shares;  // [n] along the axis
  CodeUnits units;
  int dims, bits, first;
};
/// Codes of rows [begin, end), as keys first + begin .. Not two threads in one group.
void code_rows(const CodeRowsParams&, Range rows);
/// The unit of scales with which rows of at most this norm are in range, with room for twice it.
float code_scale_unit(float most_norm, int dims, int bits);

/// A query as scans and refinements read it.
struct CodeQuery {
  const uint8_t* sums;  // [dims / 4][16] for any signs of four coordinates the sum of their q where
                        // set, plus -q of the negative ones
  const int8_t* q;      // [dims]
  int32_t bias;         // sum_i +-q_i = 2 (sum of sums) - bias
  int32_t total;        // sum of q
  float sign_gain;      // times scale: a score from the sum by signs
  float gain;           // times scale: a score from the sum by all bits, sum q_i (2 y_i)
  float axis_gain;      // times axis
};
/// Rounds a rotated query, and makes `sums` and `q`, which the result points to. Scores are
/// `weight` q . k for keys in these units.
CodeQuery code_query(const float* rotated, float share, float weight, const CodeUnits& units,
                     int dims, int bits, uint8_t* sums, int8_t* q);

struct CodeScanParams {
  float* scores;  // [n_queries, score_stride] out
  int64_t score_stride;
  const uint8_t* groups;
  const CodeQuery* queries;
  int n_queries, dims;
};
/// score = (sum by signs * sign_gain) * scale + axis_gain * axis, for keys [begin, end), begin a
/// multiple of kCodeKeys; scores up to the next multiple of it may be written.
/// numerics each operation rounded to f32: the same bits from every variant
/// cost     reads dims / 8 + 2 bytes a key, once for all queries
using CodeScanFn = void(const CodeScanParams&, Range keys);
CodeScanFn code_scan_ref, code_scan_scalar, code_scan_avx2, code_scan_avx512;

struct CodeRefineParams {
  float* refined;       // [n] out
  float* scores;        // of a scan by `query`, in place: those of the listed keys become refined
  const int32_t* keys;  // [n] ascending
  int n;
  int first;  // keys[i] - first counts from the first of groups and low; scores[keys[i]]
  const uint8_t* groups;
  const uint8_t* low;
  const CodeQuery* query;
  int dims, bits;  // bits >= 2
};
/// score = (sum by all bits * gain) * scale + axis_gain * axis, of listed keys.
/// numerics as the scan's; the sum by signs comes back exactly from the score while the axis' part of it
///          is below 2^21 times what one sign makes: beyond, the last bits of a score may differ
/// cost     reads code_low_bytes and 2 bytes a key
using CodeRefineFn = void(const CodeRefineParams&);
CodeRefineFn code_refine_ref, code_refine_scalar, code_refine_avx2, code_refine_avx512;

struct RotateRowsParams {
  float* rows;         // [n, dims] in place
  const float* signs;  // [2, dims] +-1
  int dims;
};
/// Rows times an orthogonal matrix: signs, Hadamard, signs, Hadamard. Where dims is no power of
/// two, the transform of the largest one below it runs over the first and then over the last
/// coordinates.
using RotateRowsFn = void(const RotateRowsParams&, Range rows);
RotateRowsFn rotate_rows_ref, rotate_rows_scalar, rotate_rows_avx2, rotate_rows_avx512;
/// The transposed matrix, which undoes it.
RotateRowsFn rotate_rows_back_scalar, rotate_rows_back_avx2, rotate_rows_back_avx512;

}  // namespace tandem
