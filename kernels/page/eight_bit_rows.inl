#include "kernels/page/eight_bit_rows.h"

#include "kernels/page/eight_bit_scale.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

/// Calls f(element, lanes) for all vectors of a row, the last one in part.
template <class F>
TANDEM_INLINE void each_vector(int d, F&& f) {
  int c = 0;
  for (; c + Vec::kLanes <= d; c += Vec::kLanes) f(c, Vec::kLanes);
  if (c < d) f(c, d - c);
}

template <class T>
TANDEM_INLINE Vec part_of(const T* row, int c, int n) {
  return n == Vec::kLanes ? load(row + c) : load_n(row + c, n);
}

template <class T>
TANDEM_INLINE void put(T* row, int c, Vec x, int n) {
  if (n == Vec::kLanes)
    store(row + c, x);
  else
    store_n(row + c, x, n);
}

template <class T>
void narrow(const EightBitRowsParams& p, Range rows) {
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const T* x = static_cast<const T*>(p.wide) + i * p.d;
    Vec most = zero();
    Mask finite = lt(zero(), set1(1.0f));  // all lanes
    each_vector(p.d, [&](int c, int n) {
      const Vec magnitude = abs(part_of(x, c, n));
      most = max(most, magnitude);
      finite = finite & lt(magnitude, set1(__builtin_inff()));
    });
    float scale = __builtin_nanf(""), factor = 0;
    const bool is_finite = bits_of(finite) == (1u << Vec::kLanes) - 1u;
    if (is_finite) {
      scale = eight_bit_scale(reduce_max(most));
      factor = eight_bit_factor(scale);
    }
    p.scales[i * p.scale_stride] = scale;
    each_vector(p.d, [&](int c, int n) {
      const Vec number = is_finite ? part_of(x, c, n) * set1(factor) : zero();
      put(p.rows + i * p.d, c, number, n);
    });
  }
}

template <class T>
void widen(const EightBitRowsParams& p, Range rows) {
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    T* x = static_cast<T*>(p.wide) + i * p.d;
    const Vec scale = set1(p.scales[i * p.scale_stride]);
    each_vector(p.d, [&](int c, int n) { put(x, c, part_of(p.rows + i * p.d, c, n) * scale, n); });
  }
}

}  // namespace

void TANDEM_ISA_FN(narrow_rows)(const EightBitRowsParams& p, Range rows) {
  if (p.dtype == DType::f32)
    narrow<float>(p, rows);
  else
    narrow<bf16>(p, rows);
}

void TANDEM_ISA_FN(widen_eight_bit_rows)(const EightBitRowsParams& p, Range rows) {
  if (p.dtype == DType::f32)
    widen<float>(p, rows);
  else
    widen<bf16>(p, rows);
}

}  // namespace tandem
