#pragma once
// A few queries on AMX tiles, as in decode: one vector of them, with the chains of engine_amx.h.
//   S^T:  A = 16 keys x 32 of d, straight from the K page;  B = 16 pairs of d x 16 queries
//   O:    A = 16 queries x 32 keys;  B = 16 pairs of keys x 16 of d, two rows of the V page zipped
// So nothing of a page is transposed: of few queries scores and probabilities are less work.
#include "kernels/attention/engine_amx.h"
#include "kernels/attention/few_pairs.h"

namespace tandem {
namespace {

struct FewAmx {
  using Element = bf16;
  static constexpr int kStepPages = kMaxStepPages;
  static constexpr bool kFew = true, kScaledQueries = false;
  static constexpr int kTileQueries = 16, kTileFloats = 16 * 16;

  static TANDEM_INLINE Vec exp2_score(Vec x) { return fast_exp2(x); }

  static void load_queries(Block& b) {
    load_query_pairs(b, 1);
    // Rows of queries that there are not: of P, and with it of O.
    memset(b.scratch.p, 0, sizeof(bf16) * kTileQueries * kMaxStepKeys);
    memset(b.scratch.o, 0, sizeof(float) * static_cast<size_t>(kTileQueries * padded_dim(b.d)));
  }

  /// The step's scores and probabilities are [query][step keys].
  static void step(Block& b, int begin, int end) {
    uint64_t seen[kMaxFewQueries][kMaxStepPages];
    int pages[kMaxStepPages], n = 0;
    for (int page = begin; page < end; ++page) {
      uint64_t any = 0;
      for (int i = 0; i < b.n_queries; ++i) any |= seen[i][n] = seen_keys(b, i, page);
      if (any != 0) pages[n++] = page;
    }
    // A tile that is stored can be read some time later.
    for (int i = 0; i < n; ++i) scores(b, pages[i], by_key(b, i));
    for (int i = 0; i < n; ++i) {
      float* s = b.scratch.s + i * kPageTokens;
      by_query(s, by_key(b, i), b.n_queries);
      if (b.key_scores == nullptr) continue;
      collect_scores(b, 0, s, kMaxStepKeys, b.params->scale * kLog2E);
      write_scores(b, 0, pages[i]);
    }
    if (n == 0) return;
    for (int i = 0; i < b.n_queries; ++i) {
      float* s = b.scratch.s + i * kMaxStepKeys;
      softmax_query<FewAmx>(b, i, s, seen[i], n);
      narrow_row(b.scratch.p + i * kMaxStepKeys / 2, s, n * kPageTokens);
      EngineAmx::rescale(b.scratch.o + i * padded_dim(b.d), b.scratch.alpha + i * kW,
                         padded_dim(b.d));
    }
    values(b, pages, n);
  }

  /// The scores of the index-th page of a step: [64 keys][16 queries].
  static float* by_key(const Block& b, int index) {
    return b.scratch.s + (kMaxStepKeys + index * kPageTokens) * kTileQueries;
  }

  static void by_query(float* to, const float* from, int n_queries) {
    for (int query = 0; query < n_queries; query += 4)
      for (int key = 0; key < kPageTokens; key += kW) {
        Vec r[4];
        for (int i = 0; i < 4; ++i)
          r[i] = simd::load_fours(from + (key + i) * kTileQueries + query, kTileQueries);
        transpose_fours(r);
        for (int i = 0; i < 4; ++i) simd::store(to + (query + i) * kMaxStepKeys + key, r[i]);
      }
  }

  static void scores(const Block& b, int page, float* s) {
    const int dp = padded_dim(b.d);
    const bf16* k = page_of<bf16>(b, b.params->k_pool, page);
    Lines ahead(page_of<bf16>(b, b.params->v_pool, page), kPageTokens * b.d);
    if (dp != b.d)
      k = pad_page(reinterpret_cast<bf16*>(b.scratch.k), k, b.d, dp, valid_keys(b, page));
    const long row = static_cast<long>(sizeof(bf16)) * dp;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int c = 0; c < dp; c += 32) {
      _tile_loadd(6, b.scratch.q + c / 2 * kW, kRowBytes);
      _tile_loadd(4, k + c, row);
      _tile_dpbf16ps(0, 4, 6);
      ahead.fetch(16);
      _tile_loadd(5, k + 16 * dp + c, row);
      _tile_dpbf16ps(1, 5, 6);
      ahead.fetch(16);
      _tile_loadd(4, k + 32 * dp + c, row);
      _tile_dpbf16ps(2, 4, 6);
      ahead.fetch(16);
      _tile_loadd(5, k + 48 * dp + c, row);
      _tile_dpbf16ps(3, 5, 6);
      ahead.fetch(16);
    }
    _tile_stored(0, s, kRowBytes);
    _tile_stored(1, s + kTileFloats, kRowBytes);
    _tile_stored(2, s + 2 * kTileFloats, kRowBytes);
    _tile_stored(3, s + 3 * kTileFloats, kRowBytes);
  }

