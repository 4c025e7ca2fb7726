#pragma once
// Flash attention with queries in the lanes, for any multiply. Included by ISA files only.
//
// A task is a block of queries of one KV head. Keys are taken page by page at absolute slots; a
// vector holds the same key's score for kW queries, so softmax needs no horizontal operation, and
// nothing that happens in one lane depends on the others:
//
//   S[key, q] = K[key, :] . Q[q, :]
//   P = exp2(S * c - m)
//   O[c, q] += sum_key V[key, c] P[key, q]
//
// Sums over keys are kW chains each (l) or one (O), and a dot product is one chain over its
// channels, for any tiles. A key that a lane does not see adds an exact zero there (p = 0, maximum
// unchanged, alpha = 1). Hence a row's bits do not depend on the other rows. Zeros may differ in
// sign on the way; the last addition of +0 removes that.
//
// An Engine supplies the multiplies for the dtype Element, kGroup vectors at a time, in steps of
// kStepPages:
//
// - kFew: whether each query has its own vector (few_queries.h); false here.
// - load_queries(b): once a task.
// - step(b, page_begin, page_end): attend_step.
// - begin_page(b, index, k, v, n_valid): page `index` of the step; slots from n_valid on are
//   unwritten and may hold anything.
// - scores(b, first, n, index, s, sv): S of n vectors from `first` into s [vector][64][kW], sv
//   floats from vector to vector.
// - kScaledQueries: whether queries hold the factor c, and scores are exponents of 2 as they are.
// - exp2_score(x), probabilities(b, first, j, n_keys): P of vector j of the group, in the form that
//   accumulate reads.
// - accumulate(b, first, n, pages, n_pages): O = O * alpha + V^T P.
#include "kernels/attention/key_scores.h"
#include "kernels/attention/state.h"

namespace tandem {
namespace {

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

/// One page of a step as a vector sees it.
struct StepPage {
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
  const Vec c = simd::set1(b.params->scale * kLog2E);
  float *pm = b.scratch.m + v * kW, *pl = b.scratch.l + v * kW;
  const Vec top = mask_and_max(s, pages, n_pages);
  const Vec m_old = simd::load(pm), m = max(m_old, Engine::kScaledQueries ? top : top * c);
  const Vec shift = finite_or_zero(m), alpha = exp2_nonpositive(m_old - shift),
            minus = simd::zero() - shift;
  Vec sum[kW];
#pragma GCC unroll 16
  for (int j = 0; j < kW; ++j) sum[j] = simd::zero();
  for (int k = 0; k < n_pages * kPageTokens; k += kW)
#pragma GCC unroll 16
    for (int j = 0; j < kW; ++j) {
      float* at = s + (k + j) * kW;
      const Vec x = simd::load(at);
      const Vec p = Engine::exp2_score(Engine::kScaledQueries ? x - shift : fma(x, c, minus));
      sum[j] = sum[j] + p;
      simd::store(at, p);
    }
#pragma GCC unroll 16
  for (int half = kW / 2; half > 0; half /= 2)
#pragma GCC unroll 16
    for (int j = 0; j < half; ++j) sum[j] = sum[j] + sum[j + half];
  simd::store(pm, m);
  simd::store(pl, fma(simd::load(pl), alpha, sum[0]));
  simd::store(b.scratch.alpha + v * kW, alpha);
}

/// Pages [page_begin, page_end) against all vectors of the block.
template <class Engine>
void attend_step(Block& b, int page_begin, int page_end) {
  using T = typename Engine::Element;
  const AttentionParams& p = *b.params;
  Seen seen[kMaxStepPages][kMaxQueries];
  int page_at[kMaxStepPages], n_pages = 0;
  for (int page = page_begin; page < page_end; ++page) {
    if (!classify(b, page, n_pages, seen[n_pages])) continue;
    page_at[n_pages] = page;
    b.next_k[n_pages] = page_of<T>(b, p.k_pool, page + Engine::kStepPages);
    b.next_v[n_pages] = page_of<T>(b, p.v_pool, page + Engine::kStepPages);
    Engine::begin_page(b, n_pages++, page_of<T>(b, p.k_pool, page), page_of<T>(b, p.v_pool, page),
                       valid_keys(b, page));
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
        pages[j][n_seen] = {seen[i][first + j],
                            b.scratch.masks + (i * b.n_vectors + first + j) * kPageTokens};
      index[n_seen++] = i;
    }
    if (n_seen == 0) continue;
    constexpr int kVector = Engine::kStepPages * kPageTokens * kW;
    for (int i = 0; i < n_seen; ++i) {
      float* s = b.scratch.s + i * kPageTokens * kW;
      Engine::scores(b, first, n, index[i], s, kVector);
      if (b.key_scores != nullptr)
        collect_scores(b, first, n, index[i], s, kVector,
                       Engine::kScaledQueries ? 1.0f : p.scale * kLog2E);
    }
    for (int j = 0; j < n; ++j) {
      softmax_step<Engine>(b, first + j, b.scratch.s + j * kVector, pages[j], n_seen);
      Engine::probabilities(b, first, j, n_seen * kPageTokens);
    }
    Engine::accumulate(b, first, n, index, n_seen);
  }
  for (int i = 0; b.key_scores != nullptr && i < n_pages; ++i) write_scores(b, i, page_at[i]);
}

/// The state of one split, from nothing.
template <class Engine>
void attend_split(Block& b, int split) {
  for (int i = 0; i < b.n_vectors * kW; i += kW) {
    simd::store(b.scratch.m + i, simd::set1(kEmpty));
    simd::store(b.scratch.l + i, simd::zero());
  }
  memset(b.scratch.o, 0, sizeof(float) * static_cast<size_t>(b.n_vectors * b.o_stride()));
  const int end =
      b.page_limit < (split + 1) * kSplitPages ? b.page_limit : (split + 1) * kSplitPages;
  for (int page = split * kSplitPages; page < end; page += Engine::kStepPages)
    Engine::step(b, page, page + Engine::kStepPages < end ? page + Engine::kStepPages : end);
}

template <class Engine>
void run_task(const AttentionParams& p, const AttentionPlan& plan, const AttentionTask& t,
              void* scratch) {
  Block b = make_block(p, t, scratch, Engine::kFew);
  Engine::load_queries(b);
  load_score_off(b);
  if (t.partial < 0) clear_run(b);
  for (int split = t.split_begin; split < t.split_end; ++split) {
    attend_split<Engine>(b, split);
    if constexpr (Engine::kFew) Engine::end_split(b);
    if (t.partial >= 0)
      store_partial(b, partial_at(b, plan, t, split - t.split_begin));
    else
      merge_state(b);
  }
  if (t.partial < 0) finish(b);
}

/// Merges what tasks wrote: those of at most kFew queries a vector for each, others vectors of
/// them.
template <int kFew>
void merge_tasks(const AttentionParams& p, const AttentionPlan& plan, Range merges, void* scratch) {
  for (int i = merges.begin; i < merges.end; ++i) {
    const AttentionTask& t = plan.merges[i];
    Block b = make_block(p, t, scratch, t.n_queries <= kFew);
    clear_run(b);
    for (int split = t.split_begin; split < t.split_end; ++split) {
      load_partial(b, partial_at(b, plan, t, split - t.split_begin));
      merge_state(b);
    }
    finish(b);
  }
}

}  // namespace
}  // namespace tandem
