#pragma once
// One warp copies tiles of W, and of x, through a ring in shared memory; groups of four warps
// multiply them, 64 weight rows each: W is wgmma's left operand, x its right one, so that few rows
// of x waste nothing. Where there are fewer tiles than multiprocessors, a cluster of blocks shares
// a tile's columns and adds up the sums through each other's shared memory.
//
// Tried on an H200 and not faster: blocks that share the copies of x, or the rows of x and the
// copies of W; stretches of equal length over all tiles, with the sums of divided ones in global
// memory; every tile beginning at another column; weights brought into L2 by the kernel before.
#include <cooperative_groups.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/ffn/gate.cuh"
#include "kernels/linear/tiled_linear.h"

namespace tandem::tiled {

inline constexpr int kChunk = 64;  // columns in a stage: a swizzled row
inline constexpr int kMaxStages = 24;

/// kGroups groups of 64 weight rows, at most kRows rows of x.
template <int kGroups, int kRows>
struct Tile {
  static constexpr int kOut = kGroups * 64;
  static constexpr int kThreads = kGroups * cuda::kWarpgroup;  // that multiply
  static constexpr int kWeightBytes = kOut * kChunk * 2, kInputBytes = kRows * kChunk * 2;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  // Sums lie as [kRows, kPitch]: lanes of a warp that hold four rows and eight outputs then write
  // to 32 different banks.
  static constexpr int kPitch = kOut + 4;
};

struct Barriers {
  cuda::Barrier full[kMaxStages], empty[kMaxStages];
};

/// The ring: stages that are filled and read in turn. The barriers lie before it, in a separate
/// atom, and when all is done the sums take its place.
struct Ring {
  unsigned char* memory;
  Barriers* barriers;
  int stages;
};

/// What a block has to do.
struct Part {
  int tile, number;  // of the parts of that tile
  int begin, end;    // chunks of columns