  static void values(const Block& b, const int* pages, int n_pages) {
    const int dp = padded_dim(b.d);
    const bf16* v[kMaxStepPages];
    for (int i = 0; i < n_pages; ++i) {
      v[i] = page_of<bf16>(b, b.params->v_pool, pages[i]);
      const int n_valid = valid_keys(b, pages[i]);
      if (n_valid < kPageTokens || dp != b.d)
        v[i] = pad_page(reinterpret_cast<bf16*>(b.scratch.k) + i * kPageTokens * dp, v[i], b.d, dp,
                        n_valid);
    }
    int c = 0;
    for (; c + 64 <= dp; c += 64) add_values<4>(b, c, v, pages, n_pages);
    if (c < dp) add_values<2>(b, c, v, pages, n_pages);
  }

  /// The channels [c, c + 16 kTiles) of the half-th 32 keys of a step as tiles of 16 pairs of keys,
  /// each two as pair_rows leaves them. Fetches as many bytes of the keys of the step after this
  /// one.
  template <int kTiles>
  static TANDEM_INLINE void zip(const Block& b, float* to, int c, const bf16* const* v,
                                const int* pages, int half) {
    const int dp = padded_dim(b.d);
    const bf16* next = page_of<bf16>(b, b.params->k_pool, pages[half / 2] + kMaxStepPages);
    if (next != nullptr) next += half % 2 * 32 * b.d + 32 * c;
    Lines ahead(next, 32 * 16 * kTiles);
    const bf16* row = v[half / 2] + half % 2 * 32 * dp + c;
    for (int pair = 0; pair < 16; ++pair, row += 2 * dp) {
      ahead.fetch(kTiles);
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; t += 2) {
        Vec part[2];
        pair_rows(row + t * 16, row + dp + t * 16, part);
        simd::store(to + t * kTileFloats + pair * 16, part[0]);
        simd::store(to + (t + 1) * kTileFloats + pair * 16, part[1]);
      }
    }
  }

  /// O += P V of the channels [c, c + 16 kTiles).
  template <int kTiles>
  static void add_values(const Block& b, int c, const bf16* const* v, const int* pages,
                         int n_pages) {
    const long o_bytes = static_cast<long>(sizeof(float)) * padded_dim(b.d);
    float* o = b.scratch.o + c;
    // Of two parts of scratch one is filled while the other is multiplied, since stores take a
    // while before tiles can be loaded.
    const auto zipped = [&](int half) { return b.scratch.v + half % 2 * kTiles * kTileFloats; };
    zip<kTiles>(b, zipped(0), c, v, pages, 0);
    _tile_loadd(0, o, o_bytes);
    _tile_loadd(1, o + 16, o_bytes);
    if constexpr (kTiles == 4) {
      _tile_loadd(2, o + 32, o_bytes);
      _tile_loadd(3, o + 48, o_bytes);
    }
    for (int half = 0; half < 2 * n_pages; ++half) {
      if (half + 1 < 2 * n_pages) zip<kTiles>(b, zipped(half + 1), c, v, pages, half + 1);
      const float* from = zipped(half);
      _tile_loadd(4, b.scratch.p + half * 16, kMaxStepKeys * sizeof(bf16));
      _tile_loadd(5, from, kRowBytes);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, from + kTileFloats, kRowBytes);
      _tile_dpbf16ps(1, 4, 6);
      if constexpr (kTiles == 4) {
        _tile_loadd(5, from + 2 * kTileFloats, kRowBytes);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, from + 3 * kTileFloats, kRowBytes);
        _tile_dpbf16ps(3, 4, 6);
      }
    }
    _tile_stored(0, o, o_bytes);
    _tile_stored(1, o + 16, o_bytes);
    if constexpr (kTiles == 4) {
      _tile_stored(2, o + 32, o_bytes);
      _tile_stored(3, o + 48, o_bytes);
    }
  }

  static void end_split(Block& b) { order_sums<InPairs>(b); }
};

}  // namespace
}  // namespace tandem
