#include <cmath>
#include <cstring>

#include "kernels/reference.h"
#include "kernels/rope/rope.h"

namespace tandem {
namespace {

/// What a head is multiplied with; 1 where there is no norm.
struct Scale {
  double inverse = 1;  // of the root of its mean square
  const float* norm = nullptr;

  double at(int i) const { return norm == nullptr ? inverse : inverse * norm[i]; }
};

template <class T>
Scale scale_of(const T* head, const float* norm, double eps, int d) {
  if (norm == nullptr) return {};
  double sum = 0;
  for (int i = 0; i < d; ++i) sum += double{to_float(head[i])} * to_float(head[i]);
  return {1 / std::sqrt(sum / d + eps), norm};
}

/// Turns the first `rotated` of the d elements of a head; `turn` is -1 for the opposite direction.
template <class T>
void rotate_head(T* out, const T* in, const float* cosine, const float* sine, double turn,
                 int rotated, int d, const Scale& scale = {}) {
  for (int i = rotated; i < d; ++i)
    out[i] = scale.norm == nullptr ? in[i] : from_double<T>(to_float(in[i]) * scale.at(i));
  for (int i = 0; i < rotated / 2; ++i) {
    const int j = i + rotated / 2;
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
    const int turned = rotated_dims(p);
    const float* c = p.cos_table + int64_t{p.pos[r]} * (turned / 2);
    const float* s = p.sin_table + int64_t{p.pos[r]} * (turned / 2);
    const T* in = static_cast<const T*>(p.qkv) + r * (hq + 2 * hkv) * d;
    for (int64_t h = 0; h < hq; ++h)
      rotate_head(static_cast<T*>(p.q) + (r * hq + h) * d, in + h * d, c, s, 1, turned, p.head_dim,
                  scale_of(in + h * d, p.q_norm, p.norm_eps, p.head_dim));
    for (int64_t h = 0; h < hkv; ++h) {
      const int64_t slot = ((p.slot_page[r] * hkv + h) * kPageTokens + p.slot_in_page[r]) * d;
      const T* k = in + (hq + h) * d;
      rotate_head(static_cast<T*>(p.k_pool) + slot, k, c, s, 1, turned, p.head_dim,
                  scale_of(k, p.k_norm, p.norm_eps, p.head_dim));
      std::memcpy(static_cast<T*>(p.v_pool) + slot, in + (hq + hkv + h) * d,
                  static_cast<size_t>(d) * sizeof(T));
    }
  }
}

/// y = x * scale, a head at a time: takes dy, in place, to dx, and adds the norm's gradient.
template <class T>
void norm_backward(T* dy, const T* x, const Scale& scale, float* dnorm, int d) {
  double mean = 0;
  for (int i = 0; i < d; ++i) {
    const double g = to_float(dy[i]), unit = to_float(x[i]) * scale.inverse;
    mean += g * scale.norm[i] * unit / d;
    if (dnorm != nullptr) dnorm[i] = static_cast<float>(dnorm[i] + g * unit);
  }
  for (int i = 0; i < d; ++i) {
    const double unit = to_float(x[i]) * scale.inverse;
    dy[i] = from_double<T>(scale.inverse * (to_float(dy[i]) * double{scale.norm[i]} - unit * mean));
  }
}

template <class T>
void rope_backward(const RopeBackwardParams& p, Range rows) {
  const int64_t d = p.head_dim, hq = p.n_heads, hkv = p.n_kv_heads;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t row = r * (hq + 2 * hkv) * d;
    float* dnorms = p.dnorms == nullptr ? nullptr : p.dnorms + r * 2 * d;
    if (dnorms != nullptr) std::memset(dnorms, 0, static_cast<size_t>(2 * d) * sizeof(float));
    for (int64_t h = 0; h < hq + hkv; ++h) {
      T* dy = static_cast<T*>(p.dqkv) + row + h * d;
      const int turned = rotated_dims(p);
      const int64_t at = int64_t{p.pos[r]} * (turned / 2);
      rotate_head(dy, dy, p.cos_table + at, p.sin_table + at, -1, turned, p.head_dim);
      if (p.q_norm == nullptr) continue;
      const T* x = static_cast<const T*>(p.qkv) + row + h * d;
      const float* norm = h < hq ? p.q_norm : p.k_norm;
      float* dnorm = dnorms == nullptr || h < hq ? dnorms : dnorms + d;
      norm_backward(dy, x, scale_of(x, norm, p.norm_eps, p.head_dim), dnorm, p.head_dim);
    }
  }
}

template <class T>
void rotate_q(const RotateQParams& p, Range rows) {
  const int64_t d = p.head_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int turned = rotated_dims(p);
    const int64_t at = p.pos[r] > p.max_pos ? (p.pos[r] - p.max_pos) * int64_t{turned / 2} : 0;
    for (int64_t h = r * p.n_heads; h < (r + 1) * p.n_heads; ++h)
      rotate_head(static_cast<T*>(p.out) + h * d, static_cast<const T*>(p.q) + h * d,
                  p.cos_table + at, p.sin_table + at, -1, turned, p.head_dim, {.inverse = p.scale});
  }
}

}  // namespace

void rope_kv_ref(const RopeKvParams& p, Range rows) {
  p.act == DType::bf16 ? rope_kv<bf16>(p, rows) : rope_kv<float>(p, rows);
}

void rope_backward_ref(const RopeBackwardParams& p, Range rows) {
  p.act == DType::bf16 ? rope_backward<bf16>(p, rows) : rope_backward<float>(p, rows);
}

void rotate_q_ref(const RotateQParams& p, Range rows) {
  p.act == DType::bf16 ? rotate_q<bf16>(p, rows) : rotate_q<float>(p, rows);
}

}  // namespace tandem
