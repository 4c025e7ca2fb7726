#include <string.h>

#include "kernels/rope/rope.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

/// Elements as they are.
struct Plain {
  TANDEM_INLINE Vec at(Vec x, int) const { return x; }
  TANDEM_INLINE Vec at(Vec x, int, int) const { return x; }
  TANDEM_INLINE Vec unturned(Vec x, int, int) const { return x; }
};

/// Elements that turn times a number.
struct Scaled {
  Vec scale;
  TANDEM_INLINE Vec at(Vec x, int) const { return x * scale; }
  TANDEM_INLINE Vec at(Vec x, int, int) const { return x * scale; }
  TANDEM_INLINE Vec unturned(Vec x, int, int) const { return x; }
};

/// Elements of a normalised head: times the inverse of its root mean square and the norm's weight.
struct Normed {
  Vec inverse;
  const float* norm;

  TANDEM_INLINE Vec at(Vec x, int i) const { return x * inverse * load(norm + i); }
  TANDEM_INLINE Vec at(Vec x, int i, int n) const { return x * inverse * load_n(norm + i, n); }
  TANDEM_INLINE Vec unturned(Vec x, int i, int n) const { return at(x, i, n); }
};

/// Two chains hide the latency of the addition; a head has few vectors.
template <class T>
TANDEM_INLINE Normed normed(const T* head, const float* norm, float eps, int d) {
  Vec even = zero(), odd = zero();
  int i = 0;
  for (; i + 2 * Vec::kLanes <= d; i += 2 * Vec::kLanes) {
    const Vec a = load(head + i), b = load(head + i + Vec::kLanes);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  for (; i < d; i += Vec::kLanes) {
    const Vec a = load_n(head + i, d - i < Vec::kLanes ? d - i : Vec::kLanes);
    even = fma(a, a, even);
  }
  const float mean = reduce_add(even + odd) / static_cast<float>(d);
  return {set1(1.0f / __builtin_sqrtf(mean + eps)), norm};
}

/// Turns the pairs (i, i + half) of one head of d elements. Both of a pair are read before either
/// is written, so out may be in.
template <bool kBackwards, class T, class Elements>
TANDEM_INLINE void rotate_head(T* out, const T* in, const float* cosine, const float* sine,
                               int half, int d, const Elements& of) {
  int i = 0;
  for (; i + Vec::kLanes <= half; i += Vec::kLanes) {
    const Vec a = of.at(load(in + i), i), b = of.at(load(in + half + i), half + i);
    const Vec c = load(cosine + i), s = kBackwards ? zero() - load(sine + i) : load(sine + i);
    store(out + i, fnma(b, s, a * c));
    store(out + half + i, fma(a, s, b * c));
  }
  if (const int n = half - i; n > 0) {
    const Vec a = of.at(load_n(in + i, n), i, n), b = of.at(load_n(in + half + i, n), half + i, n);
    const Vec c = load_n(cosine + i, n);
    const Vec s = kBackwards ? zero() - load_n(sine + i, n) : load_n(sine + i, n);
    store_n(out + i, fnma(b, s, a * c), n);
    store_n(out + half + i, fma(a, s, b * c), n);
  }
  for (i = 2 * half; i < d; i += Vec::kLanes) {
    const int n = d - i < Vec::kLanes ? d - i : Vec::kLanes;
    store_n(out + i, of.unturned(load_n(in + i, n), i, n), n);
  }
}

template <bool kNormed, class T>
void rope_rows(const RopeKvParams& p, Range rows) {
  const int half = rotated_dims(p) / 2;
  const int64_t d = p.head_dim, hq = p.n_heads, hkv = p.n_kv_heads;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* c = p.cos_table + static_cast<int64_t>(p.pos[r]) * half;
    const float* s = p.sin_table + static_cast<int64_t>(p.pos[r]) * half;
    const T* in = static_cast<const T*>(p.qkv) + r * (hq + 2 * hkv) * d;
    T* q = static_cast<T*>(p.q) + r * hq * d;
    const auto turn = [&](T* out, const T* head, [[maybe_unused]] const float* norm) {
      if constexpr (kNormed)
        rotate_head<false>(out, head, c, s, half, p.head_dim,
                           normed(head, norm, p.norm_eps, p.head_dim));
      else
        rotate_head<false>(out, head, c, s, half, p.head_dim, Plain{});
    };
    for (int64_t h = 0; h < hq; ++h) turn(q + h * d, in + h * d, p.q_norm);
    int64_t slot = (p.slot_page[r] * hkv * kPageTokens + p.slot_in_page[r]) * d;
    for (int64_t h = 0; h < hkv; ++h, slot += kPageTokens * d) {
      turn(static_cast<T*>(p.k_pool) + slot, in + (hq + h) * d, p.k_norm);
      memcpy(static_cast<T*>(p.v_pool) + slot, in + (hq + hkv + h) * d,
             static_cast<size_t>(d) * sizeof(T));
    }
  }
}

