#include "kernels/embed/fill_random.h"

#include <string.h>

#include "kernels/embed/number_bytes.h"
#include "kernels/simd/philox_lanes.h"

namespace tandem {
namespace {

constexpr int kLanes = kPhiloxLanes;                  // Philox blocks of one group
constexpr uint32_t kPurposeWeights = 4;               // DrawPurpose::weights of base/rng.h
constexpr double kUnitStep = 2.6428997921303018e-05;  // sqrt(3 / (2^32 - 1)): stddev 1 over odd
                                                      // numbers -65535 .. 65535

/// The numbers of one group, in order.
inline void scale_group(float* __restrict out, const PhiloxWords& c, float step) {
  for (int word = 0; word < 4; ++word) {
    float* low = out + 2 * word * kLanes;
    float* high = low + kLanes;
    for (int l = 0; l < kLanes; ++l) {
      low[l] = static_cast<float>(2 * static_cast<int>(c.w[word][l] & 0xffffu) - 65535) * step;
      high[l] = static_cast<float>(2 * static_cast<int>(c.w[word][l] >> 16) - 65535) * step;
    }
  }
}

template <class T>
inline void write_group(T* __restrict out, const PhiloxWords& c, float step) {
  float numbers[kFillGroup];
  scale_group(numbers, c, step);
  for (int i = 0; i < kFillGroup; ++i) narrow(out + i, numbers[i]);
}

template <class T>
void fill(const FillRandomParams& p, int64_t begin, int64_t end) {
  const float step = static_cast<float>(static_cast<double>(p.stddev) * kUnitStep);
  T* out = static_cast<T*>(p.out);
  T part[kFillGroup];
  PhiloxWords words;
  for (int64_t j = begin; j < end;) {
    const int64_t skipped = (p.first + j) % kFillGroup;  // of the group, at its front
    const auto block = static_cast<uint64_t>((p.first + j) / kFillGroup) * kPhiloxLanes;
    philox_lanes(words, p.seed, static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                 kPurposeWeights, p.tensor);
    const int64_t left = end - j, n = left < kFillGroup - skipped ? left : kFillGroup - skipped;
    if (n == kFillGroup) {
      write_group(out + j, words, step);
    } else {
      write_group(part, words, step);
      memcpy(out + j, part + skipped, static_cast<size_t>(n) * sizeof(T));
    }
    j += n;
  }
}

}  // namespace

void TANDEM_ISA_FN(fill_random)(const FillRandomParams& p, Range blocks) {
  const int64_t begin = static_cast<int64_t>(blocks.begin) * kFillBlock;
  const int64_t limit = static_cast<int64_t>(blocks.end) * kFillBlock;
  const int64_t end = limit < p.count ? limit : p.count;
  if (p.to == DType::bf16)
    fill<bf16>(p, begin, end);
  else
    fill<float>(p, begin, end);
}

}  // namespace tandem
