#include <cmath>

#include "kernels/norm/row_norms.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

template <class T>
double squares_of(const T* x, int begin, int end) {
  double sum = 0;
  for (int i = begin; i < end; ++i) sum += double{to_float(x[i])} * to_float(x[i]);
  return sum;
}

template <class T>
void squares(const RowNormsParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* q = static_cast<const T*>(p.in) + r * (p.q_dim + 2 * p.kv_dim);
    p.squares[2 * r] = static_cast<float>(squares_of(q, 0, p.q_dim));
    p.squares[2 * r + 1] = static_cast<float>(squares_of(q + p.q_dim, p.first_k, p.kv_dim));
  }
}

template <class T>
void norms(const RowNormsParams& p, Range rows) {
  const int n_k = p.q_dim + p.kv_dim, n = n_k + p.kv_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* in = static_cast<const T*>(p.in) + r * n;
    T* out = static_cast<T*>(p.out) + r * n;
    const double of_q = 1 / std::sqrt(double{p.squares[2 * r]} / p.q_all + double{p.eps});
    const double of_k = 1 / std::sqrt(double{p.squares[2 * r + 1]} / p.k_all + double{p.eps});
    for (int i = 0; i < p.q_dim; ++i) out[i] = from_double<T>(to_float(in[i]) * of_q * p.q_norm[i]);
    for (int i = p.q_dim; i < n_k; ++i)
      out[i] = from_double<T>(to_float(in[i]) * of_k * p.k_norm[i - p.q_dim]);
    for (int i = n_k; i < n; ++i) out[i] = in[i];
  }
}

template <class T>
void backward(T* dy, const T* x, const float* norm, float* dnorm, int n, double eps) {
  const double inverse = 1 / std::sqrt(squares_of(x, 0, n) / n + eps);
  double mean = 0;
  for (int i = 0; i < n; ++i) {
    const double unit = to_float(x[i]) * inverse;
    mean += to_float(dy[i]) * double{norm[i]} * unit / n;
    if (dnorm != nullptr) dnorm[i] = static_cast<float>(to_float(dy[i]) * unit);
  }
  for (int i = 0; i < n; ++i)
    dy[i] = from_double<T>(inverse *
                           (to_float(dy[i]) * double{norm[i]} - to_float(x[i]) * inverse * mean));
}

template <class T>
void backward(const RowNormsBackwardParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t row = r * (p.q_dim + 2 * p.kv_dim);
    T* dy = static_cast<T*>(p.dqkv) + row;
    const T* x = static_cast<const T*>(p.qkv) + row;
    float* dnorm = p.dnorms == nullptr ? nullptr : p.dnorms + r * (p.q_dim + p.kv_dim);
    backward(dy, x, p.q_norm, dnorm, p.q_dim, p.eps);
    backward(dy + p.q_dim, x + p.q_dim, p.k_norm, dnorm == nullptr ? dnorm : dnorm + p.q_dim,
             p.kv_dim, p.eps);
  }
}

}  // namespace

void qk_squares_ref(const RowNormsParams& p, Range rows) {
  p.act == DType::bf16 ? squares<bf16>(p, rows) : squares<float>(p, rows);
}

void row_norms_ref(const RowNormsParams& p, Range rows) {
  p.act == DType::bf16 ? norms<bf16>(p, rows) : norms<float>(p, rows);
}

void row_norms_backward_ref(const RowNormsBackwardParams& p, Range rows) {
  p.act == DType::bf16 ? backward<bf16>(p, rows) : backward<float>(p, rows);
}

}  // namespace tandem