/// Takes the gradient of a normalised head to that of the head, x * inverse * norm, in place; adds
/// the norm's own to dnorm where that is not null.
template <class T>
void norm_backward(T* dy, const T* x, const Normed& by, float* dnorm, int d) {
  Vec dots = zero();  // of the gradient of x * inverse with x * inverse
  for (int i = 0; i < d; i += Vec::kLanes) {
    const int n = d - i < Vec::kLanes ? d - i : Vec::kLanes;
    const Vec g = load_n(dy + i, n), unit = load_n(x + i, n) * by.inverse;
    dots = fma(g * load_n(by.norm + i, n), unit, dots);
    if (dnorm != nullptr) store_n(dnorm + i, fma(g, unit, load_n(dnorm + i, n)), n);
  }
  const Vec mean = set1(reduce_add(dots) / static_cast<float>(d));
  for (int i = 0; i < d; i += Vec::kLanes) {
    const int n = d - i < Vec::kLanes ? d - i : Vec::kLanes;
    const Vec h = load_n(dy + i, n) * load_n(by.norm + i, n);
    store_n(dy + i, fnma(load_n(x + i, n) * by.inverse, mean, h) * by.inverse, n);
  }
}

template <class T>
void backward_rows(const RopeBackwardParams& p, Range rows) {
  const int half = rotated_dims(p) / 2;
  const int64_t d = p.head_dim, hq = p.n_heads, hkv = p.n_kv_heads;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* c = p.cos_table + static_cast<int64_t>(p.pos[r]) * half;
    const float* s = p.sin_table + static_cast<int64_t>(p.pos[r]) * half;
    const int64_t row = r * (hq + 2 * hkv) * d;
    float* dnorms = p.dnorms == nullptr ? nullptr : p.dnorms + r * 2 * d;
    for (int64_t i = 0; dnorms != nullptr && i < 2 * d; ++i) dnorms[i] = 0.0f;
    for (int64_t h = 0; h < hq + hkv; ++h) {
      T* dy = static_cast<T*>(p.dqkv) + row + h * d;
      rotate_head<true>(dy, dy, c, s, half, p.head_dim, Plain{});
      if (p.q_norm == nullptr) continue;
      const T* x = static_cast<const T*>(p.qkv) + row + h * d;
      const bool is_q = h < hq;
      const Normed by = normed(x, is_q ? p.q_norm : p.k_norm, p.norm_eps, p.head_dim);
      norm_backward(dy, x, by, dnorms == nullptr || is_q ? dnorms : dnorms + d, p.head_dim);
    }
  }
}

template <class T>
void rotate_rows(const RotateQParams& p, Range rows) {
  const int half = rotated_dims(p) / 2;
  const int64_t d = p.head_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t at = p.pos[r] > p.max_pos ? (p.pos[r] - p.max_pos) * int64_t{half} : 0;
    for (int64_t h = r * p.n_heads; h < (r + 1) * p.n_heads; ++h)
      rotate_head<true>(static_cast<T*>(p.out) + h * d, static_cast<const T*>(p.q) + h * d,
                        p.cos_table + at, p.sin_table + at, half, p.head_dim,
                        Scaled{set1(p.scale)});
  }
}

template <class T>
void rope_rows_of(const RopeKvParams& p, Range rows) {
  if (p.q_norm != nullptr)
    rope_rows<true, T>(p, rows);
  else
    rope_rows<false, T>(p, rows);
}

}  // namespace

void TANDEM_ISA_FN(rope_kv)(const RopeKvParams& p, Range rows) {
  if (p.act == DType::bf16)
    rope_rows_of<bf16>(p, rows);
  else
    rope_rows_of<float>(p, rows);
}

void TANDEM_ISA_FN(rope_backward)(const RopeBackwardParams& p, Range rows) {
  if (p.act == DType::bf16)
    backward_rows<bf16>(p, rows);
  else
    backward_rows<float>(p, rows);
}

void TANDEM_ISA_FN(rotate_q)(const RotateQParams& p, Range rows) {
  if (p.act == DType::bf16)
    rotate_rows<bf16>(p, rows);
  else
    rotate_rows<float>(p, rows);
}

}  // namespace tandem
