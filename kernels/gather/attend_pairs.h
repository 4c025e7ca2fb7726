#pragma once
// The list attention of bf16 heads of 32, 64, 96 or 128 elements on CPUs that multiply bf16 pairs.
// Included by attend_list.inl only.
//
// The rows come from anywhere in memory, so the core waits most of the time, and what counts is
// that it always waits for as many lines as it can. Hence a pipeline that does the same thing for
// every key: fetch the rows of a later one, multiply the query with one of this group, add the
// value of one of the group before. Only the scores stand between, once in 16 keys. Against chunks
// of 64 keys, first all products, then all values, it gains a tenth (d = 128, rows spread over 2.4
// GB).
#include <math.h>

#include "kernels/gather/key_dots.h"
#include "kernels/gather/scores.h"
#include "kernels/gather/value_sum.h"

namespace tandem {
namespace {

/// Where the rows and norms of 16 keys lie; the last key stands in for those beyond n.
struct PairGroup {
  const KeySegment* segment;
  int first, n;
  alignas(64) const bf16* k[16];
  alignas(64) const bf16* v[16];
  alignas(64) const float* norm[16];  // the query where the segment has none
};

/// Walks through the segments, group by group.
class PairCursor {
 public:
  explicit PairCursor(const AttendListParams& p) : p_(p) {
    const int64_t row = int64_t{p.d} * static_cast<int64_t>(sizeof(bf16));
    row_ = _mm512_set1_epi64(row);
    page_ = _mm512_set1_epi64(row * 64 * p.n_kv_heads);
    k_ = address(static_cast<const char*>(p.k_pool) + row * 64 * p.kv_head);
    v_ = address(static_cast<const char*>(p.v_pool) + row * 64 * p.kv_head);
  }

  /// False where the lists end.
  TANDEM_INLINE bool next(PairGroup& group) {
    for (; segment_ < p_.n_segments && at_ >= p_.segments[segment_].n; at_ = 0) ++segment_;
    if (segment_ >= p_.n_segments) return false;
    const KeySegment& s = p_.segments[segment_];
    group.segment = &s;
    group.first = at_;
    group.n = s.n - at_ < 16 ? s.n - at_ : 16;
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i token = _mm512_permutexvar_epi32(
        _mm512_min_epi32(lane, _mm512_set1_epi32(group.n - 1)),
        _mm512_maskz_loadu_epi32(simd::first_lanes(group.n).v, s.ids + at_));
    const __m512i page = _mm512_i32gather_epi32(_mm512_srli_epi32(token, 6), p_.pages, 4);
    put(group, 0, _mm512_castsi512_si256(token), _mm512_castsi512_si256(page));
    put(group, 8, _mm512_extracti64x4_epi64(token, 1), _mm512_extracti64x4_epi64(page, 1));
    at_ += group.n;
    return true;
  }
  /// The same; at the end a group without keys that has the rows of `before`, so that the pipeline
  /// needs no other form there.
  TANDEM_INLINE void next(PairGroup& group, const PairGroup& before) {
    if (next(group)) return;
    group = before;
    group.n = 0;
  }

 private:
  static TANDEM_INLINE __m512i address(const void* p) {
    return _mm512_set1_epi64(reinterpret_cast<int64_t>(p));
  }
  TANDEM_INLINE void put(PairGroup& group, int first, __m256i token32, __m256i page) const {
    const __m512i token = _mm512_cvtepu32_epi64(token32);
    const __m512i row =
        _mm512_add_epi64(_mm512_mul_epu32(_mm512_cvtepu32_epi64(page), page_),
                         _mm512_mul_epu32(_mm512_and_si512(token, _mm512_set1_epi64(63)), row_));
    _mm512_store_si512(group.k + first, _mm512_add_epi64(row, k_));
    _mm512_store_si512(group.v + first, _mm512_add_epi64(row, v_));
    const float* norms = group.segment->norms;
    const __m512i norm = _mm512_add_epi64(_mm512_slli_epi64(token, 2), address(norms));
    _mm512_store_si512(group.norm + first, norms != nullptr ? norm : address(p_.q));
  }

