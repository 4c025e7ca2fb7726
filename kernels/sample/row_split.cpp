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

RowSplit split_rows_at_once(int vocab, int n_rows) {
  // Clusters that an H200 finds places for; none reaches across its groups of some 16
  // multiprocessors. 16 rows of 32,000 tokens take twice as long in 8 parts as in 6.
  struct Places {
    int parts, clusters;
  };
  constexpr Places kPlaces[] = {{16, 7}, {8, 15}, {6, 17}, {5, 22}, {4, 30}, {3, 39}, {2, 66}};
  const RowSplit usual = split_row(vocab, n_rows);
  for (const Places& p : kPlaces) {
    const RowSplit split{vocab, p.parts,
                         (vocab + p.parts * kRowThreads - 1) / (p.parts * kRowThreads)};
    if (p.parts <= usual.parts && p.clusters >= n_rows && split.part_size() <= kMostPartWords)
      return split;
  }
  return usual;
}

void check_top_n(int n, int vocab) {
  TANDEM_CHECK(n >= 1 && n <= kMaxTopNCuda && n <= vocab, "the {} most likely of {}", n, vocab);
}

}  // namespace tandem::cuda
