#include "kernels/gather/attend_list.h"

#include <math.h>

#ifdef TANDEM_ISA_avx512_bf16
#include "kernels/gather/attend_pairs.h"
#endif
#include "kernels/gather/chunks.h"
#include "kernels/gather/scores.h"
#include "kernels/gather/value_sum.h"

namespace tandem {
namespace {

using namespace simd;

/// Softmax so far: sums relative to exp(m), that of the values in o.
struct State {
  float m = -kInf;
  Vec l = zero();
};

/// a[i] *= the scale of the i-th key's row, or with `value` 1 of its value's; nothing where rows
/// have none.
template <class T>
TANDEM_INLINE void put_scales(float* a, const Chunk<T>& chunk, int first, int n, int value) {
  if constexpr (kHasScales<T>)
    for (int i = first; i < first + n; ++i) a[i] *= chunk.scales[i][value];
}

/// T is the type of the rows' elements, Q of the query's.
template <class T, class Q>
void attend_chunk(const AttendListParams& p, const Chunk<T>& chunk, Ahead<T> ahead, State& state) {
  alignas(64) float a[kChunk];
  Vec most = set1(-kInf);
  for (int first = 0; first < chunk.n; first += kGroup) {
    key_dots(a + first, static_cast<const Q*>(p.q), chunk.rows + 2 * first, p.d, ahead);
    put_scales(a, chunk, first, kGroup, 0);
    for (int i = first; i < first + kGroup; i += Vec::kLanes) {
      const int n = chunk.n - i < 0 ? 0 : chunk.n - i < Vec::kLanes ? chunk.n - i : Vec::kLanes;
      const Vec scores = score(p, *chunk.segment, chunk.first + i, n, load(a + i));
      store(a + i, scores);
      most = max(most, scores);
    }
  }
  const float before = state.m, chunk_max = reduce_max(most);
  state.m = chunk_max > before ? chunk_max : before;
  if (state.m > -kInf) {
    const Vec m = set1(state.m), alpha = exp(set1(before) - m);
    state.l = state.l * alpha;
    for (int i = 0; i < chunk.n; i += Vec::kLanes) {
      const Vec weight = exp(load(a + i) - m);
      state.l = state.l + weight;
      store(a + i, weight);
    }
    put_scales(a, chunk, 0, chunk.n, 1);
    add_values(p.o, p.d, alpha, a, chunk.rows + 1, chunk.n, ahead);
  }
  ahead.finish();
}

template <class T, class Q = T>
void attend(const AttendListParams& p) {
  for (int c = 0; c < p.d; ++c) p.o[c] = 0;
  State state;
  Chunk<T> chunks[2];
  Cursor<T> cursor(p);
  cursor.next(chunks[0]);
  Ahead<T>(chunks[0], p.d).finish();
  for (int turn = 0; chunks[turn].n > 0; turn ^= 1) {
    cursor.next(chunks[turn ^ 1]);
    attend_chunk<T, Q>(p, chunks[turn], {chunks[turn ^ 1], p.d}, state);
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
  if (p.scales != nullptr)
    return p.dtype == DType::f32 ? attend<int8_t, float>(p) : attend<int8_t, bf16>(p);
  if (p.dtype == DType::f32) return attend<float>(p);
#ifdef TANDEM_ISA_avx512_bf16
  if (p.d == 32) return attend_pairs<1>(p);
  if (p.d == 64) return attend_pairs<2>(p);
  if (p.d == 96) return attend_pairs<3>(p);
  if (p.d == 128) return attend_pairs<4>(p);
#endif
  attend<bf16>(p);
}

}  // namespace tandem
