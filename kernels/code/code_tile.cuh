#pragma once
// Sums by signs of the codes of 16 keys for up to four queries, by a warp's tensor cores
// (device_codes.h).
#include "kernels/code/choose_coded.h"
#include "kernels/code/tail_means.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/gather/list_rows.cuh"

namespace tandem::coded {

inline constexpr int kQuad = 4;   // queries of a warp: heads of one KV head
inline constexpr int kTile = 16;  // keys
inline constexpr int kGroupTiles = kCodeKeys / kTile;
inline constexpr float kLog2E = 1.44269504f;

__device__ inline int lane_of() { return static_cast<int>(threadIdx.x) % cuda::kWarp; }
__device__ inline int warp_of() { return static_cast<int>(threadIdx.x) / cuda::kWarp; }

/// Where a lane stands in a tile's result: key 8 (lane / 2 % 2) + lane / 4 of the tile, for queries
/// 2 (lane % 2) and the next.
__device__ inline int key_of_lane() { return lane_of() / 2 % 2 * 8 + lane_of() / 4; }
__device__ inline int query_of_lane() { return lane_of() % 2 * 2; }

// Sums begin at this number's bits, so that as floats they are it plus the sum: below 2^22, since
// 2^7 times 256 coordinates of at most 127 are.
inline constexpr float kFloatOffset = 12582912.0f;  // 1.5 * 2^23

__device__ inline void mma_u8s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Adds 2^tile times the whole numbers at the set bits of a tile, under 32 coordinates.
__device__ inline void add_signs(int (&c)[4], const uint4& words, int tile, uint32_t q0,
                                 uint32_t q1) {
  const uint32_t mask = 0x01010101u << tile;
  const uint32_t a[4] = {words.x & mask, words.y & mask, words.z & mask, words.w & mask};
  mma_u8s8(c, a, q0, q1);
}
__device__ inline void begin_sums(int (&c)[4]) {
  c[0] = c[1] = c[2] = c[3] = __float_as_int(kFloatOffset);
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
  int c[4];
  begin_sums(c);
#pragma unroll 4
  for (int j = 0; j < dims / kCodeDims; ++j) {
    const int w = j * 8 + lane_of() % 4;
    add_signs(c, reinterpret_cast<const uint4*>(group + j * 512)[lane_of()], tile,
              query_word(q, dims, n, w), query_word(q, dims, n, w + 4));
  }
  return lane.scores(c, twice_less(tile), scale_of(pair), share_of(pair));
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
      begin_sums(c);
#pragma unroll
      for (int j = 0; j < kSteps; ++j) add_signs(c, signs[j], tile, q[j][0], q[j][1]);
      const uint32_t pair = of_tile[tile] >> half;
      take(tile, lane.scores(c, twice_less(tile), scale_of(pair), share_of(pair)));
    }
  }
};

/// One list's sequence and head, and its index.
struct CodedList {
  int row, head, kv_head, slot = -1, n = 0;  // n: indexed keys; none without a slot
  int64_t local;                             // number of the list

  __device__ CodedList(const ChooseCodedParams& p, int local_row, int h)
      : row(p.first_row + local_row),
        head(h),
        kv_head(h / (p.n_heads / p.n_kv_heads)),
        local(int64_t{local_row} * p.n_heads + h) {
    if (row >= p.row_begin[p.n_seqs]) return;
    slot = p.slot[sequence_of(p.row_begin, p.n_seqs, row)];
    n = p.ends[slot] - p.begin;
  }
  __device__ int wanted(const ChooseCodedParams& p) const {
    return min(n, max(p.least_exact, static_cast<int>(llround(p.exact * n))));
  }
  __device__ int candidates(const ChooseCodedParams& p) const {
    return min(n, max(2 * wanted(p), static_cast<int>(llround(p.refine * n))));
  }
  /// The group that holds an indexed key.
  __device__ const uint8_t* group(const ChooseCodedParams& p, int key) const {
    const DeviceCodes& c = p.codes;
    return c.groups + block(p, key) * c.group_block_stride + kv_head * c.group_head_stride +
           in_block(p, key) / kCodeKeys * code_group_bytes(c.dims);
  }
  __device__ const uint8_t* low(const ChooseCodedParams& p, int key) const {
    const DeviceCodes& c = p.codes;
    return c.low + block(p, key) * c.low_block_stride + kv_head * c.low_head_stride +
           in_block(p, key) * code_low_bytes(c.dims, c.bits);
  }

