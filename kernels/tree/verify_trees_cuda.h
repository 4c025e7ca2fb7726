#pragma once
#include "kernels/tree/verify_trees.h"

namespace tandem {

/// The largest vocabulary for verification by residuals: 16 blocks of a cluster keep three words a
/// token in shared memory.
inline constexpr int kMaxVerifyVocabCuda = 16 * 512 * 33;

/// Pointers into device memory. A recorded launch may be repeated with other positions
/// and another seed.
struct VerifyTreesCudaParams {
  VerifyTreesParams trees;  // coin and uniform are not used: the numbers are made here. workspace:
                            // row_memory_bytes(V, n_seqs, 3), for this stream; null where 0
  const int32_t* sequence;  // [B], names the random numbers, with nodes, seed and
  const int32_t* position;  // [B] tokens committed when the round begins, the root included
  const uint64_t* seed;     // [1]
};

/// verify_trees on a GPU: the contract of verify_trees.h with the numbers of round_numbers.h, and
/// the very path, bonus and n_rounded of the CPU; logprobs as sample_cuda.
/// layout   rows contiguous; those that are multiples of 16 bytes are read faster
/// cost     a group of blocks a sequence reads the rows of the nodes it visits once
/// errors   kind internal above kMaxVocabCuda, on Hopper by residual above kMaxVerifyVocabCuda
namespace portable {
void verify_trees_cuda(const VerifyTreesCudaParams&, Stream);
}
namespace hopper {
void verify_trees_cuda(const VerifyTreesCudaParams&, Stream);
}

}  // namespace tandem
