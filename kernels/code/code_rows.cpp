#include <algorithm>
#include <cmath>

#include "kernels/code/code_numbers.h"

namespace tandem {
namespace {

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
        const int c = 4 * quad + i;
        const int number =
            step_number(static_cast<int>(std::floor(x[c] * to_steps / code_step(p.bits))), p.bits);
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
  float step = 0;
  for (int begin = 0; begin < dims; begin += kCodeDims) {
    float sum = 0;
    for (int c = begin; c < begin + kCodeDims; ++c) {
      sum += std::abs(rotated[c]);
      step = std::max(step, std::abs(rotated[c]) / kMostQuery);
    }
    step = std::max(step, sum / kMostQuerySum);
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
  const CodeGains gains = code_gains(step, share, weight, units, bits);
  query.sign_gain = gains.sign;
  query.gain = gains.all;
  query.axis_gain = gains.axis;
  return query;
}

}  // namespace tandem
