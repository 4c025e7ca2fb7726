#pragma once
#include "kernels/attention/attention.h"

namespace tandem {

/// The host's knowledge of a call whose lengths lie in device memory: upper bounds that size the
/// grid.
struct AttentionRows {
  int n_rows;          // of the batch, at least row_begin[n_seqs]; q has room for as many
  int max_rows_a_seq;  // of one sequence
  int max_tokens;      // of one sequence, new rows included
};

namespace portable {
/// Attention of many rows a sequence (prefill, chunks of it, trees) on a GPU: the contract of
/// attention.h with every pointer in device memory, for even d <= 256. Work is divided over rows
/// and heads only, so a few rows against many keys leave the GPU idle: those are decode's work.
/// numerics as there for both dtypes; bits do not depend on batch or chunking. Empty set: out = 0,
///          lse = -inf. Slots that are not written yet may hold anything, NaN included
/// cost     4*d flops a visible (query, key) pair and no more than two tiles of 128 keys a tile of
///          rows beyond that; bf16 with d 64, 128 or 256 and 16-byte aligned q and pools is fastest
void attention_many_rows_cuda(const AttentionParams&, const AttentionRows&, Stream);
}  // namespace portable
namespace hopper {
/// The same, with bf16 chains of d 64 and 128 on Hopper's own matrix and copy engines.
/// errors   kind device: the driver cannot describe the tensors to the copy engine
void attention_many_rows_cuda(const AttentionParams&, const AttentionRows&, Stream);
}  // namespace hopper

}  // namespace tandem
