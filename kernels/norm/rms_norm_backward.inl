#include "kernels/norm/rms_norm_backward.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

struct Sums {
  float squares;  // of x
  float dots;     // of x and dy * weight
};

/// Two chains each hide the latency of the addition: three loads feed them.
template <class Dy, class X>
Sums sums_of(const X* x, const Dy* dy, const float* weight, int dim) {
  Vec squares[2] = {zero(), zero()}, dots[2] = {zero(), zero()};
  const auto add = [&](int chain, Vec a, Vec h) {
    squares[chain] = fma(a, a, squares[chain]);
    dots[chain] = fma(a, h, dots[chain]);
  };
  int i = 0;
  for (; i + 2 * Vec::kLanes <= dim; i += 2 * Vec::kLanes)
    for (int chain = 0; chain < 2; ++chain) {
      const int at = i + chain * Vec::kLanes;
      add(chain, load(x + at), load(dy + at) * load(weight + at));
    }
  for (; i < dim; i += Vec::kLanes) {
    const int n = dim - i < Vec::kLanes ? dim - i : Vec::kLanes;
    add(0, load_n(x + i, n), load_n(dy + i, n) * load_n(weight + i, n));
  }
  return {reduce_add(squares[0] + squares[1]), reduce_add(dots[0] + dots[1])};
}

/// Rows that were not normalised.
template <class Dy>
void add_scaled(const RmsNormBackwardParams& p, Range rows) {
  const Vec scale = set1(p.scale);
  for (int r = rows.begin; r < rows.end; ++r) {
    const Dy* dy = static_cast<const Dy*>(p.dy) + static_cast<int64_t>(r) * p.dim;
    float* dx = p.dx + static_cast<int64_t>(p.rows == nullptr ? r : p.rows[r]) * p.dim;
    for (int i = 0; i < p.dim; i += Vec::kLanes) {
      const int n = p.dim - i < Vec::kLanes ? p.dim - i : Vec::kLanes;
      store_n(dx + i, fma(load_n(dy + i, n), scale, load_n(dx + i, n)), n);
    }
  }
}

template <class Dy, class X>
void rows_backward(const RmsNormBackwardParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const int64_t at = static_cast<int64_t>(p.rows == nullptr ? r : p.rows[r]) * p.dim;
    const X* x = static_cast<const X*>(p.x) + at;
    const Dy* dy = static_cast<const Dy*>(p.dy) + static_cast<int64_t>(r) * p.dim;
    float* dx = p.dx + at;
    const Sums sums = sums_of(x, dy, p.weight, p.dim);
    const auto dim = static_cast<float>(p.dim);
    const float inverse = 1.0f / __builtin_sqrtf(sums.squares / dim + p.eps);
    const Vec scale = set1(inverse * p.scale);
    // Along x.
    const Vec pull = set1(inverse * inverse * inverse * (sums.dots / dim) * p.scale);
    int i = 0;
    for (; i + Vec::kLanes <= p.dim; i += Vec::kLanes) {
      const Vec h = load(dy + i) * load(p.weight + i);
      store(dx + i, fma(h, scale, fnma(load(x + i), pull, load(dx + i))));
    }
    if (const int n = p.dim - i; n > 0) {
      const Vec h = load_n(dy + i, n) * load_n(p.weight + i, n);
      store_n(dx + i, fma(h, scale, fnma(load_n(x + i, n), pull, load_n(dx + i, n))), n);
    }
    if (p.inverse != nullptr) p.inverse[r] = inverse * p.scale;
  }
}

}  // namespace

void TANDEM_ISA_FN(rms_norm_backward)(const RmsNormBackwardParams& p, Range rows) {
  if (p.weight == nullptr)
    p.dy_type == DType::bf16 ? add_scaled<bf16>(p, rows) : add_scaled<float>(p, rows);
  else if (p.dy_type == DType::bf16)
    p.x_type == DType::bf16 ? rows_backward<bf16, bf16>(p, rows)
                            : rows_backward<bf16, float>(p, rows);
  else
    p.x_type == DType::bf16 ? rows_backward<float, bf16>(p, rows)
                            : rows_backward<float, float>(p, rows);
}

}  // namespace tandem
