#include <math.h>

#include "kernels/sample/select.h"
#include "kernels/sample/weights.h"
#include "kernels/tree/beam_level.h"

namespace tandem {
namespace {

BeamTops tops_of(const float* row, int vocab, int width, float temperature, double before) {
  BeamTops tops{};
  const float max = row_max(row, vocab);
  tops.has_meaning = max < INFINITY && max > -INFINITY;
  if (!tops.has_meaning) return tops;
  float logit[kMaxBeams] = {};
  int n = 0;
  for (int id = 0; id < vocab; ++id) {
    if (n == width && !(row[id] > logit[n - 1])) continue;
    int at = n < width ? n++ : n - 1;
    for (; at > 0 && row[id] > logit[at - 1]; --at) {
      logit[at] = logit[at - 1];
      tops.token[at] = tops.token[at - 1];
    }
    logit[at] = row[id];
    tops.token[at] = id;
  }
  const double sum = static_cast<double>(sum_weights(row, vocab, max, temperature));
  const double log_sum = log(sum * 0x1p-40);
  for (int i = 0; i < width; ++i)
    tops.score[i] = before + (static_cast<double>((logit[i] - max) / temperature) - log_sum);
  return tops;
}

}  // namespace

void TANDEM_ISA_FN(grow_beams)(const GrowBeamsParams& p, Range seqs) {
  const int n_above = nodes_above(p), begin = first_of_level(p);
  for (int seq = seqs.begin; seq < seqs.end; ++seq) {
    BeamTops tops[kMaxBeams];
    for (int i = 0; i < n_above; ++i)
      tops[i] = tops_of(p.logits + (int64_t{seq} * n_above + i) * p.vocab, p.vocab, p.width,
                        p.temperature, score_above(p, seq, i));
    write_level(p, seq, tops);
    for (int node = begin; node < begin + p.width; ++node) {
      for (int w = 0; p.whole.mask != nullptr && w < p.whole.words; ++w)
        write_mask(p, seq, node, w);
      for (int w = 0; p.next.mask != nullptr && w < p.next.words; ++w)
        write_next_mask(p, seq, node, w);
    }
  }
}

}  // namespace tandem
