#include "kernels/probe/probe.h"

#include "kernels/simd/vec.h"

namespace tandem {

void TANDEM_ISA_FN(read_probe)(const ReadProbeParams& p, Range blocks) {
  constexpr int kWords = kReadProbeBlock / static_cast<int>(sizeof(uint64_t));
  uint64_t sum = 0;
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const uint64_t* words = static_cast<const uint64_t*>(p.data) + b * kWords;
    for (int i = 0; i < kWords; ++i) sum += words[i];
  }
  *p.sum = sum;
}

void TANDEM_ISA_FN(fma_probe)(const FmaProbeParams& p, Range items) {
  using namespace simd;
  constexpr int kChains = 8;  // latency 4 cycles times 2 units a cycle
  constexpr int kSteps = kFmaProbeFlops / (2 * kChains * Vec::kLanes);
  Vec chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = set1(static_cast<float>(c));
  const Vec factor = set1(0.999f), addend = set1(0.001f);
  for (int item = items.begin; item < items.end; ++item)
    for (int step = 0; step < kSteps; ++step)
      for (int c = 0; c < kChains; ++c) chain[c] = fma(chain[c], factor, addend);
  Vec sum = zero();
  for (int c = 0; c < kChains; ++c) sum = sum + chain[c];
  *p.sum = reduce_add(sum);
}

}  // namespace tandem
