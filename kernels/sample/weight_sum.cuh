#pragma once
#include "base/log2.h"
#include "kernels/sample/weights.h"

namespace tandem::cuda {

/// Adds up weight_of(x), at most 4095 of them: the same steps up to e^r; its product with 2^n is
/// then cut after 20 and after 40 binary places by additions that round towards zero, which spares
/// conversions to 64-bit integers. All floats from -31 to 0 were compared: the same weights.
class WeightSum {
 public:
  __device__ void add(float x) {
    constexpr float kRounder = 0x1.8p23f;
    x = fmaxf(x, -28.0f);
    const float shifted = x * kLog2E + kRounder;
    const float n = shifted - kRounder;
    const float r = fmaf(-n, 0x1.62e4p-1f, x) - n * 1.42860677e-6f;  // the first product is exact
    float p = 1.37817410e-3f;
    p = p * r + 8.37366283e-3f;
    p = p * r + 4.16694842e-2f;
    p = p * r + 1.66664720e-1f;
    p = p * r + 4.99999851e-1f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    const float v = __int_as_float(__float_as_int(p) + (__float_as_int(shifted) << 23));  // p 2^n
    const float high = __fadd_rz(v, kHigh);
    const float low = __fadd_rz(v - (high - kHigh), kLow);
    high_ += __float_as_uint(high);
    low_ += __float_as_uint(low);
    ++n_;
  }
  __device__ uint64_t total() const {
    const uint32_t high = high_ - n_ * __float_as_uint(kHigh);
    const uint32_t low = low_ - n_ * __float_as_uint(kLow);
    return (uint64_t{high} << 20) + low;
  }

 private:
  static constexpr float kHigh = 0x1p3f;   // its last place is 2^-20
  static constexpr float kLow = 0x1p-17f;  // its last place is 2^-40
  uint32_t high_ = 0, low_ = 0, n_ = 0;
};

}  // namespace tandem::cuda