 private:
  __device__ int64_t block(const ChooseCodedParams& p, int key) const {
    return p.blocks[int64_t{slot} * p.max_blocks + (key >> p.codes.block_shift)];
  }
  __device__ static int in_block(const ChooseCodedParams& p, int key) {
    return key & ((1 << p.codes.block_shift) - 1);
  }
};

/// Where the scores, keys, counts and masses of list `list.local + i` are.
struct ListRegions {
  float* scores;
  uint16_t* keys;
  int32_t* counts;
  float* masses;
  float* kept;
  uint32_t* number;

  __device__ ListRegions(const ChooseCodedParams& p, const CodedList& list, int i)
      : scores(p.scratch.scores + (list.local + i) * p.scratch.key_stride),
        keys(p.scratch.keys + (list.local + i) * p.scratch.key_stride),
        counts(p.scratch.counts + (list.local + i) * p.scratch.region_stride),
        masses(p.masses == nullptr ? nullptr : p.masses + (list.local + i) * p.mass_stride),
        kept(p.scratch.kept + (list.local + i) * p.scratch.key_stride),
        number(p.scratch.number + (list.local + i) * p.scratch.key_stride) {}
};

/// Keeps what a warp's tiles say of a region: the scores that reach the floors of the lane's two
/// queries, and exponentials of the others, relative to the floors.
struct RegionWriter {
  float* scores[2];
  uint16_t* keys[2];
  float floor[2];
  int n[2] = {};  // kept so far
  float mass[2] = {};
  float score[kGroupTiles][2];  // of the group in hand, and whether they reach the floor, by tile
  unsigned reach[2] = {};

  __device__ void take(int tile, bool exists, float2 of_tile) {
    score[tile][0] = of_tile.x;
    score[tile][1] = of_tile.y;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool reaches = exists && score[tile][i] >= floor[i];
      reach[i] |= reaches ? 1u << tile : 0u;
      mass[i] += exists && !reaches ? exp2f((score[tile][i] - floor[i]) * kLog2E) : 0.0f;
    }
  }
  /// Writes what the tiles of a group left; its keys' numbers in the region begin at `first`.
  __device__ void end_group(int first) {
    const int own = __popc(reach[0]) | __popc(reach[1]) << 16;
    int sum = own;  // of the lanes with these queries up to this one
#pragma unroll
    for (int step = 2; step < cuda::kWarp; step *= 2) {
      const int lower = __shfl_up_sync(cuda::kAllLanes, sum, step);
      if (lane_of() >= step) sum += lower;
    }
    const int all = __shfl_sync(cuda::kAllLanes, sum, cuda::kWarp - 2 + lane_of() % 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int at = n[i] + ((sum - own) >> (16 * i) & 0xffff);
#pragma unroll
      for (int tile = 0; tile < kGroupTiles; ++tile) {
        if ((reach[i] >> tile & 1) == 0) continue;
        scores[i][at] = score[tile][i];
        keys[i][at] = static_cast<uint16_t>(first + tile * kTile + key_of_lane());
        ++at;
      }
      n[i] += all >> (16 * i) & 0xffff;
      reach[i] = 0;
    }
  }
  /// The mass since the last call, in all lanes of query i.
  __device__ float end_run(int i) {
    float x = mass[i];
#pragma unroll
    for (int step = 2; step < cuda::kWarp; step *= 2)
      x += __shfl_xor_sync(cuda::kAllLanes, x, step);
    mass[i] = 0;
    return x;
  }
};

}  // namespace tandem::coded
