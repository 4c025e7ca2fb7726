#include <algorithm>
#include <cmath>

#include "kernels/code/code.h"

namespace tandem {
namespace {

/// Steps of the even quantizer of a standard normal variable with the least mean square error (Max
/// 1960), by bits; the share of the variance that is lost; and the mean of |x|.
constexpr float kSteps[] = {0, 1.5958f, 0.9957f, 0.5860f};
constexpr float kLost[] = {0, 0.3634f, 0.1188f, 0.0374f};
constexpr float kMeanAbs = 0.79788456f;

/// The mean of x y for a standard normal x: e = |x| / sqrt(dims) / this for the average key.
float mean_product(int bits) { return (1 - kLost[bits]) / kSteps[bits]; }

int step_number(float x, int bits) {
  const int half = 1 << (bits - 1);
  return std::clamp(static_cast<int>(std::floor(x / kSteps[bits])) + half, 0, 2 * half - 1);
}

uint8_t scale_code(float scale) {
  if (!(scale > 0)) return 0;
  const auto bits = static_cast<int64_t>(__builtin_bit_cast(uint32_t, scale));
  return static_cast<uint8_t>(std::clamp<int64_t>((bits - kScaleBits + (1 << 17)) >> 18, 0, 255));
}

int8_t axis_code(float share) {
  return static_cast<int8_t>(std::clamp(std::nearbyint(share), -127.0f, 127.0f));
}

void put(uint8_t& byte, int shift, uint32_t mask, uint32_t value) {
  byte = static_cast<uint8_t>((byte & ~(mask << shift)) | (value << shift));
}

}  // namespace

float code_scale_unit(float most_norm, int dims, int bits) {
  return 2 * most_norm / (std::sqrt(static_cast<float>(dims)) * mean_product(bits));
}

void code_rows(const CodeRowsParams& p, Range rows) {
  const int planes = p.bits - 1;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = p.rows + r * p.dims;
    const int64_t key = p.first + r, in_group = key % kCodeKeys;
    uint8_t* group = p.groups + key / kCodeKeys * code_group_bytes(p.dims);
    uint8_t* low = p.bits > 1 ? p.low + key * code_low_bytes(p.dims, p.bits) : nullptr;
    double square = 0, product = 0;
    for (int c = 0; c < p.dims; ++c) square += double{x[c]} * x[c];
    const auto norm = static_cast<float>(std::sqrt(square));
    const float to_steps = norm > 0 ? std::sqrt(static_cast<float>(p.dims)) / norm : 0;
    const int64_t byte = 2 * (in_group % 32) + in_group / 32 % 2, shift = in_group / 64 * 4;
    if (low != nullptr) std::fill_n(low, code_low_bytes(p.dims, p.bits), uint8_t{0});
    for (int quad = 0; quad < p.dims / 4; ++quad) {
      uint32_t signs = 0;
      for (int i = 0; i < 4; ++i) {
        const int c = 4 * quad + i, number = step_number(x[c] * to_steps, p.bits);
        product += double{x[c]} * (number + 0.5 - (1 << planes));
        signs |= static_cast<uint32_t>(number >> planes) << i;
        for (int b = 0; b < planes; ++b)
          low[b * p.dims / 8 + c / 8] |=
              static_cast<uint8_t>(((number >> (planes - 1 - b)) & 1) << (c % 8));
      }
      put(group[quad * 64 + byte], static_cast<int>(shift), 15, signs);
    }
    // One bit ranks better by the norm than by the unbiased scale, which its own error disturbs.
    const double scale = p.bits == 1   ? norm / std::sqrt(double(p.dims)) / mean_product(1)
                         : product > 0 ? square / product
                                       : 0;
    uint8_t* scales = group + int64_t{16} * p.dims;
    scales[in_group] =
        p.units.scale > 0 ? scale_code(static_cast<float>(scale) / p.units.scale) : 0;
    const int8_t share = p.units.axis > 0 ? axis_code(p.shares[r] / p.units.axis) : 0;
    scales[kCodeKeys + in_group] = static_cast<uint8_t>(share);
  }
}

CodeQuery code_query(const float* rotated, float share, float weight, const CodeUnits& units,
                     int dims, int bits, uint8_t* sums, int8_t* q) {
  // Eight bits hold the sums of kCodeDims magnitudes, each rounded up by half at most.
  constexpr float kMostSum = 255.0f - kCodeDims / 2, kMost = 127;
  float step = 0;
  for (int begin = 0; begin < dims; begin += kCodeDims) {
    float sum = 0;
    for (int c = begin; c < begin + kCodeDims; ++c) {
      sum += std::abs(rotated[c]);
      step = std::max(step, std::abs(rotated[c]) / kMost);
    }
    step = std::max(step, sum / kMostSum);
  }
  CodeQuery query{};
  query.sums = sums;
  query.q = q;
  for (int c = 0; c < dims; ++c) {
    q[c] = step > 0 ? static_cast<int8_t>(std::nearbyint(rotated[c] / step)) : int8_t{0};
    query.total += q[c];
    query.bias += std::abs(q[c]);
  }
  for (int quad = 0; quad < dims / 4; ++quad)
    for (int signs = 0; signs < 16; ++signs) {
      int sum = 0;
      for (int i = 0; i < 4; ++i) {
        const int x = q[4 * quad + i];
        sum += (signs >> i & 1 ? x : 0) - std::min(x, 0);
      }
      sums[quad * 16 + signs] = static_cast<uint8_t>(sum);
    }
  // |x| / sqrt(dims) is e mean_product, and a sign stands for |x_i| / kMeanAbs of its mean square.
  query.sign_gain = weight * step * units.scale * mean_product(bits) / kMeanAbs;
  query.gain = weight * step * units.scale / 2;
  query.axis_gain = weight * share * units.axis;
  return query;
}

}  // namespace tandem
