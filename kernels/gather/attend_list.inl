#include "kernels/gather/attend_list.h"

#include <math.h>

#include "kernels/gather/key_dots.h"
#include "kernels/gather/value_sum.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int kPageTokens = 64;
/// Keys between rescalings of the sum, and how far ahead rows are fetched.
constexpr int kChunk = 64;
constexpr float kInf = __builtin_inff();

/// Up to kChunk keys of one segment and where their rows begin.
struct Chunk {
  const KeySegment* segment;
  int first, n;
  int64_t rows[kChunk];  // element index; up to the next whole group a copy of the last
};

/// Walks through the segments, chunk by chunk.
struct Cursor {
  const AttendListParams& p;
  int segment = 0, at = 0;

  void next(Chunk& chunk) {
    while (segment < p.n_segments && at >= p.segments[segment].n) {
      ++segment;
      at = 0;
    }
    chunk.n = 0;
    if (segment >= p.n_segments) return;
    const KeySegment& s = p.segments[segment];
    chunk.segment = &s;
    chunk.first = at;
    chunk.n = s.n - at < kChunk ? s.n - at : kChunk;
    at += chunk.n;
    for (int i = 0; i < chunk.n; ++i) {
      const int token = s.ids[chunk.first + i];
      const int64_t page = p.pages[token / kPageTokens];
      chunk.rows[i] =
          ((page * p.n_kv_heads + p.kv_head) * kPageTokens + token % kPageTokens) * p.d;
    }
    for (int i = chunk.n; i % kGroup != 0; ++i) chunk.rows[i] = chunk.rows[chunk.n - 1];
  }
};

/// Asks for all cache lines of a row.
template <class T>
TANDEM_INLINE void prefetch_row(const T* row, int d) {
  const char* bytes = reinterpret_cast<const char*>(row);
  const int n = d * static_cast<int>(sizeof(T));
  for (int at = 0; at < n; at += 64) __builtin_prefetch(bytes + at, 0, 3);
  if (n % 64 != 0) __builtin_prefetch(bytes + n - 1, 0, 3);
}

TANDEM_INLINE void prefetch_norm(const Chunk& chunk, int i) {
  if (const float* norms = chunk.segment->norms; norms != nullptr)
    __builtin_prefetch(norms + chunk.segment->ids[chunk.first + i], 0, 3);
}

/// log_u at the lanes' cosines, which lie in [-1, 1].
TANDEM_INLINE Vec log_u_at(const AttendListParams& p, Vec cosine) {
  const Vec x = (cosine + set1(1.0f)) * set1(0.5f * static_cast<float>(p.log_u_intervals));
#if defined(TANDEM_ISA_avx512) || defined(TANDEM_ISA_avx512_bf16)
  const __m512i i =
      _mm512_min_epi32(_mm512_cvttps_epi32(x.v), _mm512_set1_epi32(p.log_u_intervals - 1));
  const Vec at{_mm512_i32gather_ps(i, p.log_u, 4)}, next{_mm512_i32gather_ps(i, p.log_u + 1, 4)};
  return fma(x - Vec{_mm512_cvtepi32_ps(i)}, next - at, at);
#else
  float lanes[Vec::kLanes];
  store(lanes, x);
  for (int lane = 0; lane < Vec::kLanes; ++lane) {
    int i = static_cast<int>(lanes[lane]);
    i = i < p.log_u_intervals ? i : p.log_u_intervals - 1;
    const float at = p.log_u[i], part = lanes[lane] - static_cast<float>(i);
    lanes[lane] = at + part * (p.log_u[i + 1] - at);
  }
  return load(lanes);
#endif
}

/// Norms of the keys at `first` of the chunk on; 0 beyond the last.
TANDEM_INLINE Vec norms_of(const Chunk& chunk, int first, int n) {
  float lanes[Vec::kLanes] = {};
  for (int i = 0; i < n; ++i)
    lanes[i] = chunk.segment->norms[chunk.segment->ids[chunk.first + first + i]];
  return load(lanes);
}

