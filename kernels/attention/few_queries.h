#pragma once
// Attention of a few queries, as in decode. Lanes hold keys while scores are made and channels
// while values are added, so that none is idle; each query has its own vectors of state, o as [d].
// Every sum has the chain that flash.h and the engine of many queries give it, hence every result
// its bits. Included by ISA files that have vectors only.
#include "kernels/attention/few_products.h"
#include "kernels/attention/key_scores.h"
#include "kernels/attention/state.h"

namespace tandem {
namespace {

/// Vectors of a tile of up to four queries: 8 chains and more, within the registers.
constexpr int tile_vectors(int n_queries) {
  return kW == 16 ? 4 : n_queries == 1 ? 8 : n_queries == 4 ? 2 : 4;
}

template <class M, int NI>
TANDEM_INLINE void score_tiles(const ScoreProduct& p, int n_v, int i, Lines& ahead) {
  constexpr int kV = tile_vectors(NI);
  // One query that is left over of several has their keys at a time, half as many as one alone.
  if constexpr (kV > 4)
    if (n_v < kV) return score_tile<M, 4, NI>(p, 0, i, ahead);
  for (int v = 0; v < n_v; v += kV) score_tile<M, kV, NI>(p, v, i, ahead);
}

template <class M, int NI, int NG = tile_vectors(NI) / M::kSums>
TANDEM_INLINE void value_tiles(const ValueProduct<M>& p, int g, int n_g, int i, Lines& ahead) {
  for (; g + NG <= n_g; g += NG) value_tile<M, NG, NI>(p, g, i, ahead);
  if constexpr (NG > 1)
    if (g < n_g) value_tiles<M, NI, NG / 2>(p, g, n_g, i, ahead);
}

/// Calls tiles<queries>(first query) for up to four of n at a time.
template <class Tiles>
TANDEM_INLINE void by_fours(int n, const Tiles& tiles) {
  for (int i = 0; i < n; i += 4) switch (n - i) {
      case 1:
        tiles.template operator()<1>(i);
        break;
      case 2:
        tiles.template operator()<2>(i);
        break;
      case 3:
        tiles.template operator()<3>(i);
        break;
      default:
        tiles.template operator()<4>(i);
    }
}

/// Keys of the page that a query sees.
inline uint64_t seen_keys(const Block& b, int query, int page) {
  const int row = b.row(query);
  switch (page_seen(*b.params, b.seq, row, row, page)) {
    case Seen::none:
      return 0;
    case Seen::all:
      return ~uint64_t{0};
    default:
      return visible_keys(*b.params, b.seq, row, page);
  }
}

/// Scores of n_pages pages to probabilities in place; updates m, l and alpha of the query.
template <class Engine>
TANDEM_INLINE void softmax_query(const Block& b, int query, float* s, const uint64_t* seen,
                                 int n_pages) {
  constexpr int kVectors = kPageTokens / kW;
  float *pm = b.scratch.m + query * kW, *pl = b.scratch.l + query * kW;
  Vec top = simd::set1(kEmpty);
  for (int page = 0; page < n_pages; ++page) {
    float* at = s + page * kPageTokens;
    if (seen[page] != ~uint64_t{0})
      for (int k = 0; k < kPageTokens; k += kW) {
        const Mask see =
            simd::mask_of_bits(static_cast<uint32_t>(seen[page] >> k) & ((1u << kW) - 1u));
        simd::store(at + k, select(see, simd::load(at + k), simd::set1(kEmpty)));
      }
    Vec x[kVectors];
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) x[k] = simd::load(at + k * kW);
#pragma GCC unroll 8
    for (int half = kVectors / 2; half > 0; half /= 2)
#pragma GCC unroll 8
      for (int k = 0; k < half; ++k) x[k] = max(x[k], x[k + half]);
    top = max(top, x[0]);
  }
  const Vec c = simd::set1(b.params->scale * kLog2E), most = simd::set1(simd::reduce_max(top));
  const Vec m_old = simd::load(pm), m = max(m_old, Engine::kScaledQueries ? most : most * c);
  const Vec shift = finite_or_zero(m), alpha = exp2_nonpositive(m_old - shift),
            minus = simd::zero() - shift;
  Vec sum = simd::zero();
  for (int page = 0; page < n_pages; ++page)
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) {
      float* at = s + page * kPageTokens + k * kW;
      const Vec x = simd::load(at);
      const Vec p = Engine::exp2_score(Engine::kScaledQueries ? x - shift : fma(x, c, minus));
      sum = sum + p;
      simd::store(at, p);
    }
  simd::store(pm, m);
  simd::store(pl, fma(simd::load(pl), alpha, simd::set1(simd::reduce_add(sum))));
  simd::store(b.scratch.alpha + query * kW, alpha);
}

