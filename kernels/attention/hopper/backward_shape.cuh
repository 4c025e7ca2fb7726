#pragma once
// Sizes of the Hopper kernel of attention's backward pass and its shared memory.
#include <cuda_bf16.h>

#include "kernels/attention/backward_tiles.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace tandem::hopper {

/// A block is one warpgroup that starts copies and two that compute, 64 rows each: keys or queries
/// (backward_tiles.cuh). Both meet the same columns, 64 at a time.
template <int kDim>
struct BackwardShape {
  static_assert(kDim == 64 || kDim == 128, "a head is one or two rows of 128 bytes");
  static constexpr int kGroups = 2, kRows = 64 * kGroups, kColumns = kPageTokens;
  static constexpr int kThreads = (kGroups + 1) * cuda::kWarpgroup;
  static constexpr int kBlocks = kDim / 64;  // of 64 elements, 128 bytes wide
  static constexpr int kStages = 4;          // of columns in flight
  static constexpr int kRowPlaces = kGroups + 1;
  static constexpr int kTileBytes = kPageTokens * kDim * 2;
  // Of a computing thread: sums of dk and dv kDim, scores and their gradients 64, as operands 32.
  static constexpr int kComputeRegisters = kDim == 128 ? 240 : 232;
  static constexpr int kCopyRegisters = kDim == 128 ? 24 : 40;
};

/// 64 vectors, as [block of 64 elements][vector][64], each row of 128 bytes swizzled.
template <int kDim>
using BackwardVectors = __nv_bfloat16[kDim / 64][kPageTokens * 64];

struct BackwardPiece {
  BackwardBlock block;
  ColumnTiles tiles;
};

template <int kDim>
struct alignas(1024) BackwardMemory {
  using Shape = BackwardShape<kDim>;
  // k and v, or q and dout, of one group and then the other. The place to spare takes the first
  // group's next rows while both compute; the first to be done makes room for the second's.
  BackwardVectors<kDim> rows[Shape::kRowPlaces][2];
  BackwardVectors<kDim> columns[Shape::kStages][2];                                   // the others
  float lse[Shape::kStages][Shape::kColumns], sums[Shape::kStages][Shape::kColumns];  // of queries
  // In turn: one is taken ahead, up to two are computed, and of one results are written. All
  // threads are short of registers and read them here.
  BackwardPiece pieces[4];
  cuda::Barrier taken, columns_copied;
  // Groups use a place in turn, and each waits for all phases of one barrier. With a shared one
  // a group could take its last phase for the next: both have the same parity.
  cuda::Barrier rows_full[Shape::kRowPlaces][Shape::kGroups], rows_empty[Shape::kRowPlaces];
  cuda::Barrier full[Shape::kStages], empty[Shape::kStages];

  __device__ const BackwardPiece& piece(unsigned n) const { return pieces[n % 4]; }
  __device__ void init_barriers() {
    constexpr unsigned kWarps = 4;  // of a group; one thread of each frees what it has read
    taken.init(1);
    columns_copied.init(2);  // by the two warps
    for (int r = 0; r < Shape::kRowPlaces; ++r) {
      for (auto& full_of_group : rows_full[r]) full_of_group.init(1);
      rows_empty[r].init(kWarps);
    }
    for (int s = 0; s < Shape::kStages; ++s) {
      full[s].init(1 + cuda::kWarp);  // vectors and, lane by lane, numbers
      empty[s].init(kWarps * Shape::kGroups);
    }
    cuda::init_fence();
  }
};

/// Place in the ring of stages, which goes on from one piece to the next.
template <int kStages>
struct StageRing {
  unsigned at = 0;
  __device__ int stage() const { return static_cast<int>(at % kStages); }
  /// Of the stage's phase when full; when empty the other one.
  __device__ unsigned parity() const { return at / kStages % 2; }
};

/// The rows of all groups of a piece, then those of the next piece.
template <int kDim>
struct RowRing : StageRing<BackwardShape<kDim>::kRowPlaces> {
  static constexpr unsigned kGroups = BackwardShape<kDim>::kGroups;
  __device__ unsigned piece() const { return this->at / kGroups; }
  __device__ int group() const { return static_cast<int>(this->at % kGroups); }
  /// The parity of rows_full.
  __device__ unsigned full_parity() const {
    return this->at / (BackwardShape<kDim>::kRowPlaces * kGroups) % 2;
  }
};

}  // namespace tandem::hopper
