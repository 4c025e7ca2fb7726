#pragma once
// The end of a product of codes: sums of a cluster's blocks become y.
#include "kernels/cuda/cluster.cuh"
#include "kernels/ffn/gate.cuh"
#include "kernels/linear/hopper/coded_share.cuh"

namespace tandem::coded {

/// Addresses of y and the bias for rows m and m + 8 of a tile.
template <class T>
struct Outputs {
  const CodedLinearParams& all;
  bool real[2];
  float bias[2] = {};
  T* to[2];  // for the first row of x

  __device__ Outputs(const CodedLinearParams& given, const Share& share, int tile, int m)
      : all(given) {
    const CodeTiles& w = all.w;
    const int o = w.paired ? tile * 8 + m : tile * kTileOutputs + m;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = o + h * (w.paired ? w.out / 2 : 8);
      real[h] = w.is_output(tile, m + 8 * h);
      if (real[h] && all.product.bias != nullptr) bias[h] = all.product.bias[at];
      to[h] = static_cast<T*>(all.product.y) + int64_t{share.row} * all.y_stride + at;
    }
  }
  __device__ void write(int n, float low, float high) const {
    const int64_t at = int64_t{n} * all.y_stride;
    if (all.product.gated) {
      if (real[0]) put(to[0] + at, cuda::gated(all.product.gate, low, high));
      return;
    }
    if (real[0]) put(to[0] + at, low);
    if (real[1]) put(to[1] + at, high);
  }
  __device__ void put(float* at, float value) const {
    *at = all.product.accumulate ? value + *at : value;
  }
  __device__ void put(__nv_bfloat16* at, float value) const { *at = __float2bfloat16_rn(value); }
};

/// Sends a warp's sums of a row of tiles to the block of the cluster that adds them up, as [parts]
/// [16][pitch].
template <int kSums>
__device__ __forceinline__ void send(const float (&sums)[kSums], const Plan& plan, int part,
                                     int tile, unsigned char* shared, cuda::Barrier& barrier) {
  const int lane = cuda::lane_of(), owner = tile % plan.parts;
  const int slot = tile / plan.parts * plan.parts + part;
  float* const to = reinterpret_cast<float*>(shared + cuda::kSwizzleAtom) +
                    (slot * kTileOutputs + lane / 4) * plan.pitch + lane % 4 * 2;
  const unsigned at = cuda::cluster_address(cuda::shared_address(to), owner);
  const unsigned come = cuda::cluster_address(cuda::shared_address(&barrier), owner);
#pragma unroll
  for (int j = 0; j < kSums; j += 2) {
    const int place = j % 4 / 2 * 8 * plan.pitch + j / 4 * 8;
    if (j / 4 * 8 >= plan.x_rows) continue;
    if (plan.parts > 1)
      cuda::store_async(at + place * 4, sums[j], sums[j + 1], come);
    else
      *reinterpret_cast<float2*>(to + place) = {sums[j], sums[j + 1]};
  }
}

/// Writes y of the rows of tiles that fall to this block among its cluster. A warp takes some rows
/// of x of a row of tiles at a time.
template <class T>
__device__ void store(const CodedLinearParams& all, const Share& share, const Plan& plan,
                      const float* sums) {
  constexpr int kWarps = kMultiply / cuda::kWarp;
  const int warp = cuda::warp_of(), lane = cuda::lane_of(), m = lane % 8;
  const int owned = (share.tiles - share.part + plan.parts - 1) / plan.parts;
  const int each = max(kWarps / max(owned, 1), 1);  // warps for a row of tiles
  const int slot = kTileOutputs * plan.pitch;
  for (int k = warp / each; k < owned; k += kWarps / each) {
    const Outputs<T> outputs(all, share, share.tile + share.part + k * plan.parts, m);
    for (int n = warp % each * 8 + lane / 8 * 2; n < share.rows; n += each * 8) {
      const float* at = sums + k * plan.parts * slot + m * plan.pitch + n;
      float low[2] = {outputs.bias[0], outputs.bias[0]},
            high[2] = {outputs.bias[1], outputs.bias[1]};
      for (int q = 0; q < plan.parts; ++q, at += slot) {
        const float2 a = *reinterpret_cast<const float2*>(at),
                     b = *reinterpret_cast<const float2*>(at + 8 * plan.pitch);
        low[0] += a.x, low[1] += a.y, high[0] += b.x, high[1] += b.y;
      }
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (n + e < share.rows) outputs.write(n + e, low[e], high[e]);
    }
  }
}

}  // namespace tandem::coded
