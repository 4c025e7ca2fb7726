#include <cmath>
#include <cstring>

#include "base/convert.h"
#include "kernels/rope/rope.h"

namespace tandem {
namespace {

template <class T>
T from_double(double x) {
  if constexpr (sizeof(T) == 2)
    return to_bf16(static_cast<float>(x));
  else
    return static_cast<float>(x);
}

/// What a head is multiplied with; 1 where there is no norm.
struct Scale {
  double inverse = 1;  // of the root of its mean square
  const float* norm = nullptr;

  double at(int i) const { return norm == nullptr ? 1.0 : inverse * norm[i]; }
};

template <class T>
Scale scale_of(const T* head, const float* norm, double eps, int d) {
  if (norm == nullptr) return {};
  double sum = 0;
  for (int i = 0; i < d; ++i) sum += double{to_float(head[i])} * to_float(head[i]);
  return {1 / std::sqrt(sum / d + eps), norm};
}

/// Turns one head; `turn` is -1 for the opposite direction.
template <class T>
void rotate_head(T* out, const T* in, const float* cosine, const float* sine, double turn, int d,
                 const Scale& scale = {}) {
  for (int i = 0; i < d / 2; ++i) {
    const int j = i + d / 2;
    const double a = to_float(in[i]) * scale.at(i), b = to_float(in[j]) * scale.at(j);
    const double c = cosine[i], s = turn * sine[i];
    out[i] = from_double<T>(a * c - b * s);
    out[j] = from_double<T>(b * c + a * s);
  }
}

template <class T>
void rope_kv(const RopeKvParams& p, Range rows) {
  const int64_t d = p.head_dim, hq = p.n_heads, hkv = p.n_kv_heads;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* c = p.cos_table + p.pos[r] * (d / 2);
    const float* s = p.sin_table + p.pos[r] * (d / 2);
    const T* in = static_cast<const T*>(p.qkv) + r * (hq + 2 * hkv) * d;
    for (int64_t h = 0; h < hq; ++h)
      rotate_head(static_cast<T*>(p.q) + (r * hq + h) * d, in + h * d, c, s, 1, p.head_dim,
                  scale_of(in + h * d, p.q_norm, p.norm_eps, p.head_dim));
    for (int64_t h = 0; h < hkv; ++h) {
      const int64_t slot = ((p.slot_page[r] * hkv + h) * kPageTokens + p.slot_in_page[r]) * d;
      const T* k = in + (hq + h) * d;
      rotate_head(static_cast<T*>(p.k_pool) + slot, k, c, s, 1, p.head_dim,
                  scale_of(k, p.k_norm, p.norm_eps, p.head_dim));
      std::memcpy(static_cast<T*>(p.v_pool) + slot, in + (hq + hkv + h) * d,
                  static_cast<size_t>(d) * sizeof(T));
    }
  }
}

template <class T>
void rotate_q(const RotateQParams& p, Range rows) {
  const int64_t d = p.head_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t at = p.pos[r] > p.max_pos ? (p.pos[r] - p.max_pos) * (d / 2) : 0;
    for (int64_t h = r * p.n_heads; h < (r + 1) * p.n_heads; ++h)
      rotate_head(static_cast<T*>(p.out) + h * d, static_cast<const T*>(p.q) + h * d,
                  p.cos_table + at, p.sin_table + at, -1, p.head_dim);
  }
}

}  // namespace

void rope_kv_ref(const RopeKvParams& p, Range rows) {
  p.act == DType::bf16 ? rope_kv<bf16>(p, rows) : rope_kv<float>(p, rows);
}

void rotate_q_ref(const RotateQParams& p, Range rows) {
  p.act == DType::bf16 ? rotate_q<bf16>(p, rows) : rotate_q<float>(p, rows);
}

}  // namespace tandem
