#pragma once
// What the bodies of skinny_linear share. A block's eight warps take 16 rows of W at a time, and of
// their columns the chunks of 64 in turn. Each lane copies what it will multiply, and only that,
// into its own part of a ring in shared memory: no barrier stands between load and use, and the
// ring runs on from tile to tile, so that the memory never idles. W is the left operand of m16n8k16
// and x, padded to 8 or 16 rows, the right one. The order of columns inside a product is free as
// long as both sides agree: lane t of a row takes 8 neighbouring columns where the instruction's
// layout names two pairs, so that all loads are of 16 bytes. It is the same in all bodies, and so
// are the bits.
#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/ffn/gate.cuh"
#include "kernels/linear/skinny_linear.h"

namespace tandem::skinny {

using bf16x = __nv_bfloat16;

constexpr int kWarps = 8, kThreads = kWarps * cuda::kWarp;
constexpr int kTileRows = 16;  // weight rows that a block takes together
constexpr int kChunk = 64;     // columns that a warp takes together
constexpr int kChunkBytes = kTileRows * kChunk * 2;
constexpr int kStageBytes = kWarps * kChunkBytes;
constexpr int kStep = kWarps * kChunk;  // columns that the warps take together
// Rows of x in shared memory lie half of the 32 banks apart: a quarter warp reads two of them.
constexpr int kPitchPad = 32;
// The system keeps 1 KiB of an SM's shared memory for each block; block_sum has some, too.
constexpr int kReservedBytes = 1024 + 256;
// Norm weights that a thread holds before x is there: of rows up to 4096 all.
constexpr int kNormKept = 4;

__host__ __device__ constexpr int padded(int in) { return (in + kChunk - 1) / kChunk * kChunk; }
__host__ __device__ constexpr int pitch_of(int in) { return padded(in) + kPitchPad; }
__host__ __device__ constexpr int tiles_of(const SkinnyLinearParams& p) {
  return p.gated ? (p.out / 2 + 7) / 8 : (p.out + kTileRows - 1) / kTileRows;
}
/// Sums of a tile, one set a warp, two sets so that one is read while the next is written.
__host__ __device__ constexpr int part_floats(int rows) { return kTileRows * rows; }
__host__ __device__ constexpr int parts_bytes(int rows) {
  return 2 * kWarps * part_floats(rows) * 4;
}

__device__ inline void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The lane's copies of W, some steps ahead of its products.
struct Loader {
  const SkinnyLinearParams& p;
  int steps, tiles;
  int warp, g, t;
  unsigned ring;  // shared address of the lane's first piece
  int tile, step = 0;
  const bf16x* low = nullptr;
  const bf16x* high = nullptr;

  __device__ const bf16x* row(int r) const {
    return reinterpret_cast<const bf16x*>(p.w) + static_cast<int64_t>(min(r, p.out - 1)) * p.in;
  }
  __device__ void issue(int stage) {
    if (tile < tiles && steps > 0) {
      if (step == 0) {
        low = row(p.gated ? tile * 8 + g : tile * kTileRows + g);
        high = row(p.gated ? p.out / 2 + tile * 8 + g : tile * kTileRows + g + 8);
      }
      const unsigned slot = ring + stage * kStageBytes;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = (step * kWarps + warp) * kChunk + h * 32 + t * 8;
        const int at = min(k, p.in - 8);
        cuda::copy_async<16>(slot + h * 1024, low + at, k < p.in);  // zeros after the last column
        cuda::copy_async<16>(slot + h * 1024 + 512, high + at, k < p.in);
      }
      if (++step == steps) {
        step = 0;
        tile += gridDim.x;
        // Blocks of the next kernel come when this one's end. Before the last tile they could not
        // have, and their launch takes a while.
        if (tile + static_cast<int>(gridDim.x) >= tiles) cuda::release_next();
      }
    }
    cuda::copies_commit();
  }
};

/// The first norm weights of this thread, of kBlock; no kernel writes them.
template <int kBlock = kThreads>
__device__ inline void keep_norm(const SkinnyLinearParams& p, float4 (&kept)[kNormKept]) {
  for (int j = 0; j < kNormKept; ++j)
    if (const int k = (threadIdx.x + j * kBlock) * 4; k < p.in)
      kept[j] = *reinterpret_cast<const float4*>(p.norm_weight + k);
}

/// Leaves columns in their order.
struct InOrder {
  __device__ static void place(bf16x* row, int k, uint2 four) {
    *reinterpret_cast<uint2*>(row + k) = four;
  }
};

