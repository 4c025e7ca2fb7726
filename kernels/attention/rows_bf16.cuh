#pragma once
// Rows of bf16 in shared memory as the portable matrix instruction's loads take them. S says how
// wide they are (kWidth, kRowBytes) and how many threads a block has (kThreads).
#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem::portable {

/// Rows of S::kWidth columns in shared memory: piece c of 16 bytes of row r lies at c ^ (r % 8), so
/// that eight rows' pieces of one column lie in different banks.
template <class S>
__device__ constexpr uint32_t place(uint32_t row, uint32_t piece) {
  return row * S::kRowBytes + (piece ^ (row % 8)) * 16;
}

/// What a lane adds to the place of 16 rows to load the first 16 of their columns, as four tiles of
/// eight by eight. `pairs`: those of the upper rows first (B operands, two tiles each), else those
/// of the left columns. A lane's row is the same modulo 8 in all its loads, so further columns are
/// reached by xor.
template <class S>
__device__ uint32_t lane_place(bool pairs) {
  const uint32_t lane = threadIdx.x % cuda::kWarp;
  return pairs ? place<S>(lane / 16 * 8 + lane % 8, lane / 8 % 2) : place<S>(lane % 16, lane / 16);
}
/// The same for columns from 16 k on.
template <class S>
__device__ constexpr uint32_t columns_at(uint32_t lane_at, uint32_t k) {
  return (lane_at ^ (k % 4 * 32)) + k / 4 * 128;
}

/// Starts copying kRows rows of `columns` elements, zeros after them and where row_at gives null.
template <class S, int kRows, int kBytes, class RowAt>
__device__ void copy_rows(uint32_t to, int columns, const RowAt& row_at) {
  constexpr unsigned kEach = kBytes / 2, kPieces = S::kWidth / kEach;
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < kRows * kPieces; i += S::kThreads) {
    const unsigned row = i / kPieces, column = i % kPieces * kEach;
    const __nv_bfloat16* from = row_at(static_cast<int>(row));
    cuda::copy_async<kBytes>(to + place<S>(row, column / 8) + column % 8 * 2, from + column,
                             from != nullptr && static_cast<int>(column) < columns);
  }
}
template <class S, int kRows, class RowAt>
__device__ void copy_any_rows(uint32_t to, int columns, bool aligned, const RowAt& row_at) {
  if (aligned)
    copy_rows<S, kRows, 16>(to, columns, row_at);
  else
    copy_rows<S, kRows, 4>(to, columns, row_at);
}

}  // namespace tandem::portable
