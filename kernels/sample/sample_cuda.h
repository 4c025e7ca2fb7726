#pragma once
#include "kernels/sample/sample.h"

namespace tandem {

/// The largest vocabulary that the kernels below take: eight parts of a row in shared memory.
inline constexpr int kMaxVocabCuda = 8 * 512 * 95;
/// The largest n of top_n_cuda.
inline constexpr int kMaxTopNCuda = 64;

/// top_n and sample on a GPU: the contracts of sample.h with pointers into device memory, and the
/// very tokens that the CPU draws. Of a meaningless row, logprobs and lse are NaN. The workspace is
/// of row_memory_bytes(V, n_rows, 1) of row_split.h, for this stream; null where that is 0.
/// layout   rows contiguous; those that are multiples of 16 bytes are read faster
/// cost     reads n_rows * V * 4 bytes once; the rest happens in shared memory
/// errors   kind internal above kMaxVocabCuda and kMaxTopNCuda
namespace portable {
void top_n_cuda(const TopNParams&, Stream);
void sample_cuda(const SampleParams&, Stream);
}  // namespace portable

namespace hopper {
void top_n_cuda(const TopNParams&, Stream);
void sample_cuda(const SampleParams&, Stream);
}  // namespace hopper

}  // namespace tandem