  const AttendListParams& p_;
  __m512i row_, page_;  // bytes
  __m512i k_, v_;       // addresses of the head's part of page 0
  int segment_ = 0, at_ = 0;
};

/// Fetches the first lines of a key's rows into the L2 cache (the L1 has too few outstanding
/// misses). Most rows lie in a page that is new to the TLB, so on Intel this is what waits for the
/// walk, a group before the rest. AMD reads an eighth faster if all lines of a row come together
/// (Zen 5, d = 128).
TANDEM_INLINE void fetch_first(const PairGroup& group, int i) {
  __builtin_prefetch(group.k[i], 0, 2);
  __builtin_prefetch(group.v[i], 0, 2);
}
/// Fetches the rest of the rows, and the norm.
template <int kPieces>
TANDEM_INLINE void fetch_rest(const PairGroup& group, int i) {
#pragma GCC unroll 4
  for (int j = 1; j < kPieces; ++j) __builtin_prefetch(group.k[i] + 32 * j, 0, 2);
#pragma GCC unroll 4
  for (int j = 1; j < kPieces; ++j) __builtin_prefetch(group.v[i] + 32 * j, 0, 2);
  __builtin_prefetch(group.norm[i], 0, 2);
}

/// Softmax so far: m is the largest score, l and o are sums relative to exp(m).
template <int kPieces>
struct PairState {
  float m = -kInf;
  Vec l = zero();
  Slice<bf16> o[kPieces] = {};

  TANDEM_INLINE void multiply_o(Vec factor) {
#pragma GCC unroll 4
    for (Slice<bf16>& slice : o) slice = {slice.even * factor, slice.odd * factor};
  }
  /// Weights of a group from its scores.
  TANDEM_INLINE Vec take(Vec scores) {
    if (const float most = reduce_max(scores); most > m) {
      const Vec alpha = exp(set1(m) - set1(most));
      m = most;
      l = l * alpha;
      multiply_o(alpha);
    }
    const Vec weights = m > -kInf ? exp(scores - set1(m)) : zero();
    l = l + weights;
    return weights;
  }
  TANDEM_INLINE void finish(const AttendListParams& p) {
    const float sum = reduce_add(l);
    *p.lse = sum > 0 ? m + logf(sum) : -kInf;
    multiply_o(set1(sum > 0 ? 1.0f / sum : 0.0f));
    for (int j = 0; j < kPieces; ++j) o[j].to(p.o + 32 * j);
  }
};

/// d = 32 kPieces.
template <int kPieces>
void attend_pairs(const AttendListParams& p) {
  // How many groups after the one multiplied are fetched and, at kFirst, looked up; the ring also
  // holds the one before, whose values are added.
  constexpr int kRest = 3, kFirst = 4, kRing = kFirst + 2;
  const int first_ahead = __builtin_cpu_is("amd") ? kRest : kFirst;
  PairState<kPieces> state;
  PairGroup ring[kRing];
  PairCursor cursor(p);
  if (!cursor.next(ring[0])) return state.finish(p);
  for (int g = 0; g < kFirst; ++g) {
    if (g > 0) cursor.next(ring[g], ring[g - 1]);
    for (int i = 0; g < first_ahead && i < 16; ++i) fetch_first(ring[g], i);
    for (int i = 0; g < kRest && i < 16; ++i) fetch_rest<kPieces>(ring[g], i);
  }

  Products<bf16>::Piece q[kPieces];
  for (int j = 0; j < kPieces; ++j)
    q[j] = Products<bf16>::piece(static_cast<const bf16*>(p.q) + 32 * j);
  alignas(64) float weights[16] = {};  // of the group before
  const PairGroup* before = &ring[0];
  for (int turn = 0;; ++turn) {
    const PairGroup& group = ring[turn % kRing];
    const PairGroup& first = ring[(turn + first_ahead) % kRing];
    const PairGroup& rest = ring[(turn + kRest) % kRing];
    cursor.next(ring[(turn + kFirst) % kRing], ring[(turn + kFirst - 1) % kRing]);
    Vec sums[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      fetch_first(first, i);
      fetch_rest<kPieces>(rest, i);
      sums[i] = zero();
      const Vec weight = set1(weights[i]);
#pragma GCC unroll 4
      for (int j = 0; j < kPieces; ++j) {
        sums[i] = Products<bf16>::add(sums[i], q[j], Products<bf16>::piece(group.k[i] + 32 * j));
        state.o[j].add(weight, before->v[i] + 32 * j);
      }
    }
    if (group.n == 0) break;
    float dots[16];
    store_sums(dots, sums);
    store(weights, state.take(score(p, *group.segment, group.first, group.n, load(dots))));
    before = &group;
  }
  state.finish(p);
}

}  // namespace
}  // namespace tandem
