#pragma once
// One element of adamw_narrow, for both devices: every product that is added is a fused
// multiply-add, so that both give the same bits.
#include <math.h>

#include "base/philox.h"
#include "kernels/optim/adamw_narrow.h"

namespace tandem {
namespace {

#ifdef __CUDACC__
#define TANDEM_BOTH __host__ __device__
#else
#define TANDEM_BOTH
#endif

/// A draw of random numbers serves a group of this many elements, 16 bits each. Groups are counted
/// over all trained values, wherever a call begins.
inline constexpr int kGroup = 8;

/// Where an element finds its random bits: the draw of its group, and its place there.
struct RoundingPlace {
  int64_t group;
  int place;  // 0 .. kGroup - 1
};

TANDEM_BOTH constexpr RoundingPlace rounding_place(int64_t element) {
  return {element / kGroup, static_cast<int>(element % kGroup)};
}

/// Of a call that begins at first_element: the groups that its n elements are of, and where in the
/// call one of these begins; below 0 where the first is cut.
TANDEM_BOTH constexpr int64_t n_groups(int64_t first_element, int64_t n) {
  return (rounding_place(first_element).place + n + kGroup - 1) / kGroup;
}
TANDEM_BOTH constexpr int64_t group_begin(int64_t first_element, int64_t index) {
  return index * kGroup - rounding_place(first_element).place;
}

TANDEM_BOTH constexpr PhiloxBlock rounding_draw(uint64_t seed, uint32_t step, int64_t group) {
  const auto draw = static_cast<uint64_t>(group);
  return philox_block({{static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32), step,
                        static_cast<uint32_t>(DrawPurpose::rounding)}},
                      seed);
}

/// 16 random bits. On a GPU the place is a constant, or the draw would go through memory.
TANDEM_BOTH constexpr uint32_t rounding_bits(const PhiloxBlock& draw, int place) {
  return draw.w[place / 2] >> (place % 2 * 16) & 0xFFFFu;
}

/// The bits of x in bf16, rounded up with probability (lower 16 bits) / 2^16. `bits` are those of a
/// finite x.
TANDEM_BOTH constexpr uint16_t round_by(uint32_t bits, uint32_t random) {
  return static_cast<uint16_t>((bits + random) >> 16);
}

/// The new moments, and the new weight as what it returns.
TANDEM_BOTH inline float adamw_element(const AdamWStep& by, float g, float w, float base, float& m,
                                       float& v) {
  g *= by.gradient_scale;
  m = ::fmaf(by.beta1, m, (1.0f - by.beta1) * g);
  v = ::fmaf(by.beta2, v, (1.0f - by.beta2) * g * g);
  const float update = m * by.unbias1 / (::sqrtf(v * by.unbias2) + by.epsilon);
  return ::fmaf(-by.learning_rate, ::fmaf(by.weight_decay, w - base, update), w);
}

#undef TANDEM_BOTH

}  // namespace
}  // namespace tandem
