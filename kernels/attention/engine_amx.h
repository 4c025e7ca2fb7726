#pragma once
// The multiplies on AMX tiles, two vectors (32 queries) at a time. A tile has 16 rows of 64 bytes.
//   S^T:  A = 16 keys x 32 of d, straight from the K page;  B = 16 pairs of d x 16 queries
//   O^T:  A = 16 of d x 32 keys, from a transposed copy of the V page;  B = 16 pairs of keys x 16
//   queries
// Four pages make a step: the O tiles are loaded and stored once for 256 keys.
#include "kernels/attention/engine_bf16.h"

namespace tandem {
namespace {

constexpr int kRowBytes = 64;

/// Tiles 0..3 accumulate, 4 and 5 hold A, 6 and 7 hold B; all of full size.
inline void configure_tiles() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = kRowBytes;
    config.rows[i] = 16;
  }
  _tile_loadconfig(&config);
}

/// Columns [c, c + 8) of 32 rows of `v` (stride d) as rows of 32 keys: three rounds of interleaving
/// inside 128-bit lanes, where lane L holds keys 8 L to 8 L + 7.
inline void transpose_32x8(bf16* to, const bf16* v, int d) {
  const auto piece = [&](int row) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(v + row * d));
  };
  __m512i r[8], t[8];
  for (int i = 0; i < 8; ++i) {
    __m512i x = _mm512_castsi128_si512(piece(i));
    x = _mm512_inserti32x4(x, piece(8 + i), 1);
    x = _mm512_inserti32x4(x, piece(16 + i), 2);
    r[i] = _mm512_inserti32x4(x, piece(24 + i), 3);
  }
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);      // columns 0-3 of keys 2i, 2i+1
    t[2 * i + 1] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);  // columns 4-7
  }
  for (int i = 0; i < 2; ++i)
    for (int h = 0; h < 2; ++h) {
      r[4 * i + 2 * h] = _mm512_unpacklo_epi32(t[4 * i + h], t[4 * i + 2 + h]);
      r[4 * i + 2 * h + 1] = _mm512_unpackhi_epi32(t[4 * i + h], t[4 * i + 2 + h]);
    }
  for (int j = 0; j < 4; ++j) {
    _mm512_storeu_si512(to + (2 * j) * 32, _mm512_unpacklo_epi64(r[j], r[4 + j]));
    _mm512_storeu_si512(to + (2 * j + 1) * 32, _mm512_unpackhi_epi64(r[j], r[4 + j]));
  }
}

/// Fetches rows [begin + n * i / parts, begin + n * (i + 1) / parts) of the pages a step ahead:
/// part i of a phase's share of n rows. The shares follow the time that the phases take of one
/// vector, where all of memory's speed is wanted: transposing 24 rows of 64, scores 16,
/// probabilities 8, output 16.
TANDEM_INLINE void fetch_part(const Block& b, int index, int begin, int n, int i, int parts) {
  const int row = b.d * int{sizeof(bf16)};
  const int from = (begin + n * i / parts) * row, to = (begin + n * (i + 1) / parts) * row;
  fetch(b.next_k[index], from, to);
  fetch(b.next_v[index], from, to);
}

/// A page of V [64, dp] as tiles [key half][dp / 16] of 16 columns x 32 keys.
inline void transpose_values(const Block& b, int index, bf16* to, const bf16* v, int dp) {
  for (int half = 0; half < 2; ++half)
    for (int c = 0; c < dp; c += 8) {
      const int at = (half * dp + c) * 32;
      fetch_part(b, index, 0, 24, (half * dp + c) / 8, dp / 4);
      transpose_32x8(to + at, v + half * 32 * dp + c, dp);
    }
}

/// n_valid rows of d into 64 rows of dp, the rest zero.
inline const bf16* pad_page(bf16* to, const bf16* from, int d, int dp, int n_valid) {
  memset(to, 0, sizeof(bf16) * static_cast<size_t>(kPageTokens * dp));
  for (int k = 0; k < n_valid; ++k)
    memcpy(to + k * dp, from + k * d, sizeof(bf16) * static_cast<size_t>(d));
  return to;
}

struct EngineAmx {
  using Element = bf16;
  static constexpr int kStepPages = kMaxStepPages, kGroup = 2;

  static TANDEM_INLINE Vec exp2_score(Vec x) { return fast_exp2(x); }
  static constexpr bool kScaledQueries = false, kFew = false;
  static void step(Block& b, int page, int end) { attend_step<EngineAmx>(b, page, end); }
  static void load_queries(Block& b) { load_query_pairs(b, b.n_vectors); }

