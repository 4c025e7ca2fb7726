#include <string.h>

#include "kernels/norm/row_norms.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

TANDEM_INLINE int lanes(int i, int n) { return n - i < Vec::kLanes ? n - i : Vec::kLanes; }

/// Two chains hide the latency of the addition.
template <class T>
float square_sum(const T* x, int n) {
  Vec sum[2] = {zero(), zero()};
  int i = 0;
  for (; i + 2 * Vec::kLanes <= n; i += 2 * Vec::kLanes)
    for (int chain = 0; chain < 2; ++chain) {
      const Vec v = load(x + i + chain * Vec::kLanes);
      sum[chain] = fma(v, v, sum[chain]);
    }
  for (; i < n; i += Vec::kLanes) {
    const Vec v = load_n(x + i, lanes(i, n));
    sum[0] = fma(v, v, sum[0]);
  }
  return reduce_add(sum[0] + sum[1]);
}

template <class T>
void squares(const RowNormsParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* q = static_cast<const T*>(p.in) + r * (p.q_dim + 2 * p.kv_dim);
    p.squares[2 * r] = square_sum(q, p.q_dim);
    p.squares[2 * r + 1] = square_sum(q + p.q_dim + p.first_k, p.kv_dim - p.first_k);
  }
}

template <class T>
void scale_row(T* out, const T* in, const float* norm, int n, float mean, float eps) {
  const Vec inverse = set1(1.0f / __builtin_sqrtf(mean + eps));
  for (int i = 0; i < n; i += Vec::kLanes) {
    const int k = lanes(i, n);
    store_n(out + i, load_n(in + i, k) * inverse * load_n(norm + i, k), k);
  }
}

template <class T>
void norms(const RowNormsParams& p, Range rows) {
  const int n_k = p.q_dim + p.kv_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* in = static_cast<const T*>(p.in) + r * (n_k + p.kv_dim);
    T* out = static_cast<T*>(p.out) + r * (n_k + p.kv_dim);
    scale_row(out, in, p.q_norm, p.q_dim, p.squares[2 * r] / static_cast<float>(p.q_all), p.eps);
    scale_row(out + p.q_dim, in + p.q_dim, p.k_norm, p.kv_dim,
              p.squares[2 * r + 1] / static_cast<float>(p.k_all), p.eps);
    if (out != in) memcpy(out + n_k, in + n_k, static_cast<size_t>(p.kv_dim) * sizeof(T));
  }
}

template <class T>
void row_backward(T* dy, const T* x, const float* norm, float* dnorm, int n, float eps) {
  const Vec inverse = set1(1.0f / __builtin_sqrtf(square_sum(x, n) / static_cast<float>(n) + eps));
  Vec dots = zero();
  for (int i = 0; i < n; i += Vec::kLanes) {
    const int k = lanes(i, n);
    const Vec g = load_n(dy + i, k), unit = load_n(x + i, k) * inverse;
    dots = fma(g * load_n(norm + i, k), unit, dots);
    if (dnorm != nullptr) store_n(dnorm + i, g * unit, k);
  }
  const Vec mean = set1(reduce_add(dots) / static_cast<float>(n));
  for (int i = 0; i < n; i += Vec::kLanes) {
    const int k = lanes(i, n);
    const Vec h = load_n(dy + i, k) * load_n(norm + i, k);
    store_n(dy + i, fnma(load_n(x + i, k) * inverse, mean, h) * inverse, k);
  }
}

template <class T>
void backward(const RowNormsBackwardParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t row = r * (p.q_dim + 2 * p.kv_dim);
    T* dy = static_cast<T*>(p.dqkv) + row;
    const T* x = static_cast<const T*>(p.qkv) + row;
    float* dnorm = p.dnorms == nullptr ? nullptr : p.dnorms + r * (p.q_dim + p.kv_dim);
    row_backward(dy, x, p.q_norm, dnorm, p.q_dim, p.eps);
    row_backward(dy + p.q_dim, x + p.q_dim, p.k_norm, dnorm == nullptr ? dnorm : dnorm + p.q_dim,
                 p.kv_dim, p.eps);
  }
}

}  // namespace

void TANDEM_ISA_FN(qk_squares)(const RowNormsParams& p, Range rows) {
  p.act == DType::bf16 ? squares<bf16>(p, rows) : squares<float>(p, rows);
}

void TANDEM_ISA_FN(row_norms)(const RowNormsParams& p, Range rows) {
  p.act == DType::bf16 ? norms<bf16>(p, rows) : norms<float>(p, rows);
}

void TANDEM_ISA_FN(row_norms_backward)(const RowNormsBackwardParams& p, Range rows) {
  p.act == DType::bf16 ? backward<bf16>(p, rows) : backward<float>(p, rows);
}

}  // namespace tandem
