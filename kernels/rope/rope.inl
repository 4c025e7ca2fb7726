#include <string.h>

#include "kernels/rope/rope.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

/// Turns the pairs (i, i + half) of one head. Both of a pair are read before either is written, so
/// out may be in.
template <bool kBackwards, class T>
TANDEM_INLINE void rotate_head(T* out, const T* in, const float* cosine, const float* sine,
                               int half) {
  int i = 0;
  for (; i + Vec::kLanes <= half; i += Vec::kLanes) {
    const Vec a = load(in + i), b = load(in + half + i), c = load(cosine + i);
    const Vec s = kBackwards ? zero() - load(sine + i) : load(sine + i);
    store(out + i, fnma(b, s, a * c));
    store(out + half + i, fma(a, s, b * c));
  }
  if (const int n = half - i; n > 0) {
    const Vec a = load_n(in + i, n), b = load_n(in + half + i, n), c = load_n(cosine + i, n);
    const Vec s = kBackwards ? zero() - load_n(sine + i, n) : load_n(sine + i, n);
    store_n(out + i, fnma(b, s, a * c), n);
    store_n(out + half + i, fma(a, s, b * c), n);
  }
}

template <class T>
void rope_rows(const RopeKvParams& p, Range rows) {
  const int half = p.head_dim / 2;
  const int64_t d = p.head_dim, hq = p.n_heads, hkv = p.n_kv_heads;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* c = p.cos_table + static_cast<int64_t>(p.pos[r]) * half;
    const float* s = p.sin_table + static_cast<int64_t>(p.pos[r]) * half;
    const T* in = static_cast<const T*>(p.qkv) + r * (hq + 2 * hkv) * d;
    T* q = static_cast<T*>(p.q) + r * hq * d;
    for (int64_t h = 0; h < hq; ++h) rotate_head<false>(q + h * d, in + h * d, c, s, half);
    int64_t slot = (p.slot_page[r] * hkv * kRopePageTokens + p.slot_in_page[r]) * d;
    for (int64_t h = 0; h < hkv; ++h, slot += kRopePageTokens * d) {
      rotate_head<false>(static_cast<T*>(p.k_pool) + slot, in + (hq + h) * d, c, s, half);
      memcpy(static_cast<T*>(p.v_pool) + slot, in + (hq + hkv + h) * d,
             static_cast<size_t>(d) * sizeof(T));
    }
  }
}

template <class T>
void rotate_rows(const RotateQParams& p, Range rows) {
  const int half = p.head_dim / 2;
  const int64_t d = p.head_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t at = p.pos[r] > p.max_pos ? (p.pos[r] - p.max_pos) * int64_t{half} : 0;
    for (int64_t h = r * p.n_heads; h < (r + 1) * p.n_heads; ++h)
      rotate_head<true>(static_cast<T*>(p.out) + h * d, static_cast<const T*>(p.q) + h * d,
                        p.cos_table + at, p.sin_table + at, half);
  }
}

}  // namespace

void TANDEM_ISA_FN(rope_kv)(const RopeKvParams& p, Range rows) {
  if (p.act == DType::bf16)
    rope_rows<bf16>(p, rows);
  else
    rope_rows<float>(p, rows);
}

void TANDEM_ISA_FN(rotate_q)(const RotateQParams& p, Range rows) {
  if (p.act == DType::bf16)
    rotate_rows<bf16>(p, rows);
  else
    rotate_rows<float>(p, rows);
}

}  // namespace tandem
