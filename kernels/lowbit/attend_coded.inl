#include <math.h>

#include "kernels/lowbit/code_levels.h"
#include "kernels/lowbit/coded_pages.h"
#ifdef TANDEM_ISA_scalar
#include "kernels/lowbit/coded_tiles_plain.h"
#else
#include "kernels/lowbit/coded_values.h"
#endif

namespace tandem {
namespace coded {
namespace {

using namespace simd;

constexpr float kMostWeight = 32767;
constexpr float kLeastWeight = 0x1p-100f;  // relative to a page's largest; less is none

/// Softmax of one query so far, in exponents of 2, relative to m.
struct State {
  float m;
  bool broken;  // a weight or a value's scale is not finite
};

/// A call's memory, and the numbers of a page that are not in the tile.
struct Work {
  Tile tile;
  int16_t* queries;             // arranged
  float* sums;                  // weighted values, relative to m
  float* scores;                // [n_queries, 64]
  int16_t* weights;             // [n_queries, 64]
  State* states;                // [n_queries]
  float* l;                     // [n_queries, kW] sums of weights, relative to m
  float *alpha, *factor;        // [n_queries] for the sums before a page, for its whole numbers
  float *e, *shares, *value_e;  // [64]
  int query_step, sums_step;    // from one query to the next
};

template <int kN>
struct Count {};

template <class T>
T* take(char*& at, int64_t n) {
  T* taken = reinterpret_cast<T*>(at);
  at += (n * int64_t{sizeof(T)} + 63) / 64 * 64;
  return taken;
}

Work work_of(const AttendCodedParams& p) {
  const int d = p.layout.d, padded = (d + 127) / 128 * 128;
  const int64_t n = p.n_queries + kQueriesAtOnce - 1;
  char* at = static_cast<char*>(p.scratch);
  Work w;
  w.query_step = query_words(d);
  w.sums_step = 2 * padded;
  w.tile = {take<uint8_t>(at, int64_t{kPageTokens} * padded)};
  w.queries = take<int16_t>(at, n * w.query_step);
  w.sums = take<float>(at, n * w.sums_step);
  w.scores = take<float>(at, n * kPageTokens);
  w.weights = take<int16_t>(at, n * kPageTokens);
  w.states = take<State>(at, n);
  w.l = take<float>(at, n * kW);
  w.alpha = take<float>(at, n);
  w.factor = take<float>(at, n);
  w.e = take<float>(at, kPageTokens);
  w.shares = take<float>(at, kPageTokens);
  w.value_e = take<float>(at, kPageTokens);
  return w;
}

void load_scales(const Work& w, const uint8_t* page, const CodedLayout& l) {
  for (int k = 0; k < kPageTokens; k += kW) {
    Vec e, share;
    load_f16_pairs(page + l.scales() + 4 * k, e, share);
    store(w.e + k, e);
    store(w.shares + k, share);
    store(w.value_e + k, load(reinterpret_cast<const f16*>(page + l.value_scales()) + k));
  }
}

/// Calls f with blocks of queries: f(first, constant number).
template <class F>
TANDEM_INLINE void each_block(int n, F&& f) {
  int first = 0;
  for (; first + kQueriesAtOnce <= n; first += kQueriesAtOnce) f(first, Count<kQueriesAtOnce>());
  if constexpr (kQueriesAtOnce > 2)
    if (first + 2 <= n) {
      f(first, Count<2>());
      first += 2;
    }
  if constexpr (kQueriesAtOnce > 1)
    if (first < n) f(first, Count<1>());
}

/// Scores of a page's keys.
template <int kBits>
void score_keys(const AttendCodedParams& p, const Work& w, const uint8_t* page, Ahead& ahead) {
  const KeyNumbers<kBits> decode{};
  each_block(p.n_queries, [&]<int kQueries>(int first, Count<kQueries>) {
    float* scores = w.scores + first * kPageTokens;
    key_sums<kBits, kQueries>(scores, decode, page, p.layout, w.queries + first * w.query_step,
                              ahead);
    for (int i = 0; i < kQueries; ++i, scores += kPageTokens) {
      const CodedGains& g = p.gains[first + i];
      for (int k = 0; k < kPageTokens; k += kW) {
        const Vec by_code = (load(scores + k) * set1(g.sum)) * load(w.e + k);
        const Vec by_axis = set1(g.share) * load(w.shares + k) + set1(g.offset);
        store(scores + k, by_code + by_axis);
      }
    }
  });
}

/// Weights of a page's keys from their scores; bit i of `seen`: key i counts.
template <int kBits>
void weigh_keys(const Work& w, int query, uint64_t seen) {
  constexpr float kUnit = 1 / static_cast<float>(code_unit(kBits));
  State& s = w.states[query];
  const float* scores = w.scores + query * kPageTokens;
  int16_t* weights = w.weights + query * kPageTokens;
  const auto mask = [&](int k) {
    return mask_of_bits(static_cast<uint32_t>(seen >> k) & ((1u << kW) - 1u));
  };
  const Vec least = set1(-kInf);
  Vec most = least;
  for (int k = 0; k < kPageTokens; k += kW)
    most = max(most, select(mask(k), load(scores + k), least));
  const float before = s.m, page_most = reduce_max(most);
  s.m = page_most > before ? page_most : before;
  const bool any = s.m > -kInf;
  const Vec m = set1(any ? s.m : 0), alpha = exp2_nonpositive(set1(before) - m);
  Vec products[kPageTokens / kW], l = load(w.l + query * kW) * alpha, top = zero(), sum = l;
  for (int k = 0; k < kPageTokens; k += kW) {
    const Vec weight = exp2_nonpositive(select(mask(k), load(scores + k), least) - m);
    const Vec product = select(mask(k), weight * load(w.value_e + k), zero());
    l = l + weight;
    top = max(top, product);
    sum = sum + product;
    products[k / kW] = product;
  }
  store(w.l + query * kW, l);
  const float largest = reduce_max(top);
  s.broken = s.broken || bits_of(lt(sum + l, set1(kInf))) != (1u << kW) - 1u;
  const bool counts = any && !s.broken && largest > kLeastWeight;
  w.factor[query] = counts ? largest / kMostWeight * kUnit : 0;
  float alphas[kW];
  store(alphas, alpha);
  w.alpha[query] = alphas[0];
  const Vec to_whole = set1(counts ? kMostWeight / largest : 0);
  for (int k = 0; k < kPageTokens; k += kW)
    put_weights<kBits>(weights, k, s.broken ? zero() : products[k / kW] * to_whole);
}

template <int kBits>
void add_page_values(const AttendCodedParams& p, Work& w, const uint8_t* page, uint64_t seen,
                     Ahead& ahead) {
  for (int query = 0; query < p.n_queries; ++query) weigh_keys<kBits>(w, query, seen);
  join_values<kBits>(w.tile, page, p.layout, ahead);
  each_block(p.n_queries, [&]<int kQueries>(int first, Count<kQueries>) {
    add_values<kBits, kQueries>(w.sums + first * w.sums_step, w.sums_step, w.tile, p.layout,
                                w.weights + first * kPageTokens, w.alpha + first, w.factor + first,
                                ahead);
  });
}

/// `next` is read soon; null: none.
void attend_page(const AttendCodedParams& p, Work& w, const uint8_t* page, const uint8_t* next,
                 uint64_t seen) {
  const CodedLayout& l = p.layout;
  Ahead ahead(next, l);
  load_scales(w, page, l);
  if (l.bits.k == 4) score_keys<4>(p, w, page, ahead);
  if (l.bits.k == 6) score_keys<6>(p, w, page, ahead);
  if (l.bits.k == 8) score_keys<8>(p, w, page, ahead);
  if (l.bits.v == 4)
    add_page_values<4>(p, w, page, seen, ahead);
  else
    add_page_values<8>(p, w, page, seen, ahead);
}

}  // namespace
}  // namespace coded

void TANDEM_ISA_FN(attend_coded)(const AttendCodedParams& p) {
  using namespace coded;
  const int d = p.layout.d;
  Work w = work_of(p);
  for (int query = 0; query < p.n_queries; ++query) {
    arrange_query(w.queries + query * w.query_step, p.numbers + query * d, p.layout);
    __builtin_memset(w.sums + query * w.sums_step, 0,
                     sizeof(float) * static_cast<size_t>(w.sums_step));
    w.states[query] = {.m = -kInf, .broken = false};
    store(w.l + query * kW, zero());
  }
  const int first_page = p.begin / kPageTokens * kPageTokens;
  for (int first = first_page; first < p.end && p.begin < p.end; first += kPageTokens) {
    const int begin = p.begin > first ? p.begin - first : 0;
    const int unseen = first + kPageTokens - p.end;
    const uint64_t seen = ~uint64_t{0} << begin & ~uint64_t{0} >> (unseen > 0 ? unseen : 0);
    const auto page = [&](int i) {
      const int64_t at = int64_t{p.pages[i]} * p.n_kv_heads + p.kv_head;
      return p.pool + at * p.layout.page_bytes();
    };
    const int i = first / kPageTokens;
    attend_page(p, w, page(i), unseen < 0 ? page(i + 1) : nullptr, seen);
  }
  for (int query = 0; query < p.n_queries; ++query) {
    const float l = reduce_add(load(w.l + query * kW));
    float* o = p.o + query * d;
    p.lse[query] = l == 0 ? -kInf : w.states[query].m * kLn2 + logf(l);
    put_sums(o, w.sums + query * w.sums_step, l == 0 ? 0 : 1 / l, p.layout);
    if (w.states[query].broken)
      for (int c = 0; c < d; ++c) o[c] = __builtin_nanf("");
  }
}

}  // namespace tandem
