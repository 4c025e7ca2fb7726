#include "kernels/channels/score_channels.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

template <class T>
void score(const ScoreChannelsParams& p, Range channels) {
  for (int j = channels.begin; j < channels.end; j += Vec::kLanes) {
    const int n = channels.end - j < Vec::kLanes ? channels.end - j : Vec::kLanes;
    Vec all = zero();
    for (int b = 0; b < p.n_seqs; ++b) {
      const int64_t first = p.row_begin[b], last = p.row_begin[b + 1];
      if (first == last) continue;
      Vec weight = set1(1);
      if (p.weights.sums != nullptr) {
        const float rows = p.weights.rows[p.slot[b] * p.weights.rows_stride];
        const float* sums = p.weights.sums + p.slot[b] * p.weights.slot_stride;
        if (rows > 0) weight = sqrt(load_n(sums + j, n) / set1(rows));
      }
      for (int64_t r = first; r < last; ++r) {
        const Vec g = abs(load_n(static_cast<const T*>(p.gate) + r * p.n_channels + j, n));
        all = p.largest ? max(g * weight, all) : fma(g, weight, all);
      }
    }
    store_n(p.scores + j, p.norms != nullptr ? all * load_n(p.norms + j, n) : all, n);
  }
}

}  // namespace

void TANDEM_ISA_FN(score_channels)(const ScoreChannelsParams& p, Range channels) {
  p.type == DType::bf16 ? score<bf16>(p, channels) : score<float>(p, channels);
}

}  // namespace tandem
