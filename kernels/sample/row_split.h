#pragma once
// How the CUDA kernels of this folder divide a row of logits among a cluster of blocks.
#include <stddef.h>

namespace tandem::cuda {

inline constexpr int kRowThreads = 512;

/// Part b of the cluster has the ids from b * kRowThreads * run on, thread t of it the `run` ids
/// from t * run on. An odd run keeps the threads of a warp in different banks of shared memory.
struct RowSplit {
  int vocab, parts, run;
  int part_size() const { return kRowThreads * run; }
  size_t part_bytes() const { return static_cast<size_t>(part_size()) * sizeof(float); }
};

/// Results do not depend on the split, since all sums are of integers.
/// errors   kind internal outside 1 <= vocab <= kMaxVocabCuda
RowSplit split_row(int vocab, int n_rows);

/// errors   kind internal outside 1 <= n <= kMaxTopNCuda, and for n > vocab
void check_top_n(int n, int vocab);

}  // namespace tandem::cuda
