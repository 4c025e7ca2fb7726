#pragma once
// How the CUDA kernels of this folder divide a row of logits among blocks.
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/gpu.h"

namespace tandem::cuda {

inline constexpr int kRowThreads = 512;

// Without clusters the blocks of a row meet and exchange data in device memory, laid out as a
// ticket with room for counters of a kernel's own, the counters where the blocks of each row meet,
// the data that each block publishes, and parts of rows that shared memory has no room for.
inline constexpr int kMostRows = 16384;  // of a launch
inline constexpr size_t kTicketBytes = 64, kMeetingBytes = 8;
inline constexpr size_t kRowCounterBytes = kTicketBytes + kMostRows * kMeetingBytes;
/// Of shared memory that a kernel declares, nearly all of which its blocks may publish.
inline constexpr size_t kMostPublishedBytes = 30 * 1024;

/// Part b of the row has the ids from b * kRowThreads * run on, thread t of it the `run` ids from
/// t * run on. An odd run keeps the threads of a warp in different banks of shared memory.
struct RowSplit {
  int vocab, parts, run;
  void* memory = nullptr;  // without clusters
  int64_t data_bytes = 0;  // of a block's part of rows and marks
  bool in_memory = false;  // these lie in `memory`
  int part_size() const { return kRowThreads * run; }
  size_t part_bytes() const { return static_cast<size_t>(part_size()) * sizeof(float); }
};

/// Bytes of shared memory for marks, a bit a token.
inline size_t mark_bytes(const RowSplit& split) {
  return static_cast<size_t>(split.part_size() / 8);
}
/// Bytes of shared memory for parts of rows and marks, without clusters.
size_t row_room(const Gpu& gpu);

/// Results do not depend on the split, since all sums are of integers.
/// words    floats of shared memory that a token takes
/// errors   kind internal outside 1 <= vocab <= kMaxVocabCuda, on Hopper if 16 blocks have no room
RowSplit split_row(const Gpu& gpu, int vocab, int n_rows, int words = 1);

/// The same for kernels that work with any number of parts and any run: on Hopper as many parts as
/// still let the clusters of all rows run at once, a multiprocessor a block.
RowSplit split_rows_at_once(const Gpu& gpu, int vocab, int n_rows);

/// For kernels whose groups of blocks take one row after another, with three words a token: parts
/// so large that many groups work at once. Groups beyond these find no place on the GPU.
/// own_bytes  of shared memory that the kernel declares
struct RowGroups {
  RowSplit split;
  int n;
};
RowGroups split_among_groups(const Gpu& gpu, int vocab, int n_trees, size_t own_bytes);

/// Says where a block's part of rows and marks lies, without clusters, and where blocks meet.
/// errors   kind internal where `memory` is needed and null
void place_row(RowSplit& split, const Gpu& gpu, size_t data_bytes, void* memory);

/// Device memory that launches of up to max_rows rows need, 0 on Hopper. It must be zero before its
/// first use; they leave its counters at zero. For the work of one stream. Arithmetic alone, so
/// that a memory plan needs no GPU.
size_t row_memory_bytes(const Gpu& gpu, int vocab, int max_rows, int words);

/// errors   kind internal outside 1 <= n <= kMaxTopNCuda, and for n > vocab
void check_top_n(int n, int vocab);

}  // namespace tandem::cuda