/// Collects the largest scores of a page, the index-th of its step, over all queries.
/// shapes   s [query][stride]: scores, times c exponents of 2
inline void collect_scores(const Block& b, int index, const float* s, int stride, float c) {
  for (int k = 0; k < kPageTokens; k += kW) {
    Vec top = simd::set1(kEmpty);
    for (int i = 0; i < b.n_queries; ++i)
      top = max(fma(simd::load(s + i * stride + k), simd::set1(c),
                    simd::load(b.scratch.score_off + i * kW)),
                top);
    simd::store(b.scratch.top_scores + index * kPageTokens + k, top);
  }
}

/// Puts the channels of o, sums of the multiply M, in order.
template <class M>
void order_sums(Block& b) {
  if constexpr (M::kSums > 1)
    for (int i = 0; i < b.n_queries; ++i)
      for (int c = 0; c < b.d; c += kW * M::kSums) {
        float* o = b.scratch.o + i * padded_dim(b.d) + c;
        Vec sum[M::kSums] = {simd::load(o), simd::load(o + kW)};
        M::order(sum);
        simd::store(o, sum[0]);
        simd::store(o + kW, sum[1]);
      }
}

/// What run_task asks of an engine, on the multiply M: queries are [query][padded d], scores
/// [query][64].
template <class M>
struct FewQueries {
  using T = typename M::Element;
  static constexpr int kStepPages = 1;
  static constexpr bool kFew = true;

  static void load_queries(Block& b) {
    const int stride = padded_dim(b.d);
    memset(b.scratch.q, 0, sizeof(float) * static_cast<size_t>(b.n_queries * stride));
    for (int i = 0; i < b.n_queries; ++i)
      M::load_query(b.scratch.q + i * stride,
                    static_cast<const T*>(b.params->q) + b.head_at(i) * static_cast<size_t>(b.d),
                    b.d, b.params->scale * kLog2E);
  }

  static void step(Block& b, int page, int) {
    uint64_t seen[kMaxFewQueries], any = 0;
    for (int i = 0; i < b.n_queries; ++i) any |= seen[i] = seen_keys(b, i, page);
    if (any == 0) return;
    scores(b, page);
    if (b.key_scores != nullptr) {
      collect_scores(b, 0, b.scratch.s, kPageTokens,
                     M::kScaledQueries ? 1.0f : b.params->scale * kLog2E);
      write_scores(b, 0, page);
    }
    for (int i = 0; i < b.n_queries; ++i)
      softmax_query<M>(b, i, b.scratch.s + i * kPageTokens, seen + i, 1);
    values(b, page);
  }

  static void scores(const Block& b, int page) {
    const T* k = page_of<T>(b, b.params->k_pool, page);
    Lines ahead(page_of<T>(b, b.params->v_pool, page), kPageTokens * b.d);
    const Rows<T> keys = whole_vectors(k, b.d, 4 * M::kNumbers, kPageTokens,
                                       b.scratch.k + kPageTokens * padded_dim(b.d));
    const float* words = reinterpret_cast<const float*>(keys.at);
    // Words stay in L1 until they are multiplied. One query needs more for its chains.
    const int n_keys = kW == 8 && b.n_queries > 1 ? 32 : kPageTokens, n = keys.stride / M::kNumbers;
    for (int key = 0; key < kPageTokens; key += n_keys) {
      transpose_words(b.scratch.k, words + key * n, n, n_keys, ahead);
      const ScoreProduct p{.s = b.scratch.s + key,
                           .words = b.scratch.k,
                           .q = b.scratch.q,
                           .n_words = n,
                           .q_stride = padded_dim(b.d)};
      by_fours(b.n_queries, [&]<int NI>(int i) { score_tiles<M, NI>(p, n_keys / kW, i, ahead); });
    }
  }

  static void values(const Block& b, int page) {
    const int n_valid = valid_keys(b, page), width = kW * M::kNumbers;
    Lines ahead(page_of<T>(b, b.params->k_pool, page + 1), kPageTokens * b.d);
    const ValueProduct<M> p{.o = b.scratch.o,
                            .alpha = b.scratch.alpha,
                            .p = M::factors(b),
                            .values = whole_vectors(page_of<T>(b, b.params->v_pool, page), b.d,
                                                    width, n_valid, b.scratch.v),
                            .o_stride = padded_dim(b.d),
                            .n_keys = n_valid};
    by_fours(b.n_queries,
             [&]<int NI>(int i) { value_tiles<M, NI>(p, 0, (b.d + width - 1) / width, i, ahead); });
  }

  static void end_split(Block& b) { order_sums<M>(b); }
};

}  // namespace
}  // namespace tandem