  static void begin_page(Block& b, int index, const bf16* k, const bf16* v, int n_valid) {
    const int dp = padded_dim(b.d), page = kPageTokens * dp;
    // The scratch of scores and probabilities is free between steps; a padded V passes through it.
    bf16* spare = reinterpret_cast<bf16*>(b.scratch.s);
    const bool whole = n_valid == kPageTokens && dp == b.d;
    if (!whole) v = pad_page(spare, v, b.d, dp, n_valid);
    if (dp != b.d)
      k = pad_page(reinterpret_cast<bf16*>(b.scratch.k) + index * page, k, b.d, dp, n_valid);
    bf16* vt = reinterpret_cast<bf16*>(b.scratch.v) + index * page;
    transpose_values(b, index, vt, v, dp);
    b.k_page[index] = k;
    b.v_page[index] = vt;
    b.n_valid[index] = n_valid;
  }

  static void scores(const Block& b, int first, int n, int index, float* s, int sv) {
    const int dp = padded_dim(b.d), stride = dp / 2 * kW;
    const float* q = b.scratch.q + first * stride;
    const bf16* k = static_cast<const bf16*>(b.k_page[index]);
    const long k_bytes = static_cast<long>(sizeof(bf16)) * dp;
    for (int key = 0; key < kPageTokens; key += 32) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int c = 0; c < dp; c += 32) {
        if (first == 0) fetch_part(b, index, 24, 16, key * dp / 32 / 32 + c / 32, dp / 16);
        _tile_loadd(4, k + key * dp + c, k_bytes);
        _tile_loadd(6, q + c / 2 * kW, kRowBytes);
        _tile_loadd(5, k + (key + 16) * dp + c, k_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if (n > 1) {
          _tile_loadd(7, q + stride + c / 2 * kW, kRowBytes);
          _tile_dpbf16ps(2, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, s + key * kW, kRowBytes);
      _tile_stored(1, s + (key + 16) * kW, kRowBytes);
      if (n > 1) {
        _tile_stored(2, s + sv + key * kW, kRowBytes);
        _tile_stored(3, s + sv + (key + 16) * kW, kRowBytes);
      }
    }
  }

  static void probabilities(const Block& b, int first, int j, int n_keys) {
    if (first == 0 && j == 0)
      for (int i = 0; i < n_keys / kPageTokens; ++i) {
        fetch_part(b, i, 40, 8, 0, 1);
        pair_probabilities<kMaxStepKeys>(b, j, i * kPageTokens, (i + 1) * kPageTokens);
      }
    else
      pair_probabilities<kMaxStepKeys>(b, j, 0, n_keys);
  }

  static void rescale(float* o, const float* alpha, int n) {
    const Vec a = simd::load(alpha);
    if (simd::bits_of(lt(a, simd::set1(1.0f))) == 0) return;  // no maximum moved
    for (int i = 0; i < n; i += kW) simd::store(o + i, simd::load(o + i) * a);
  }

  static void accumulate(const Block& b, int first, int n, const int* pages, int n_pages) {
    const int dp = padded_dim(b.d), stride = dp * kW, pv = kMaxStepKeys / 2 * kW;
    float* o = b.scratch.o + first * stride;
    for (int j = 0; j < n; ++j) rescale(o + j * stride, b.scratch.alpha + (first + j) * kW, stride);
    for (int c = 0; c < dp; c += 32) {
      float *o0 = o + c * kW, *o1 = o + (c + 16) * kW;
      _tile_loadd(0, o0, kRowBytes);
      _tile_loadd(1, o1, kRowBytes);
      if (n > 1) {
        _tile_loadd(2, o0 + stride, kRowBytes);
        _tile_loadd(3, o1 + stride, kRowBytes);
      }
      for (int i = 0; i < 2 * n_pages; ++i) {  // 32 keys each
        const bf16* vt = static_cast<const bf16*>(b.v_page[pages[i / 2]]) + (i % 2 * dp + c) * 32;
        const float* p = b.scratch.p + i * 16 * kW;
        if (first == 0) fetch_part(b, pages[i / 2], 48, 16, c / 32 * 2 + i % 2, dp / 16);
        _tile_loadd(4, vt, kRowBytes);
        _tile_loadd(6, p, kRowBytes);
        _tile_loadd(5, vt + 16 * 32, kRowBytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if (n > 1) {
          _tile_loadd(7, p + pv, kRowBytes);
          _tile_dpbf16ps(2, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, o0, kRowBytes);
      _tile_stored(1, o1, kRowBytes);
      if (n > 1) {
        _tile_stored(2, o0 + stride, kRowBytes);
        _tile_stored(3, o1 + stride, kRowBytes);
      }
    }
  }
};

}  // namespace
}  // namespace tandem
