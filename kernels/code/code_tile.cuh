#pragma once
// Sums by signs of the codes of 16 keys for up to four queries, by a warp's tensor cores
// (device_codes.h).
#include "kernels/code/choose_coded.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/gather/list_rows.cuh"

namespace tandem::coded {

inline constexpr int kQuad = 4;   // queries of a warp: heads of one KV head
inline constexpr int kTile = 16;  // keys
inline constexpr int kGroupTiles = kCodeKeys / kTile;

__device__ inline int lane_of() { return static_cast<int>(threadIdx.x) % cuda::kWarp; }
__device__ inline int warp_of() { return static_cast<int>(threadIdx.x) / cuda::kWarp; }

/// Where a lane stands in a tile's result: key 8 (lane / 2 % 2) + lane / 4 of the tile, for queries
/// 2 (lane % 2) and the next.
__device__ inline int key_of_lane() { return lane_of() / 2 % 2 * 8 + lane_of() / 4; }
__device__ inline int query_of_lane() { return lane_of() % 2 * 2; }

// Sums begin at this number's bits, so that as floats they are it plus the sum.
inline constexpr float kFloatOffset = 12582912.0f;  // 1.5 * 2^23

__device__ inline void mma_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The bits of a tile's place in its words, one a byte.
__device__ inline void sign_bytes(uint32_t (&a)[4], const uint4& words, int place) {
  const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = w[i] >> place & 0x01010101u;
}

/// The lane's two sums, as floats, of an accumulator that began at kFloatOffset's bits. Half of the
/// columns are no query's: their lanes take over the upper keys.
__device__ inline float2 sums_of(const int (&c)[4]) {
  const int x = __shfl_xor_sync(cuda::kAllLanes, c[2], 2),
            y = __shfl_xor_sync(cuda::kAllLanes, c[3], 2);
  const bool upper = (lane_of() & 2) != 0;
  return {__int_as_float(upper ? x : c[0]) - kFloatOffset,
          __int_as_float(upper ? y : c[1]) - kFloatOffset};
}
__device__ inline void begin_sums(int (&c)[4]) {
  c[0] = c[1] = c[2] = c[3] = __float_as_int(kFloatOffset);
}

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
  /// The score of query i from the sum of q at set bits. Compiled without contraction.
  __device__ float score(int i, float sum, float scale, float share) const {
    return fmaf(sum, 2.0f, -total[i]) * sign_gain[i] * scale + axis_gain[i] * share;
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
  const int steps = dims / kCodeDims;
  int c[4];
  begin_sums(c);
  for (int j = 0; j < steps; ++j) {
    const int at = tile * steps + j;
    uint32_t a[4];
    sign_bytes(a, reinterpret_cast<const uint4*>(group + at / 8 * 512)[lane_of()], at % 8);
    const int w = j * 8 + lane_of() % 4;
    mma_s8(c, a, query_word(q, dims, n, w), query_word(q, dims, n, w + 4));
  }
  const uint8_t* scales = group + 16 * dims + device_scale_place(tile * kTile + key_of_lane());
  const float scale = code_scale(scales[0]),
              share = static_cast<float>(static_cast<int8_t>(scales[kCodeKeys]));
  const float2 sum = sums_of(c);
  return {lane.score(0, sum.x, scale, share), lane.score(1, sum.y, scale, share)};
}

/// Calls take(tile, score of the lane's first query, of its second) for the tiles of a group.
template <int kSteps, class Take>
__device__ void score_group(const uint8_t* group, const uint32_t (&q)[kSteps][2],
                            const LaneQueries& lane, const Take& take) {
  uint4 words[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    words[i] = reinterpret_cast<const uint4*>(group)[i * 32 + lane_of()];
  // The lane's keys are those of lane / 4: one of each half of a tile.
  const auto* scales = reinterpret_cast<const uint4*>(group + 16 * kCodeDims * kSteps);
  const uint4 scale4 = scales[lane_of() / 4], share4 = scales[kGroupTiles + lane_of() / 4];
  const uint32_t scale_words[4] = {scale4.x, scale4.y, scale4.z, scale4.w};
  const uint32_t share_words[4] = {share4.x, share4.y, share4.z, share4.w};
  const int half = lane_of() / 2 % 2;
#pragma unroll
  for (int tile = 0; tile < kGroupTiles; ++tile) {
    int c[4];
    begin_sums(c);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      uint32_t a[4];
      sign_bytes(a, words[(tile * kSteps + j) / 8], (tile * kSteps + j) % 8);
      mma_s8(c, a, q[j][0], q[j][1]);
    }
    const int shift = (tile % 2 * 2 + half) * 8;
    const float scale = code_scale(static_cast<uint8_t>(scale_words[tile / 2] >> shift));
    const float share = static_cast<float>(static_cast<int8_t>(share_words[tile / 2] >> shift));
    const float2 sum = sums_of(c);
    take(tile, lane.score(0, sum.x, scale, share), lane.score(1, sum.y, scale, share));
  }
}

/// One list's sequence and head, and its index.
struct CodedList {
  int row, head, kv_head, slot = -1, n = 0;  // n: indexed keys; none without a slot
  int local;                                 // number in the scratch

