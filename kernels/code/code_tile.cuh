#pragma once
// Sums by signs of the codes of 16 keys for up to four queries, by a warp's tensor cores
// (device_codes.h).
#include <type_traits>

#include "base/log2.h"
#include "kernels/code/coded_list.cuh"
#include "kernels/code/tail_means.h"
#include "kernels/cuda/reduce.cuh"

namespace tandem::coded {

inline constexpr int kTile = 16;  // keys
inline constexpr int kGroupTiles = kCodeKeys / kTile;
using cuda::lane_of;
using cuda::warp_of;

/// Where a lane stands in a tile's result: key 8 (lane / 2 % 2) + lane / 4 of the tile, for queries
/// 2 (lane % 2) and the next.
__device__ inline int key_of_lane() { return lane_of() / 2 % 2 * 8 + lane_of() / 4; }
__device__ inline int query_of_lane() { return lane_of() % 2 * 2; }

// Sums begin at this number's bits, so that as floats they are it plus the sum: below 2^22, since
// 2^7 times 256 coordinates of at most 127 are.
inline constexpr float kFloatOffset = 12582912.0f;  // 1.5 * 2^23

/// Adds 2^tile times the whole numbers at the set bits of a tile, under 32 coordinates; the first
/// time to sums of nothing.
template <bool kFirst>
__device__ void add_signs(int (&c)[4], const uint4& words, int tile, uint32_t q0, uint32_t q1) {
  const uint32_t mask = 0x01010101u << tile;
  const uint32_t a[4] = {words.x & mask, words.y & mask, words.z & mask, words.w & mask};
  const int none = __float_as_int(kFloatOffset);
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%10, %11, %12, %13};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(q0), "r"(q1), "r"(kFirst ? none : c[0]),
        "r"(kFirst ? none : c[1]), "r"(kFirst ? none : c[2]), "r"(kFirst ? none : c[3]));
}
/// The lane's two sums, as floats. Half of the columns are no query's: their lanes take over the
/// upper keys.
__device__ inline float2 sums_of(const int (&c)[4]) {
  const int x = __shfl_xor_sync(cuda::kAllLanes, c[2], 2),
            y = __shfl_xor_sync(cuda::kAllLanes, c[3], 2);
  const bool upper = (lane_of() & 2) != 0;
  return {__int_as_float(upper ? x : c[0]) - kFloatOffset,
          __int_as_float(upper ? y : c[1]) - kFloatOffset};
}
/// What a key's pair of bytes says.
__device__ inline float scale_of(uint32_t pair) { return code_scale(static_cast<uint8_t>(pair)); }
__device__ inline float share_of(uint32_t pair) {
  return static_cast<float>(static_cast<int8_t>(pair >> 8));
}
/// 2 / 2^tile.
__device__ inline float twice_less(int tile) { return __int_as_float((128 - tile) << 23); }

/// What the lane knows of its two queries.
struct LaneQueries {
  float sign_gain[2], axis_gain[2], total[2];

  /// Of n queries; others score nothing.
  __device__ LaneQueries(const DeviceCodeQuery* queries, int n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = query_of_lane() + i;
      const bool there = at < n;
      sign_gain[i] = there ? queries[at].sign_gain : 0.0f;
      axis_gain[i] = there ? queries[at].axis_gain : 0.0f;
      total[i] = there ? queries[at].total : 0.0f;
    }
  }
  /// The lane's scores of a tile, from what its sums hold. Compiled without contraction.
  __device__ float2 scores(const int (&c)[4], float twice, float scale, float share) const {
    const float2 sum = sums_of(c);
    return {fmaf(sum.x, twice, -total[0]) * sign_gain[0] * scale + axis_gain[0] * share,
            fmaf(sum.y, twice, -total[1]) * sign_gain[1] * scale + axis_gain[1] * share};
  }
};

/// Word w of the whole numbers of the query in column lane / 4, four coordinates; zeros beyond n.
__device__ inline uint32_t query_word(const int8_t* q, int dims, int n, int w) {
  const int column = lane_of() / 4;
  if (column >= n) return 0;
  return reinterpret_cast<const uint32_t*>(q + column * dims)[w];
}

/// The lane's two scores of a tile of a group, for any dims. q: [n, dims].
__device__ inline float2 score_tile(const uint8_t* group, int tile, int dims, const int8_t* q,
                                    int n, const LaneQueries& lane) {
  const uint8_t* scales = group + 16 * dims + device_scale_place(tile * kTile + key_of_lane());
  const uint16_t pair = *reinterpret_cast<const uint16_t*>(scales);
  const auto* const words = reinterpret_cast<const uint4*>(group) + lane_of();
  const auto of_query = [&](int j, int half) {
    return query_word(q, dims, n, j * 8 + half * 4 + lane_of() % 4);
  };
  int c[4];
  std::fill_n(c, 4, __float_as_int(kFloatOffset));
  constexpr int kAhead = 4;  // steps that are read before any is used
#pragma unroll 1
  for (int first = 0; first < dims / kCodeDims; first += kAhead) {
    const int steps = dims / kCodeDims - first;
    uint4 read[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (j < steps) read[j] = words[(first + j) * cuda::kWarp];
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (j < steps)
        add_signs<false>(c, read[j], tile, of_query(first + j, 0), of_query(first + j, 1));
  }
  return lane.scores(c, twice_less(tile), scale_of(pair), share_of(pair));
}

/// Stores a pair of words. Without a branch: most of a warp's lanes keep some key of a group, few
/// the same one.
__device__ inline void store_if(bool wanted, void* to, uint32_t x, uint32_t y) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.v2.b32 [%1], {%2, %3}; }" ::"r"(
                   wanted ? 1 : 0),
               "l"(to), "r"(x), "r"(y)
               : "memory");
}

/// Calls f with the number of steps of 32 coordinates as a constant.
template <int kSteps, class F>
void with_steps(int steps, const F& f) {
  if constexpr (kSteps * kCodeDims < kMostDims)
    if (steps != kSteps) return with_steps<kSteps + 1>(steps, f);
  f(std::integral_constant<int, kSteps>{});
}

/// What a lane reads of a group.
template <int kSteps>
struct GroupWords {
  uint4 signs[kSteps], pairs[2];  // scales and shares of the 16 keys that equal lane / 4 modulo 8

  __device__ void load(const uint8_t* group) {
    const auto* at = reinterpret_cast<const uint4*>(group);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) signs[j] = at[j * cuda::kWarp + lane_of()];
    for (int i = 0; i < 2; ++i) pairs[i] = at[kSteps * cuda::kWarp + lane_of() / 4 * 2 + i];
  }
  /// Calls take(tile, scores) for the tiles in turn.
  template <class Take>
  __device__ void score(const uint32_t (&q)[kSteps][2], const LaneQueries& lane,
                        const Take& take) const {
    const uint32_t of_tile[kGroupTiles] = {pairs[0].x, pairs[0].y, pairs[0].z, pairs[0].w,
                                           pairs[1].x, pairs[1].y, pairs[1].z, pairs[1].w};
    const int half = lane_of() / 2 % 2 * 16;
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      int c[4];
      add_signs<true>(c, signs[0], tile, q[0][0], q[0][1]);
#pragma unroll
      for (int j = 1; j < kSteps; ++j) add_signs<false>(c, signs[j], tile, q[j][0], q[j][1]);
      const uint32_t pair = of_tile[tile] >> half;
      take(tile, lane.scores(c, twice_less(tile), scale_of(pair), share_of(pair)));
    }
  }
};

}  // namespace tandem::coded
