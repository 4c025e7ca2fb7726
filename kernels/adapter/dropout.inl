#include "kernels/adapter/dropout.h"

#include "kernels/simd/philox_lanes.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

constexpr uint32_t kPurposeDropout = 7;  // DrawPurpose::dropout of base/philox.h

/// What the elements of a group are multiplied with, in order.
inline void factors(float* __restrict out, const PhiloxWords& c, uint32_t threshold, float scale) {
  for (int word = 0; word < 4; ++word) {
    float* low = out + 2 * word * kPhiloxLanes;
    float* high = low + kPhiloxLanes;
    for (int l = 0; l < kPhiloxLanes; ++l) {
      low[l] = (c.w[word][l] & 0xffffu) >= threshold ? scale : 0.0f;
      high[l] = (c.w[word][l] >> 16) >= threshold ? scale : 0.0f;
    }
  }
}

template <class T>
void drop(const DropoutParams& p, Range rows) {
  const int64_t groups = (p.width + kDropoutGroup - 1) / kDropoutGroup;
  PhiloxWords words;
  float factor[kDropoutGroup];
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* in = static_cast<const T*>(p.in) + r * p.width;
    T* out = static_cast<T*>(p.out) + r * p.width;
    for (int64_t g = 0; g < groups; ++g) {
      philox_lanes(words, p.seed, static_cast<uint32_t>((r * groups + g) * kPhiloxLanes), p.step,
                   kPurposeDropout, p.place);
      factors(factor, words, p.threshold, p.scale);
      const int first = static_cast<int>(g) * kDropoutGroup;
      const int end = p.width - first < kDropoutGroup ? p.width - first : kDropoutGroup;
      for (int c = 0; c < end; c += Vec::kLanes) {
        const int n = end - c < Vec::kLanes ? end - c : Vec::kLanes;
        const Vec before = p.add ? load_n(out + first + c, n) : zero();
        store_n(out + first + c, fma(load_n(in + first + c, n), load(factor + c), before), n);
      }
    }
  }
}

}  // namespace

void TANDEM_ISA_FN(dropout)(const DropoutParams& p, Range rows) {
  p.act == DType::bf16 ? drop<bf16>(p, rows) : drop<float>(p, rows);
}

}  // namespace tandem