  __device__ Part(const TiledLinearParams& p, int block) {
    const int parts = p.tiling.parts, chunks = (p.in + kChunk - 1) / kChunk;
    tile = block / parts;
    number = block % parts;
    begin = chunks * number / parts;
    end = chunks * (number + 1) / parts;
  }
};

template <class Shape>
__device__ void copy_weights(unsigned char* stage, const CUtensorMap& map, cuda::Barrier& full,
                             const TiledLinearParams& p, int tile, int chunk, uint64_t policy) {
  full.arrive_expecting(Shape::kStageBytes);
  if (!p.gated) return cuda::tma_load(stage, map, full, chunk * kChunk, tile * Shape::kOut, policy);
  // Gates and what they gate, one after the other.
  constexpr int kHalf = Shape::kOut / 2;
  for (int half = 0; half < 2; ++half)
    cuda::tma_load(stage + half * Shape::kWeightBytes / 2, map, full, chunk * kChunk,
                   half * (p.out / 2) + tile * kHalf, policy);
}

/// The copying thread.
template <class Shape>
__device__ void copy(const Ring& ring, const TiledLinearParams& p, const Part& part,
                     const CUtensorMap& w_map, const CUtensorMap& x_map) {
  const uint64_t policy = cuda::read_once_policy();
  const auto weights = [&](int stage, int chunk) {
    copy_weights<Shape>(ring.memory + stage * Shape::kStageBytes, w_map, ring.barriers->full[stage],
                        p, part.tile, chunk, policy);
  };
  const auto input = [&](int stage, int chunk) {
    cuda::tma_load(ring.memory + stage * Shape::kStageBytes + Shape::kWeightBytes, x_map,
                   ring.barriers->full[stage], chunk * kChunk, 0);
  };
  const int first = min(part.end - part.begin, ring.stages);
  for (int i = 0; i < first; ++i) weights(i, part.begin + i);
  cuda::wait_for_previous();
  for (int i = 0; i < first; ++i) input(i, part.begin + i);
  cuda::Turn turn;
  for (int chunk = part.begin + first; chunk < part.end; ++chunk, turn.advance(ring.stages)) {
    ring.barriers->empty[turn.stage].wait(turn.parity);
    weights(turn.stage, chunk);
    input(turn.stage, chunk);
  }
  cuda::release_next();
}

/// What the multiplying groups do: this block's part of the sums, as [kRows, kPitch] in the ring.
template <class Shape, int kRows>
__device__ void multiply(const Ring& ring, const Part& part) {
  float acc[kRows / 2];
  const int group = static_cast<int>(threadIdx.x) / cuda::kWarpgroup;
  const int lane = threadIdx.x % cuda::kWarp;
  cuda::Turn turn;
  int last = 0;  // stage
  for (int chunk = part.begin; chunk < part.end; ++chunk) {
    const unsigned stage = cuda::shared_address(ring.memory + turn.stage * Shape::kStageBytes);
    const uint64_t w = cuda::wgmma_operand(stage + group * 64 * kChunk * 2, 0);
    const uint64_t x = cuda::wgmma_operand(stage + Shape::kWeightBytes, 0);
    ring.barriers->full[turn.stage].wait(turn.parity);
    cuda::wgmma_begin();
#pragma unroll
    for (int step = 0; step < kChunk / 16; ++step)  // 16 columns are 32 bytes
      cuda::wgmma_ss(acc, w + 2 * step, x + 2 * step, chunk - part.begin + step > 0);
    cuda::wgmma_commit();
    cuda::wgmma_wait<1>();
    if (chunk > part.begin && lane == 0) ring.barriers->empty[last].arrive();
    last = turn.stage;
    turn.advance(ring.stages);
  }
  cuda::wgmma_wait<0>();
  cuda::wgmma_done(acc);
  cuda::named_sync(1, Shape::kThreads);  // no thread reads the ring any more
  float* sums = reinterpret_cast<float*>(ring.memory);
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  const int out = warp * 16 + lane / 4, row = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      sums[(8 * j + row + e % 2) * Shape::kPitch + out + e / 2 * 8] = acc[4 * j + e];
}

__device__ inline void add(float4& to, const float4& v) {
  to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w;
}

/// Four neighbouring sums of this block, with those of the others that have parts of its tile.
__device__ inline float4 total(const float* mine, int parts) {
  if (parts == 1) return *reinterpret_cast<const float4*>(mine);
  const auto cluster = cooperative_groups::this_cluster();
  float4 sum{0, 0, 0, 0};
  for (int q = 0; q < parts; ++q)
    add(sum,
        *reinterpret_cast<const float4*>(cluster.map_shared_rank(mine, static_cast<unsigned>(q))));
  return sum;
}

/// Writes those rows of y that fall to this block among the parts of its tile.
template <class Shape>
__device__ void store(const float* sums, const TiledLinearParams& p, const Part& part) {
  constexpr int kEach = 4;  // outputs of a thread
  const int parts = p.tiling.parts;
  const int width = p.gated ? p.out / 2 : p.out;
  const int tile_width = p.gated ? Shape::kOut / 2 : Shape::kOut;
  const int threads_a_row = tile_width / kEach, thread = static_cast<int>(threadIdx.x);
  const int column = thread % threads_a_row * kEach, o = part.tile * tile_width + column;
  if (o >= width) return;
  const auto bias = [&](int at) {
    return p.bias == nullptr ? float4{0, 0, 0, 0} : *reinterpret_cast<const float4*>(p.bias + at);
  };
  const float4 b = bias(o), b_up = p.gated ? bias(width + o) : float4{0, 0, 0, 0};
  for (int row = thread / threads_a_row * parts + part.number; row < p.rows;
       row += Shape::kThreads / threads_a_row * parts) {
    const float* at_row = sums + row * Shape::kPitch + column;
    float4 v = total(at_row, parts);
    add(v, b);
    if (p.gated) {
      float4 up = total(at_row + tile_width, parts);
      add(up, b_up);
      v = {cuda::gated(p.gate, v.x, up.x), cuda::gated(p.gate, v.y, up.y),
           cuda::gated(p.gate, v.z, up.z), cuda::gated(p.gate, v.w, up.w)};
    }
    const int64_t at = static_cast<int64_t>(row) * width + o;
    if (p.y_type == DType::bf16) {
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.y) + at) = {
          cuda::pack_bf16(v.x, v.y), cuda::pack_bf16(v.z, v.w)};
    } else {
      auto* to = reinterpret_cast<float4*>(static_cast<float*>(p.y) + at);
      if (p.accumulate) add(v, *to);
      *to = v;
    }
  }
}

template <int kGroups, int kRows>
__global__ void __launch_bounds__(kGroups* cuda::kWarpgroup + cuda::kWarp, 1)
    tiled_linear(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map, const TiledLinearParams p,
                 const int stages) {
  using Shape = Tile<kGroups, kRows>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Ring ring{.memory = shared + cuda::kSwizzleAtom,
                  .barriers = reinterpret_cast<Barriers*>(shared),
                  .stages = stages};
  const Part part(p, static_cast<int>(blockIdx.x));
  const bool copies = threadIdx.x / cuda::kWarp == kGroups * 4;
  if (copies && threadIdx.x % cuda::kWarp == 0) {
    cuda::tma_prefetch_map(w_map);
    cuda::tma_prefetch_map(x_map);
    for (int s = 0; s < stages; ++s) {
      ring.barriers->full[s].init(1);
      ring.barriers->empty[s].init(kGroups * 4);
    }
    cuda::init_fence();
  }
  __syncthreads();
  if (copies) {
    if (threadIdx.x % cuda::kWarp == 0) copy<Shape>(ring, p, part, w_map, x_map);
    __syncwarp();
  } else {
    multiply<Shape, kRows>(ring, part);
    cuda::wait_for_previous();  // y, too, is another's until then
  }
  // Sums of parts are read by each other's blocks: then no block leaves before all are done.
  const auto cluster = cooperative_groups::this_cluster();
  if (p.tiling.parts > 1)
    cluster.sync();
  else
    __syncthreads();
  if (!copies) store<Shape>(reinterpret_cast<const float*>(ring.memory), p, part);
  if (p.tiling.parts > 1) cluster.sync();
}

}  // namespace tandem::tiled
