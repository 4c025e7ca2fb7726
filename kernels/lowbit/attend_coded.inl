#include <math.h>

#include "kernels/lowbit/code_levels.h"
#include "kernels/lowbit/coded_pages.h"
#ifdef TANDEM_ISA_scalar
#include "kernels/lowbit/coded_tiles_plain.h"
#else
#include "kernels/lowbit/coded_tiles.h"
#endif

namespace tandem {
namespace {

using namespace simd;

constexpr float kMostWeight = 32767;
constexpr int kExactKeys = 16;             // whose products with values in 8 bits fit into int32
constexpr float kLeastWeight = 0x1p-100f;  // of a page's largest; less is none

/// Softmax of one query so far, in exponents of 2, relative to m.
struct State {
  float m, l;
  bool broken;  // a value's scale is not finite
};

/// A call's memory, and the numbers of a page that are not in the tile.
struct Work {
  Tile tile;
  int16_t* queries;             // arranged
  float* sums;                  // of values, relative to m
  float* scores;                // [n_queries, 64]
  int16_t* weights;             // [n_queries, 64]
  State* states;                // [n_queries]
  float *alpha, *factor;        // [n_queries] for the sums before a page, for its whole numbers
  float *e, *shares, *value_e;  // [64]
  int query_step, sums_step;    // from one query to the next
};

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
  w.tile = {take<int16_t>(at, int64_t{kPageTokens} * padded), d};
  w.queries = take<int16_t>(at, n * w.query_step);
  w.sums = take<float>(at, n * w.sums_step);
  w.scores = take<float>(at, n * kPageTokens);
  w.weights = take<int16_t>(at, n * kPageTokens);
  w.states = take<State>(at, n);
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

/// Scores of 64 keys by kQueries queries.
template <int kQueries>
void score_keys(const Work& w, const CodedGains* gains, int first) {
  for (int k = 0; k < kPageTokens; k += kW) {
    Vec sums[kQueries];
    key_sums<kQueries>(sums, w.tile, w.queries + first * w.query_step, w.query_step, k);
    for (int i = 0; i < kQueries; ++i) {
      const CodedGains& g = gains[first + i];
      const Vec by_code = (sums[i] * set1(g.sum)) * load(w.e + k);
      const Vec by_axis = set1(g.share) * load(w.shares + k) + set1(g.offset);
      store(w.scores + (first + i) * kPageTokens + k, by_code + by_axis);
    }
  }
}

/// Weights of a page's keys from their scores; bit i of `seen`: key i counts.
void weigh_keys(const Work& w, int query, float unit, uint64_t seen) {
  State& s = w.states[query];
  const float* scores = w.scores + query * kPageTokens;
  int16_t* weights = w.weights + query * kPageTokens;
  const auto mask = [&](int k) {
    return mask_of_bits(static_cast<uint32_t>(seen >> k) & ((1u << kW) - 1u));
  };
  const Vec least = set1(-kInf);
  Vec most = least, not_finite = zero();
  for (int k = 0; k < kPageTokens; k += kW) {
    const Vec score = load(scores + k);
    most = max(most, select(mask(k), score, least));
    not_finite = not_finite + select(mask(k), score, zero()) * zero();
  }
  const float before = s.m, page_most = reduce_max(most), check = reduce_add(not_finite);
  s.m = page_most > before ? page_most : before;
  if (check != check) s.l = check;
  const bool any = s.m > -kInf;
  const Vec m = set1(any ? s.m : 0);
  Vec products[kPageTokens / kW], l = zero(), top = zero();
  not_finite = zero();
  for (int k = 0; k < kPageTokens; k += kW) {
    const Vec weight = exp2_nonpositive(select(mask(k), load(scores + k), least) - m);
    const Vec product = select(mask(k), weight * load(w.value_e + k), zero());
    l = l + weight;
    top = max(top, product);
    not_finite = not_finite + product * zero();
    products[k / kW] = product;
  }
  float alpha[kW];
  store(alpha, exp2_nonpositive(set1(before) - m));
  const float sum = reduce_add(not_finite), largest = reduce_max(top);
  s.l = s.l * alpha[0] + reduce_add(l);
  s.broken = s.broken || sum != sum || s.l != s.l;
  const bool counts = any && !s.broken && largest > kLeastWeight;
  w.alpha[query] = alpha[0];
  w.factor[query] = counts ? largest / kMostWeight * unit : 0;
  const Vec to_whole = set1(counts ? kMostWeight / largest : 0);
  for (int k = 0; k < kPageTokens; k += kW)
    store_words(weights + k, s.broken ? zero() : products[k / kW] * to_whole);
}

template <int kQueries>
void add_page_values(const Work& w, int query, int exact) {
  add_values<kQueries>(w.sums + query * w.sums_step, w.sums_step, w.tile,
                       w.weights + query * kPageTokens, w.alpha + query, w.factor + query, exact);
}

void attend_page(const AttendCodedParams& p, const Work& w, const uint8_t* page, uint64_t seen) {
  const CodedLayout& l = p.layout;
  load_scales(w, page, l);
  decode_keys(w.tile, page, l);
  int query = 0;
  for (; query + kQueriesAtOnce <= p.n_queries; query += kQueriesAtOnce)
    score_keys<kQueriesAtOnce>(w, p.gains, query);
  for (; query < p.n_queries; ++query) score_keys<1>(w, p.gains, query);
  const float unit = 1 / static_cast<float>(code_unit(l.bits.v));
  for (query = 0; query < p.n_queries; ++query) weigh_keys(w, query, unit, seen);
  decode_values(w.tile, page, l);
  const int exact = l.bits.v == 4 ? kPageTokens : kExactKeys;
  for (query = 0; query + kValueQueries <= p.n_queries; query += kValueQueries)
    add_page_values<kValueQueries>(w, query, exact);
  for (; query < p.n_queries; ++query) add_page_values<1>(w, query, exact);
}

}  // namespace

void TANDEM_ISA_FN(attend_coded)(const AttendCodedParams& p) {
  const int d = p.layout.d;
  const Work w = work_of(p);
  for (int query = 0; query < p.n_queries; ++query) {
    arrange_query(w.queries + query * w.query_step, p.numbers + query * d, p.layout);
    __builtin_memset(w.sums + query * w.sums_step, 0,
                     sizeof(float) * static_cast<size_t>(w.sums_step));
    w.states[query] = {.m = -kInf, .l = 0, .broken = false};
  }
  const int first_page = p.begin / kPageTokens * kPageTokens;
  for (int first = first_page; first < p.end && p.begin < p.end; first += kPageTokens) {
    const int begin = p.begin > first ? p.begin - first : 0;
    const int unseen = first + kPageTokens - p.end;
    const uint64_t seen = ~uint64_t{0} << begin & ~uint64_t{0} >> (unseen > 0 ? unseen : 0);
    const int64_t page = int64_t{p.pages[first / kPageTokens]} * p.n_kv_heads + p.kv_head;
    attend_page(p, w, p.pool + page * p.layout.page_bytes(), seen);
  }
  for (int query = 0; query < p.n_queries; ++query) {
    const State& s = w.states[query];
    float* o = p.o + query * d;
    const bool none = s.l == 0;
    p.lse[query] = none ? -kInf : s.m * kLn2 + logf(s.l);
    put_sums(o, w.sums + query * w.sums_step, none ? 0 : 1 / s.l, p.layout);
    if (s.broken)
      for (int c = 0; c < d; ++c) o[c] = __builtin_nanf("");
  }
}

}  // namespace tandem
