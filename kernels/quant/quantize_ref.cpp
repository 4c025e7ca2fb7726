#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/convert.h"
#include "kernels/quant/quantize.h"

namespace tandem {
namespace {

struct QuantizedGroup {
  float scale = 0;
  int zero = 0;   // to be added to numbers of scales, before the code's offset
  int low, high;  // limits of codes before the offset
  int offset;

  int code(float x) const {
    const float steps = scale == 0 ? 0 : std::nearbyint(x / scale);
    const auto zero_at = static_cast<float>(zero);
    return static_cast<int>(std::clamp(steps, static_cast<float>(low) - zero_at,
                                       static_cast<float>(high) - zero_at)) +
           zero;
  }
  double error(std::span<const float> x) const {
    double sum = 0;
    for (const float v : x) {
      const double e = v - double{scale} * (code(v) - zero);
      sum += e * e;
    }
    return sum;
  }
};

QuantizedGroup empty_group(const QuantizeParams& p) {
  const bool four = p.code == Code::i4;
  if (p.zero == Zero::integer)
    return {.low = 0, .high = four ? 15 : 255, .offset = four ? 0 : -128};
  return {.low = four ? -8 : -128, .high = four ? 7 : 127, .offset = four ? 8 : 0};
}

float unrounded_scale(const QuantizeParams& p, std::span<const float> x, const QuantizedGroup& g) {
  const auto [low, high] = std::ranges::minmax(x);
  if (p.zero == Zero::integer)
    return (std::max(0.0f, high) - std::min(0.0f, low)) / static_cast<float>(g.high);
  const float most = *std::ranges::max_element(x, {}, [](float v) { return std::abs(v); });
  return p.code == Code::i4 ? most / -8.0f : std::abs(most) / 127.0f;
}

QuantizedGroup group_of_scale(QuantizedGroup g, const QuantizeParams& p, std::span<const float> x,
                              float unrounded, float factor) {
  const float scale = std::clamp(unrounded * factor, -kMostScale, kMostScale);
  g.scale = to_float(to_f16(scale)) + 0.0f;
  if (p.zero == Zero::integer && g.scale != 0) {
    const float low = std::min(0.0f, std::ranges::min(x)) * factor;
    g.zero = static_cast<int>(
        std::clamp(std::nearbyint(-low / g.scale), 0.0f, static_cast<float>(g.high)));
  }
  return g;
}

QuantizedGroup quantized_group(const QuantizeParams& p, std::span<const float> x) {
  const QuantizedGroup empty = empty_group(p);
  const float unrounded = unrounded_scale(p, x, empty);
  QuantizedGroup best = group_of_scale(empty, p, x, unrounded, 1);
  for (int i = 0; p.search && i < kScaleFactors; ++i) {
    const QuantizedGroup g = group_of_scale(empty, p, x, unrounded, scale_factor(i));
    if (g.error(x) < best.error(x)) best = g;
  }
  return best;
}

void write_fp8(const QuantizeParams& p, std::span<const float> x, uint8_t* out) {
  float most = 0;
  for (const float v : x) most = std::max(most, std::abs(v));
  const float scale = most / fp8_number(0x7e);
  for (size_t i = 0; i < static_cast<size_t>(p.group); ++i)
    out[i] = i < x.size() && scale > 0 ? fp8_code(x[i] / scale) : uint8_t{0};
  std::memcpy(out + p.group, &scale, sizeof(scale));
}

void write_quantized(const QuantizeParams& p, std::span<const float> x, uint8_t* out) {
  if (p.code == Code::fp8) return write_fp8(p, x, out);
  const QuantizedGroup g = quantized_group(p, x);
  for (int i = 0; i < p.group + p.group % 2; ++i) {
    const auto at = static_cast<size_t>(i);
    const int code = g.code(at < x.size() ? x[at] : 0) + g.offset;
    if (p.code == Code::i4)
      out[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? code : out[i / 2] | code << 4);
    else if (i < p.group)
      out[i] = static_cast<uint8_t>(code);
  }
  out += p.code == Code::i4 ? (p.group + 1) / 2 : p.group;
  const f16 scale = to_f16(g.scale);
  std::memcpy(out, &scale, sizeof(scale));
  if (p.zero == Zero::integer) out[2] = static_cast<uint8_t>(g.zero + g.offset);
}

}  // namespace

void quantize_ref(const QuantizeParams& p, Range rows) {
  const int64_t n_groups = (p.width + p.group - 1) / p.group, bytes = p.row_bytes / n_groups;
  for (int64_t row = rows.begin; row < rows.end; ++row)
    for (int64_t g = 0; g < n_groups; ++g) {
      const int64_t first = g * p.group, n = std::min<int64_t>(p.group, p.width - first);
      write_quantized(p, {p.in + row * p.width + first, static_cast<size_t>(n)},
                      p.out + row * p.row_bytes + g * bytes);
    }
}

}  // namespace tandem
