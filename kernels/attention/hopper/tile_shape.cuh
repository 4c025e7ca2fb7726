#pragma once
// Sizes of the Hopper prefill kernel and its shared memory.
#include <cuda_bf16.h>

#include "kernels/attention/hopper/schedule.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace tandem::hopper {

/// A block is one warpgroup that starts copies and kGroups that compute, 64 queries each. All of
/// these share the tiles of keys, so that one byte read from L2 serves 64 * kGroups queries.
template <int kDim>
struct TileShape {
  static_assert(kDim == 64 || kDim == 128 || kDim == 256, "a head is whole rows of 128 bytes");
  // A tile has two pages, or one at d 256, whose sums leave registers for half as many scores.
  static constexpr int kPages = kDim == 256 ? 1 : 2, kKeys = kPages * kPageTokens;
  // Registers of a computing thread: scores kKeys / 2, sums kDim / 2, probabilities kKeys / 4,
  // about 40 others. Two groups may have 232 next to the copying one's 40 or 240 next to 24, three
  // 160. The third hides more of the softmax, whose share is twice as large at d 64 as at d 128.
  static constexpr int kGroups = kDim == 64 ? 3 : 2;
  static constexpr int kComputeRegisters = kDim == 64 ? 160 : kDim == 128 ? 232 : 240;
  static constexpr int kCopyRegisters = kDim == 64 ? 32 : kDim == 128 ? 40 : 24;
  static constexpr int kThreads = (kGroups + 1) * cuda::kWarpgroup;
  static constexpr int kQueries = 64 * kGroups;
  static constexpr int kColumns = kDim / 64;          // blocks of 64 columns, 128 bytes wide
  static constexpr int kStages = kDim == 64 ? 4 : 2;  // tiles of K, and of V, in flight
  static constexpr int kTileBytes = kKeys * kDim * 2;
  static constexpr int kQueryBytes = 64 * kDim * 2;  // of one group
};

/// Tiles are [block of 64 columns][row][64], each row of 128 bytes swizzled.
template <int kDim>
struct alignas(1024) TileMemory {
  using Shape = TileShape<kDim>;
  __nv_bfloat16 q[Shape::kGroups][Shape::kColumns][64 * 64];
  __nv_bfloat16 k[Shape::kStages][Shape::kColumns][Shape::kKeys * 64];
  __nv_bfloat16 v[Shape::kStages][Shape::kColumns][Shape::kKeys * 64];
  cuda::Barrier q_full[Shape::kGroups], q_empty[Shape::kGroups];
  cuda::Barrier k_full[Shape::kStages], k_empty[Shape::kStages];
  cuda::Barrier v_full[Shape::kStages], v_empty[Shape::kStages];
  int tiles_before[kMaxSeqs + 1];

  __device__ static TileMemory& at(unsigned char* memory) {
    const uint32_t misaligned = cuda::shared_address(memory) % 1024;
    return *reinterpret_cast<TileMemory*>(memory + (misaligned == 0 ? 0 : 1024 - misaligned));
  }
  __device__ void init_barriers() {
    constexpr unsigned kWarps = 4;  // of a group; one thread of each frees what it has read
    for (int g = 0; g < Shape::kGroups; ++g) {
      q_full[g].init(1);
      q_empty[g].init(kWarps);
    }
    for (int s = 0; s < Shape::kStages; ++s) {
      k_full[s].init(1);
      v_full[s].init(1);
      k_empty[s].init(kWarps * Shape::kGroups);
      v_empty[s].init(kWarps * Shape::kGroups);
    }
    cuda::init_fence();
  }
};

/// Place in a ring of stages: the n-th tile uses stage n % kStages and waits for that stage's n /
/// kStages-th phase.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  __device__ void step() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace tandem::hopper
