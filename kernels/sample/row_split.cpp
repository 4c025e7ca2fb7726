#include "kernels/sample/row_split.h"

#include "base/check.h"
#include "kernels/sample/sample_cuda.h"

namespace tandem::cuda {

RowSplit split_row(int vocab, int n_rows, int words) {
  constexpr int kPartTokens = 4096;  // enough to outweigh what the blocks tell each other
  constexpr int kFewRows = 2;        // clusters of 16 blocks find few places on a GPU
  constexpr int kMostParts = 16;
  TANDEM_CHECK(vocab >= 1 && vocab <= kMaxVocabCuda, "a vocabulary of {}", vocab);
  const int most = n_rows <= kFewRows ? kMostParts : 8;
  int parts = 1;
  while (parts < most && parts * kPartTokens < vocab) parts *= 2;
  for (;; parts *= 2) {
    const int run = (vocab + parts * kRowThreads - 1) / (parts * kRowThreads);
    const RowSplit split{vocab, parts, run | 1};
    if (split.part_size() * words <= kMostPartWords) return split;
    TANDEM_CHECK(parts < kMostParts, "a vocabulary of {} with {} words a token", vocab, words);
  }
}

void check_top_n(int n, int vocab) {
  TANDEM_CHECK(n >= 1 && n <= kMaxTopNCuda && n <= vocab, "the {} most likely of {}", n, vocab);
}

}  // namespace tandem::cuda