  __device__ CodedList(const ChooseCodedParams& p, int local_row, int h)
      : row(p.first_row + local_row),
        head(h),
        kv_head(h / (p.n_heads / p.n_kv_heads)),
        local(local_row * p.n_heads + h) {
    if (row >= p.row_begin[p.n_seqs]) return;
    slot = p.slot[sequence_of(p.row_begin, p.n_seqs, row)];
    n = p.ends[slot] - p.begin;
  }
  __device__ int64_t number(const ChooseCodedParams& p) const {
    return int64_t{row} * p.n_heads + head;
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
           key % c.capacity / kCodeKeys * code_group_bytes(c.dims);
  }
  __device__ const uint8_t* low(const ChooseCodedParams& p, int key) const {
    const DeviceCodes& c = p.codes;
    return c.low + block(p, key) * c.low_block_stride + kv_head * c.low_head_stride +
           key % c.capacity * code_low_bytes(c.dims, c.bits);
  }

 private:
  __device__ int64_t block(const ChooseCodedParams& p, int key) const {
    return p.blocks[int64_t{slot} * p.max_blocks + key / p.codes.capacity];
  }
};

/// Writes what a tile adds to the lists of its queries: the scores that reach the floor, in the
/// order of keys, and exponentials of the others.
struct RunWriter {
  float* scores[2];
  uint16_t* keys[2];
  int n[2] = {};  // so far in the run, of each query
  float mass[2] = {};
  float floor[2];
  unsigned before, all;  // lanes of the same queries: those of smaller keys, and all

  __device__ RunWriter() {
    const unsigned lane = lane_of(), low = 0x11111111u << lane % 2, high = low << 2;
    const unsigned smaller = (1u << lane) - 1;
    before = (lane & 2) != 0 ? low | (high & smaller) : low & smaller;
    all = low | high;
  }
  __device__ void take(int key, bool exists, float first, float second) {
    const float score[2] = {first, second};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool reaches = exists && score[i] >= floor[i];
      const unsigned found = __ballot_sync(cuda::kAllLanes, reaches);
      if (reaches) {
        const int at = n[i] + __popc(found & before);
        scores[i][at] = score[i];
        keys[i][at] = static_cast<uint16_t>(key);
      } else if (exists) {
        mass[i] += exp2f((score[i] - floor[i]) * 1.44269504f);
      }
      n[i] += __popc(found & all);
    }
  }
  /// The run's mass below the floor, in all lanes of the query.
  __device__ float sum(int i) const {
    float x = mass[i];
    for (int step = 2; step < cuda::kWarp; step *= 2)
      x += __shfl_xor_sync(cuda::kAllLanes, x, step);
    return x;
  }
};

}  // namespace tandem::coded
