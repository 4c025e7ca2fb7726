#pragma once
// How the CUDA kernels of this folder divide a row of logits among a cluster of blocks.
#include <stddef.h>

namespace tandem::cuda {

inline constexpr int kRowThreads = 512;
/// A block's part of rows: 198 KiB of 227, the rest for what kernels declare and for marks.
inline constexpr int kMostPartWords = 3 * 33 * kRowThreads;

/// Part b of the cluster has the ids from b * kRowThreads * run on, thread t of it the `run` ids
/// from t * run on. An odd run keeps the threads of a warp in different banks of shared memory.
struct RowSplit {
  int vocab, parts, run;
  int part_size() const { return kRowThreads * run; }
  size_t part_bytes() const { return static_cast<size_t>(part_size()) * sizeof(float); }
};

/// Results do not depend on the split, since all sums are of integers.
/// words    floats of shared memory that a token takes
/// errors   kind internal outside 1 <= vocab <= kMaxVocabCuda, or if 16 blocks have no room
RowSplit split_row(int vocab, int n_rows, int words = 1);

/// The same for kernels that work with any number of parts and any run: as many parts as still let the
/// clusters of all rows run at once, a multiprocessor a block.
RowSplit split_rows_at_once(int vocab, int n_rows);

/// errors   kind internal outside 1 <= n <= kMaxTopNCuda, and for n > vocab
void check_top_n(int n, int vocab);

}  // namespace tandem::cuda