/// x normalised by its root mean square, as [rows, pitch] in shared memory.
template <class Order = InOrder, int kBlock = kThreads>
__device__ inline void load_normalised(const SkinnyLinearParams& p, bf16x* x, int pitch,
                                       const float4 (&kept)[kNormKept]) {
  for (int n = 0; n < p.rows; ++n) {
    const float* row = static_cast<const float*>(p.x) + static_cast<int64_t>(n) * p.in;
    float sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < p.in; i += kBlock * 4) {
      const float4 v = *reinterpret_cast<const float4*>(row + i);
      sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
    }
    const float mean = cuda::block_sum<kBlock>(sum) / static_cast<float>(p.in);
    const float scale = 1.0f / sqrtf(mean + p.norm_eps);
    const auto write = [&](int k, const float4& w) {
      const float4 v = *reinterpret_cast<const float4*>(row + k);
      const __nv_bfloat162 a = __floats2bfloat162_rn(v.x * scale * w.x, v.y * scale * w.y);
      const __nv_bfloat162 b = __floats2bfloat162_rn(v.z * scale * w.z, v.w * scale * w.w);
      uint2 packed;
      packed.x = *reinterpret_cast<const unsigned*>(&a);
      packed.y = *reinterpret_cast<const unsigned*>(&b);
      Order::place(x + n * pitch, k, packed);
    };
    const int first = threadIdx.x * 4;
#pragma unroll
    for (int j = 0; j < kNormKept; ++j)
      if (const int k = first + j * kBlock * 4; k < p.in) write(k, kept[j]);
#pragma unroll 4
    for (int k = first + kNormKept * kBlock * 4; k < p.in; k += kBlock * 4)
      write(k, *reinterpret_cast<const float4*>(p.norm_weight + k));
  }
  __syncthreads();
}

/// Writes y for row n of x and output o: what was computed, and what it is added to.
__device__ inline void store(const SkinnyLinearParams& p, int n, int o, float value, float before) {
  const int64_t at = static_cast<int64_t>(n) * (p.gated ? p.out / 2 : p.out) + o;
  if (p.y_type == DType::bf16)
    static_cast<bf16x*>(p.y)[at] = __float2bfloat16_rn(value);
  else
    static_cast<float*>(p.y)[at] = value + before;
}

/// What one warp does with a finished tile. Lane and i stand for weight row m = lane % 16 of the
/// tile and row 2 i + lane / 16 of x.
template <int kGroups>
struct Finish {
  static constexpr int kEach = kGroups * 4;
  const SkinnyLinearParams& p;
  int lane, m = lane % kTileRows;
  float before[kEach] = {};

  __device__ int row_of(int i) const { return 2 * i + lane / kTileRows; }
  /// The output of this lane in a tile; with `gated` of its second half what the first gates.
  __device__ int output_of(int tile) const {
    if (!p.gated) return tile * kTileRows + m;
    return tile * 8 + m % 8 + (m >= 8 ? p.out / 2 : 0);
  }
  /// Reads what the tile is to be added to, early.
  __device__ void begin(int tile) {
    const int o = output_of(tile);
    if (!p.accumulate) return;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (row_of(i) < p.rows && o < p.out)
        before[i] = static_cast<const float*>(p.y)[static_cast<int64_t>(row_of(i)) * p.out + o];
  }
  __device__ void end(int tile, const float* parts) {
    const int each = part_floats(p.rows), o = output_of(tile);
    const bool real = p.gated ? tile * 8 + m % 8 < p.out / 2 : o < p.out;
    const float b = real && p.bias != nullptr ? p.bias[o] : 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (2 * i >= p.rows) break;
      const bool mine = real && row_of(i) < p.rows;
      float sum = 0;
      if (mine)
        for (int w = 0; w < kWarps; ++w) sum += parts[w * each + i * 32 + lane];
      sum += b;
      const float up = p.gated ? __shfl_down_sync(cuda::kAllLanes, sum, 8) : 0;
      if (!mine || (p.gated && m >= 8)) continue;
      store(p, row_of(i), o, p.gated ? cuda::gated(p.gate, sum, up) : sum, before[i]);
    }
  }
};

/// Columns of x that lane t of a row multiplies in a step, of rows g and g + 8.
template <int kGroups>
struct Pieces {
  uint4 at[2][kGroups];

  /// x: the lane's row, null if there is none; `column`: the lane's first of the step.
  __device__ void load(const bf16x* const (&x)[kGroups], int column, int in) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        at[h][j] = {0, 0, 0, 0};
        if (const int k = column + h * 32; x[j] != nullptr && k < in)
          at[h][j] = *reinterpret_cast<const uint4*>(x[j] + k);
      }
  }
};

/// Sums of a warp over its columns, of tile rows g and g + 8 and of rows 8 j + 2 t (+ 1) of x.
template <int kGroups>
struct Sums {
  float at[kGroups][4] = {};

  /// Adds the products of a stage of weights.
  /// slot     the lane's first piece of it
  /// piece    (h, j): of x, 8 columns from 32 h on of row g + 8 j
  template <class Piece>
  __device__ __forceinline__ void add(const unsigned char* slot, const Piece& piece) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 lo = *reinterpret_cast<const uint4*>(slot + h * 1024);
      const uint4 hi = *reinterpret_cast<const uint4*>(slot + h * 1024 + 512);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const uint4 x = piece(h, j);
        multiply(at[j], lo.x, hi.x, lo.y, hi.y, x.x, x.y);
        multiply(at[j], lo.z, hi.z, lo.w, hi.w, x.z, x.w);
      }
    }
  }

  /// Leaves them where Finish adds them up: [rows, kTileRows].
  __device__ void put(float* part, int rows, int g, int t) const {
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (const int n = 8 * j + 2 * t + i % 2; n < rows)
          part[n * kTileRows + g + i / 2 * 8] = at[j][i];
  }
};

}  // namespace tandem::skinny
