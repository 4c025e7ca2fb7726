#pragma once
// Flash attention with queries in the lanes, for any multiply. Included by ISA files only.
//
// A task is a block of queries of one KV head. Keys are taken page by page at absolute slots; a
// vector holds the same key's score for kW queries, so softmax needs no horizontal operation, and
// nothing that happens in one lane depends on the others:
//   S[key, q] = K[key, :] . Q[q, :]      P = exp2(S * c - m)      O[c, q] += sum_key V[key, c]
//   P[key, q]
// A key that a lane does not see adds an exact zero there (p = 0, maximum unchanged, alpha = 1).
// Hence in f32 a row's bits do not depend on its company. Zeros may differ in sign on the way; the
// last addition of +0 removes that.
//
// An Engine supplies the two multiplies:
//   Element, kStepPages, kGroup (vectors taken together), kFastExp
//   load_queries(b)
//   begin_page(b, index, k, v, n_valid)    page `index` of the step; slots from n_valid on
//   unwritten scores(b, group, n_vectors, index, s)  s [vector][64][kW] probabilities(b, s, n_keys)
//   s of one vector to the form that accumulate reads accumulate(b, group, n_vectors, pages,
//   n_pages)   O = O * alpha + V^T P
#include <math.h>
#include <string.h>

#include "kernels/attention/scratch.h"
#include "kernels/attention/visibility.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using simd::Mask;
using simd::Vec;
constexpr int kW = Vec::kLanes;
constexpr float kEmpty = -__builtin_inff();

struct Block {
  const AttentionParams* params;
  Sequence seq;
  Scratch scratch;
  int kv_head, query_begin, n_queries, n_vectors;
  int d;
  const void* k_page[kMaxStepPages];  // pages of the current step, as begin_page found or made them
  const void* v_page[kMaxStepPages];
  int n_valid[kMaxStepPages];
  int group_size() const { return params->n_heads / params->n_kv_heads; }
  /// Lanes past the last query repeat it, so that they never change what a vector must do.
  int query(int lane) const { return query_begin + (lane < n_queries ? lane : n_queries - 1); }
  int row(int lane) const { return query(lane) / group_size(); }
  /// Index of a lane's head vector in q and out.
  size_t head_at(int lane) const {
    const int g = group_size(), r = query(lane) / g, head = kv_head * g + query(lane) % g;
    return static_cast<size_t>(seq.first_row + r) * static_cast<size_t>(params->n_heads) +
           static_cast<size_t>(head);
  }
};

inline Block make_block(const AttentionParams& p, const AttentionTask& t, void* scratch) {
  Block b{};
  b.params = &p;
  b.seq = sequence_of(p, t.seq);
  lay_out(b.scratch, static_cast<char*>(scratch), p.head_dim);
  b.kv_head = t.kv_head;
  b.query_begin = t.query_begin;
  b.n_queries = t.n_queries;
  b.n_vectors = (t.n_queries + kW - 1) / kW;
  b.d = p.head_dim;
  return b;
}

TANDEM_INLINE Vec finite_or_zero(Vec m) {
  return select(lt(simd::set1(kEmpty), m), m, simd::zero());
}

// --- visibility of a step
// -------------------------------------------------------------------------

/// What each vector sees of page `page`, the index-th of the step; lane masks where it is `some`.
inline bool classify(const Block& b, int page, int index, Seen* seen) {
  bool any_vector = false;
  for (int v = 0; v < b.n_vectors; ++v) {
    seen[v] = page_seen(*b.params, b.seq, b.row(v * kW), b.row(v * kW + kW - 1), page);
    if (seen[v] == Seen::some) {
      uint32_t* masks = b.scratch.masks + (index * b.n_vectors + v) * kPageTokens;
      memset(masks, 0, kPageTokens * sizeof(uint32_t));
      uint64_t any = 0, all = ~uint64_t{0};
      for (int lane = 0; lane < kW; ++lane) {
        const uint64_t keys = visible_keys(*b.params, b.seq, b.row(v * kW + lane), page);
        any |= keys;
        all &= keys;
        for (int k = 0; k < kPageTokens; ++k)
          masks[k] |= static_cast<uint32_t>((keys >> k) & 1u) << lane;
      }
      if (any == 0) seen[v] = Seen::none;
      if (all == ~uint64_t{0}) seen[v] = Seen::all;
    }
    any_vector |= seen[v] != Seen::none;
  }
  return any_vector;
}

