#pragma once
// Sizes of the Hopper kernel of attention's backward pass with d 256, and its shared memory.
#include "kernels/attention/hopper/backward_shape.cuh"

namespace tandem::hopper {

/// 64 vectors of d 256, 32 KiB.
using WideTile = BackwardVectors<256>;

/// A block is one warpgroup that starts copies and two that compute. First come pieces of 64 keys,
/// whose sums fill the registers of both. One warpgroup computes the shares and dv, the other the
/// shares' gradients and dk. It gets the shares through shared memory: no product is computed
/// twice. Then come pieces of queries, 64 rows of dq a warpgroup, which meet the same keys.
struct WideShape {
  static constexpr int kDim = 256, kGroups = 2, kVectors = 64;
  static constexpr int kTileRows = kGroups * kVectors;  // a tile of the list: two pieces of keys
  static constexpr int kThreads = (kGroups + 1) * cuda::kWarpgroup;
  static constexpr int kTileBytes = sizeof(WideTile);
  static constexpr int kComputeRegisters = 240, kCopyRegisters = 24;
  static constexpr int kStages = 2, kStats = 2 * kStages;
};

/// Barriers of kPlaces tiles that come and go.
template <int kPlaces>
struct TileBarriers {
  cuda::Barrier full[kPlaces], empty[kPlaces];

  __device__ void init(unsigned arrivals, unsigned warps) {
    for (int i = 0; i < kPlaces; ++i) {
      full[i].init(arrivals);
      empty[i].init(warps);
    }
  }
};

struct alignas(1024) WideMemory {
  using Shape = WideShape;
  // A piece of keys has k, v, then q and dout of two steps. The last tile holds shares on their way
  // to the other warpgroup. A piece of queries has q and dout of each group, then k of two steps
  // and v of one.
  WideTile tiles[7];
  // Numbers of queries, by step. A place is free two steps before its next numbers come.
  float lse[Shape::kStats][Shape::kVectors], sums[Shape::kStats][Shape::kVectors];
  // In turn, as in BackwardMemory.
  BackwardPiece pieces[4];
  struct {
    TileBarriers<1> k, v;
    TileBarriers<Shape::kStages> q, dout, shares;
  } of_keys;
  struct {
    TileBarriers<Shape::kGroups> rows;
    TileBarriers<Shape::kStages> k;
    TileBarriers<1> v;
  } of_queries;

  __device__ const BackwardPiece& piece(unsigned n) const { return pieces[n % 4]; }
  /// Shares of a step, [8][thread of a warpgroup].
  __device__ float4* shares(unsigned step) {
    return reinterpret_cast<float4*>(tiles[6]) + step % 2 * (8 * cuda::kWarpgroup);
  }
  __device__ void init_barriers() {
    constexpr unsigned kWarps = 4, kAllWarps = kWarps * Shape::kGroups;
    of_keys.k.init(1, kWarps);
    of_keys.v.init(1, kWarps);
    of_keys.q.init(1 + cuda::kWarp, kAllWarps);  // vectors and, lane by lane, numbers
    of_keys.dout.init(1 + cuda::kWarp, kAllWarps);
    of_keys.shares.init(kWarps, kWarps);
    of_queries.rows.init(1, kWarps);
    of_queries.k.init(1, kAllWarps);
    of_queries.v.init(1, kAllWarps);
    cuda::init_fence();
  }
};

}  // namespace tandem::hopper
