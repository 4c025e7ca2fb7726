#include "kernels/sample/row_split.h"

#include "base/check.h"
#include "kernels/sample/sample_cuda.h"

namespace tandem::cuda {

RowSplit split_row(int vocab, int n_rows) {
  constexpr int kPartTokens = 4096;  // enough to outweigh what the blocks tell each other
  constexpr int kFewRows = 2;        // clusters of 16 blocks find few places on a GPU
  TANDEM_CHECK(vocab >= 1 && vocab <= kMaxVocabCuda, "a vocabulary of {}", vocab);
  const int most = n_rows <= kFewRows ? 16 : 8;
  int parts = 1;
  while (parts < most && parts * kPartTokens < vocab) parts *= 2;
  const int run = (vocab + parts * kRowThreads - 1) / (parts * kRowThreads);
  return {vocab, parts, run | 1};
}

void check_top_n(int n, int vocab) {
  TANDEM_CHECK(n >= 1 && n <= kMaxTopNCuda && n <= vocab, "the {} most likely of {}", n, vocab);
}

}  // namespace tandem::cuda