// --- softmax of one vector over the pages of a step
// -----------------------------------------------

struct StepPage {
  int index;  // in the step
  Seen seen;
  const uint32_t* masks;
};

/// Maximum over the visible keys; unseen scores become -inf.
TANDEM_INLINE Vec mask_and_max(float* s, const StepPage* pages, int n_pages) {
  Vec top[4] = {simd::set1(kEmpty), simd::set1(kEmpty), simd::set1(kEmpty), simd::set1(kEmpty)};
  for (int i = 0; i < n_pages; ++i) {
    float* page = s + i * kPageTokens * kW;
    if (pages[i].seen != Seen::all)
      for (int k = 0; k < kPageTokens; ++k) {
        const Mask see = simd::mask_of_bits(pages[i].seen == Seen::none ? 0 : pages[i].masks[k]);
        simd::store(page + k * kW, select(see, simd::load(page + k * kW), simd::set1(kEmpty)));
      }
    for (int k = 0; k < kPageTokens; k += 4)
      for (int j = 0; j < 4; ++j) top[j] = max(top[j], simd::load(page + (k + j) * kW));
  }
  return max(max(top[0], top[1]), max(top[2], top[3]));
}

/// Scores to probabilities in place; updates m, l and alpha of vector v.
template <class Engine>
TANDEM_INLINE void softmax_step(const Block& b, int v, float* s, const StepPage* pages,
                                int n_pages) {
  const Vec c = simd::set1(b.params->scale * 1.44269504f);  // softmax in base 2
  float *pm = b.scratch.m + v * kW, *pl = b.scratch.l + v * kW;
  const Vec m_old = simd::load(pm), m = max(m_old, mask_and_max(s, pages, n_pages) * c);
  const Vec shift = finite_or_zero(m), alpha = exp2(m_old - shift), minus = simd::zero() - shift;
  Vec sum[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
  for (int k = 0; k < n_pages * kPageTokens; k += 4)
    for (int j = 0; j < 4; ++j) {
      float* at = s + (k + j) * kW;
      const Vec p = Engine::exp2_score(fma(simd::load(at), c, minus));
      sum[j] = sum[j] + p;
      simd::store(at, p);
    }
  simd::store(pm, m);
  simd::store(pl, fma(simd::load(pl), alpha, (sum[0] + sum[1]) + (sum[2] + sum[3])));
  simd::store(b.scratch.alpha + v * kW, alpha);
}

// --- one step, one split
// --------------------------------------------------------------------------

template <class Engine>
void attend_step(Block& b, int page_begin, int page_end) {
  using T = typename Engine::Element;
  const AttentionParams& p = *b.params;
  Seen seen[kMaxStepPages][kMaxQueries];
  int n_pages = 0;
  for (int page = page_begin; page < page_end; ++page) {
    if (!classify(b, page, n_pages, seen[n_pages])) continue;
    const size_t at = (static_cast<size_t>(b.seq.pages[page]) * static_cast<size_t>(p.n_kv_heads) +
                       static_cast<size_t>(b.kv_head)) *
                      static_cast<size_t>(kPageTokens * b.d);
    const int written = b.seq.base + b.seq.n_rows - page * kPageTokens;
    Engine::begin_page(b, n_pages++, static_cast<const T*>(p.k_pool) + at,
                       static_cast<const T*>(p.v_pool) + at,
                       written < kPageTokens ? written : kPageTokens);
  }
  for (int first = 0; first < b.n_vectors; first += Engine::kGroup) {
    const int n = b.n_vectors - first < Engine::kGroup ? b.n_vectors - first : Engine::kGroup;
    StepPage pages[Engine::kGroup][kMaxStepPages];
    int index[kMaxStepPages], n_seen = 0;
    for (int i = 0; i < n_pages; ++i) {
      bool any = false;
      for (int j = 0; j < n; ++j) any |= seen[i][first + j] != Seen::none;
      if (!any) continue;
      for (int j = 0; j < n; ++j)
        pages[j][n_seen] = {i, seen[i][first + j],
                            b.scratch.masks + (i * b.n_vectors + first + j) * kPageTokens};
      index[n_seen++] = i;
    }
    if (n_seen == 0) continue;
    constexpr int kVector = kMaxStepKeys * kW;
    for (int i = 0; i < n_seen; ++i)
      Engine::scores(b, first, n, index[i], b.scratch.s + i * kPageTokens * kW, kVector);
    for (int j = 0; j < n; ++j) {
      softmax_step<Engine>(b, first + j, b.scratch.s + j * kVector, pages[j], n_seen);
      Engine::probabilities(b, j, n_seen * kPageTokens);
    }
    Engine::accumulate(b, first, n, index, n_seen);
  }
}

template <class Engine>
void attend_split(Block& b, int split) {
  const int lanes = b.n_vectors * kW;
  for (int i = 0; i < lanes; i += kW) {
    simd::store(b.scratch.m + i, simd::set1(kEmpty));
    simd::store(b.scratch.l + i, simd::zero());
  }
  memset(b.scratch.o, 0, sizeof(float) * static_cast<size_t>(lanes * padded_dim(b.d)));
  constexpr int kPages = kSplitTokens / kPageTokens;
  const int n_slots = b.seq.base + b.seq.n_rows;
  const int all_pages = (n_slots + kPageTokens - 1) / kPageTokens;
  const int end = all_pages < (split + 1) * kPages ? all_pages : (split + 1) * kPages;
  for (int page = split * kPages; page < end; page += Engine::kStepPages)
    attend_step<Engine>(b, page, page + Engine::kStepPages < end ? page + Engine::kStepPages : end);
}

// --- states: merge, store, finish
// -----------------------------------------------------------------

/// Adds the state (m, l, o) of one split to the running one. `stride` floats lie between o's
/// vectors.
inline void merge_state(Block& b, const float* m, const float* l, const float* o, int stride) {
  const int run_stride = padded_dim(b.d) * kW;
  for (int v = 0; v < b.n_vectors; ++v) {
    float *pm = b.scratch.m_run + v * kW, *pl = b.scratch.l_run + v * kW;
    float* run = b.scratch.o_run + v * run_stride;
    const Vec m_run = simd::load(pm), m_new = simd::load(m + v * kW), top = max(m_run, m_new);
    const Vec shift = finite_or_zero(top);
    const Vec a = exp2(m_run - shift), c = exp2(m_new - shift);
    simd::store(pm, top);
    simd::store(pl, fma(simd::load(l + v * kW), c, simd::load(pl) * a));
    for (int i = 0; i < b.d * kW; i += kW)
      simd::store(run + i, fma(simd::load(o + v * stride + i), c, simd::load(run + i) * a));
  }
}

inline void clear_run(Block& b) {
  for (int i = 0; i < b.n_vectors * kW; i += kW) {
    simd::store(b.scratch.m_run + i, simd::set1(kEmpty));
    simd::store(b.scratch.l_run + i, simd::zero());
  }
  memset(b.scratch.o_run, 0,
         sizeof(float) * static_cast<size_t>(b.n_vectors * kW * padded_dim(b.d)));
}

/// A split's state in AttentionPlan::partials: m, l, then o without padding.
struct Partial {
  float *m, *l, *o;
};
inline Partial partial_at(const Block& b, const AttentionPlan& plan, const AttentionTask& t,
                          int i) {
  const int lanes = (t.n_queries + 15) / 16 * 16;  // as attention_plan counts
  float* at = plan.partials + t.partial + static_cast<int64_t>(i) * lanes * (b.d + 2);
  return {at, at + lanes, at + 2 * lanes};
}

inline void store_partial(const Block& b, const Partial& to) {
  const size_t bytes = sizeof(float) * static_cast<size_t>(b.n_vectors * kW);
  memcpy(to.m, b.scratch.m, bytes);
  memcpy(to.l, b.scratch.l, bytes);
  for (int v = 0; v < b.n_vectors; ++v)
    memcpy(to.o + v * b.d * kW, b.scratch.o + v * padded_dim(b.d) * kW,
           sizeof(float) * static_cast<size_t>(b.d * kW));
}

template <class Out>
void write_rows(const Block& b, int v) {
  const float* o = b.scratch.o_run + v * padded_dim(b.d) * kW;
  for (int lane = 0; lane < kW && v * kW + lane < b.n_queries; ++lane) {
    Out* out =
        static_cast<Out*>(b.params->out) + b.head_at(v * kW + lane) * static_cast<size_t>(b.d);
    int c = 0;
    for (float line[kW]; c < b.d; c += kW) {
      const int n = b.d - c < kW ? b.d - c : kW;
      for (int i = 0; i < n; ++i) line[i] = o[(c + i) * kW + lane];
      simd::store_n(out + c, simd::load_n(line, n), n);
    }
  }
}

inline void finish(Block& b) {
  for (int v = 0; v < b.n_vectors; ++v) {
    const Vec l = simd::load(b.scratch.l_run + v * kW);
    const Mask some = lt(simd::zero(), l);
    float* o = b.scratch.o_run + v * padded_dim(b.d) * kW;
    for (int i = 0; i < b.d * kW; i += kW)
      simd::store(o + i, select(some, simd::load(o + i) / l, simd::zero()) + simd::zero());
    if (b.params->out_dtype == DType::f32)
      write_rows<float>(b, v);
    else
      write_rows<bf16>(b, v);
    if (b.params->lse == nullptr) continue;
    for (int lane = 0; lane < kW && v * kW + lane < b.n_queries; ++lane) {
      const float m = b.scratch.m_run[v * kW + lane], sum = b.scratch.l_run[v * kW + lane];
      b.params->lse[b.head_at(v * kW + lane)] = sum > 0 ? m * 0.693147181f + logf(sum) : kEmpty;
    }
  }
}

// --- entry points
// ---------------------------------------------------------------------------------

template <class Engine>
void run_task(const AttentionParams& p, const AttentionPlan& plan, const AttentionTask& t,
              void* scratch) {
  Block b = make_block(p, t, scratch);
  Engine::load_queries(b);
  if (t.partial < 0) clear_run(b);
  for (int split = t.split_begin; split < t.split_end; ++split) {
    attend_split<Engine>(b, split);
    if (t.partial >= 0)
      store_partial(b, partial_at(b, plan, t, split - t.split_begin));
    else
      merge_state(b, b.scratch.m, b.scratch.l, b.scratch.o, padded_dim(b.d) * kW);
  }
  if (t.partial < 0) finish(b);
}

inline void merge_tasks(const AttentionParams& p, const AttentionPlan& plan, Range merges,
                        void* scratch) {
  for (int i = merges.begin; i < merges.end; ++i) {
    const AttentionTask& t = plan.merges[i];
    Block b = make_block(p, t, scratch);
    clear_run(b);
    for (int split = t.split_begin; split < t.split_end; ++split) {
      const Partial from = partial_at(b, plan, t, split - t.split_begin);
      merge_state(b, from.m, from.l, from.o, b.d * kW);
    }
    finish(b);
  }
}

}  // namespace
}  // namespace tandem
