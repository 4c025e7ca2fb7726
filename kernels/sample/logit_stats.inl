#include <math.h>

#include "kernels/sample/select.h"
#include "kernels/sample/weights.h"

namespace tandem {
namespace {

/// As scan() of select.h, without keeping the block maxima; also the first place of the maximum.
inline bool find_max(const float* x, int n, int32_t* argmax) {
  uint32_t low = ~0u, high = 0;
  int high_block = 0;
  for (int begin = 0; begin < n; begin += kScanBlock) {
    uint32_t block_max = 0, block_min = ~0u;
    const int end = n - begin < kScanBlock ? n : begin + kScanBlock;
    for (int i = begin; i < end; ++i) {
      const uint32_t k = order_key(x[i]);
      block_max = k > block_max ? k : block_max;
      block_min = k < block_min ? k : block_min;
    }
    if (block_max > high) high_block = begin;
    high = block_max > high ? block_max : high;
    low = block_min < low ? block_min : low;
  }
  *argmax = high_block;
  while (order_key(x[*argmax]) != high) ++*argmax;
  return low >= kKeyMinusInf && high < kKeyPlusInf && high > kKeyMinusInf;
}

}  // namespace

void TANDEM_ISA_FN(logit_stats)(const LogitStatsParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* x = p.logits + static_cast<int64_t>(r) * p.vocab;
    if (!find_max(x, p.vocab, &p.argmax[r])) {
      p.argmax[r] = kInvalidToken;
      p.max[r] = p.lse[r] = NAN;
      continue;
    }
    p.max[r] = x[p.argmax[r]];
    const auto sum = static_cast<double>(sum_weights(x, p.vocab, p.max[r]));
    p.lse[r] = static_cast<float>(p.max[r] + log(sum * 0x1p-40));
  }
}

}  // namespace tandem
