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

/// A block of random numbers serves this many elements, 16 bits each.
inline constexpr int64_t kElementsADraw = 8;

TANDEM_BOTH inline PhiloxBlock rounding_draw(const AdamWNarrowParams& p, int64_t element) {
  const uint64_t draw = static_cast<uint64_t>(element / kElementsADraw);
  return philox_block({{static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32), p.step,
                        static_cast<uint32_t>(DrawPurpose::rounding)}},
                      p.seed);
}

/// The bits of x in bf16, rounded up with probability (lower 16 bits) / 2^16. `bits` are those of a
/// finite x.
TANDEM_BOTH inline uint16_t round_by(uint32_t bits, const PhiloxBlock& draw, int64_t element) {
  const int64_t i = element % kElementsADraw;
  const uint32_t random = draw.w[i / 2] >> (i % 2 * 16) & 0xFFFFu;
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
