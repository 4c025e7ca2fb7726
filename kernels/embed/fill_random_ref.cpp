#include <cmath>

#include "base/convert.h"
#include "base/rng.h"
#include "kernels/embed/fill_random.h"

namespace tandem {

void fill_random_ref(const FillRandomParams& p, Range blocks) {
  const auto step = static_cast<float>(p.stddev * std::sqrt(3.0 / (65536.0 * 65536.0 - 1.0)));
  for (int64_t j = int64_t{blocks.begin} * kFillBlock;
       j < p.count && j < int64_t{blocks.end} * kFillBlock; ++j) {
    const auto i = static_cast<uint64_t>(p.first + j);
    const uint64_t block = i / kFillGroup * 16 + i % 16, slot = i % kFillGroup / 16;
    const auto words = draw4(p.seed, static_cast<uint32_t>(block),
                             static_cast<uint32_t>(block >> 32), DrawPurpose::weights, p.tensor);
    const uint32_t level = (words[slot / 2] >> (slot % 2 * 16)) & 0xffffu;
    const float x = static_cast<float>(2 * static_cast<int>(level) - 65535) * step;
    if (p.to == DType::bf16)
      static_cast<bf16*>(p.out)[j] = to_bf16(x);
    else
      static_cast<float*>(p.out)[j] = x;
  }
}

}  // namespace tandem