/// Scores of n keys from their products with q.
TANDEM_INLINE Vec score(const AttendListParams& p, const Chunk& chunk, int first, int n, Vec dot) {
  Vec a = dot * set1(p.scale);
  if (chunk.segment->bias != nullptr)
    a = a + load_n(chunk.segment->bias + chunk.first + first, n);
  if (chunk.segment->norms != nullptr) {
    const Vec product = set1(p.q_norm) * norms_of(chunk, first, n);
    Vec cosine = (dot - set1(p.q_center)) / product;
    // max first: a NaN becomes -1, so that the table is never left.
    cosine = min(max(cosine, set1(-1.0f)), set1(1.0f));
    cosine = select(lt(zero(), abs(product)), cosine, zero());
    a = a - log_u_at(p, cosine);
  }
  // Finite or -inf: an overflow or NaN would spread to all keys.
  a = min(max(a, set1(-kInf)), set1(__FLT_MAX__));
  return select(first_lanes(n), a, set1(-kInf));
}

/// Softmax so far: the sums are relative to exp(m), that of the values is in o.
struct State {
  float m = -kInf;
  Vec l = zero();
};

template <class T>
void attend_chunk(const AttendListParams& p, const Chunk& chunk, const Chunk& ahead, State& state) {
  const T* k = static_cast<const T*>(p.k_pool);
  const T* v = static_cast<const T*>(p.v_pool);
  alignas(64) float a[kChunk];
  Vec most = set1(-kInf);
  for (int first = 0; first < chunk.n; first += kGroup) {
    key_dots(a + first, static_cast<const T*>(p.q), k, chunk.rows + first, p.d, [&](int i) {
      if (first + i >= ahead.n) return;
      prefetch_row(k + ahead.rows[first + i], p.d);
      prefetch_norm(ahead, first + i);
    });
    for (int i = first; i < first + kGroup; i += Vec::kLanes) {
      const int n = chunk.n - i < 0 ? 0 : chunk.n - i < Vec::kLanes ? chunk.n - i : Vec::kLanes;
      const Vec scores = score(p, chunk, i, n, load(a + i));
      store(a + i, scores);
      most = max(most, scores);
    }
  }
  for (int i = chunk.n; i < ahead.n; ++i) {
    prefetch_row(k + ahead.rows[i], p.d);
    prefetch_norm(ahead, i);
  }
  const float before = state.m, chunk_max = reduce_max(most);
  state.m = chunk_max > before ? chunk_max : before;
  if (state.m == -kInf) return;
  const Vec m = set1(state.m), alpha = exp(set1(before) - m);
  state.l = state.l * alpha;
  for (int i = 0; i < chunk.n; i += Vec::kLanes) {
    const Vec weight = exp(load(a + i) - m);
    state.l = state.l + weight;
    store(a + i, weight);
  }
  add_values(p.o, p.d, alpha, a, v, chunk.rows, chunk.n, [&](int i) {
    if (i < ahead.n) prefetch_row(v + ahead.rows[i], p.d);
  });
  for (int i = chunk.n; i < ahead.n; ++i) prefetch_row(v + ahead.rows[i], p.d);
}

template <class T>
void attend(const AttendListParams& p) {
  for (int c = 0; c < p.d; ++c) p.o[c] = 0;
  State state;
  Chunk chunks[2];
  Cursor cursor{p};
  cursor.next(chunks[0]);
  for (int turn = 0; chunks[turn].n > 0; turn ^= 1) {
    cursor.next(chunks[turn ^ 1]);
    attend_chunk<T>(p, chunks[turn], chunks[turn ^ 1], state);
  }
  const float l = reduce_add(state.l);
  *p.lse = l > 0 ? state.m + logf(l) : -kInf;
  const Vec scale = set1(l > 0 ? 1.0f / l : 0.0f);
  int c = 0;
  for (; c + Vec::kLanes <= p.d; c += Vec::kLanes) store(p.o + c, load(p.o + c) * scale);
  if (c < p.d) store_n(p.o + c, load_n(p.o + c, p.d - c) * scale, p.d - c);
}

}  // namespace

void TANDEM_ISA_FN(attend_list)(const AttendListParams& p) {
  if (p.dtype == DType::bf16)
    attend<bf16>(p);
  else
    attend<float>(p);
}

}  // namespace tandem
