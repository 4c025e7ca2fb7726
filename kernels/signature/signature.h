#pragma once
// Key signatures and ranking by them: contract. No STL: included by sources with per-ISA flags.
//
// A signature is `words` 32-bit words of sign bits of the centred key (lsh/sign_project.h). Words
// of 16 keys are interleaved: word w of key i lies at [i / 16][w][i % 16], so that one vector holds
// the same word of 16 keys.
#include "base/types.h"

namespace tandem {

inline constexpr int kSignatureGroup = 16;

struct SignaturePackParams {
  uint32_t* signatures;  // [ceil(n / 16), words, 16]; keys first .. first + n_keys - 1 are written
  const uint64_t* bits;  // [n_keys, bit_words] of sign_project, at least 32 * words bits a row
  int64_t bit_words;
  int words;
  int first;
};
/// Interleaves rows [begin, end) of `bits` into keys first + begin .. first + end - 1.
void signature_pack(const SignaturePackParams&, Range rows);

/// The cosine of two vectors as an odd polynomial in x, how many more of their signs are equal than
/// on average: scale x (x^4 + p x^2 + q).
struct SimilarityCurve {
  float scale, p, q;
};
/// That of signatures of `bits` random hyperplanes, each of which separates two vectors with
/// probability angle / pi: sin(pi x / bits), within 7e-5, and like it rising from one count to the
/// next. 32 <= bits <= 2,048
SimilarityCurve similarity_curve(int bits);

struct SignatureScanParams {
  float* scores;  // [n_queries, score_stride] out
  int64_t score_stride;
  const uint32_t* signatures;  // as above
  const bf16* norms;           // [n_keys] |k - center|
  const uint32_t* queries;     // [n_queries, words]
  int words, n_queries, n_keys;
  SimilarityCurve similarity;
};
/// score = similarity(x) * norm, x = number of equal bits - 16 * words, for keys [begin, end),
/// begin a multiple of 16; scores up to the next multiple of 16 may be written.
/// numerics (x * (norm * scale)) * ((y + p) * y + q), y = x * x, each operation rounded to f32: the
///          same bits from every variant
/// cost     reads 4 * words + 2 bytes a key, once for all queries
using SignatureScanFn = void(const SignatureScanParams&, Range keys);
SignatureScanFn signature_scan_ref, signature_scan_scalar, signature_scan_avx2,
    signature_scan_avx512;

struct SelectTopParams {
  int32_t* ids;         // out [m + 16]: ascending
  float* threshold;     // out [1]: the m-th largest score; -inf if m >= n, else +inf if m = 0
  const float* scores;  // [n], no NaN
  int n, m;             // m >= 0
  int first_id;         // added to every id
  float* scratch;       // [n + 16]
};
/// The m largest scores (all if m >= n); of equal ones at the threshold the lowest ids. Returns how
/// many: min(m, n).
/// cost     two or three passes over the scores, in vectors
using SelectTopFn = int(const SelectTopParams&);
SelectTopFn select_top_ref, select_top_scalar, select_top_avx2, select_top_avx512;

}  // namespace tandem
