#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/channels/channel_products.h"
#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/linear/code_products.cuh"

// out += y W over listed rows of W. A block has 128 bytes of every row; on Hopper the blocks of a
// cluster share the rows of such a slice and add up what they have through each other's shared
// memory: no second pass, no memory between. A warp takes 16 listed rows at a time, on tensor cores
// for any rows of y (they are padded to 16, so that a row's bits are the same in any company),
// and copies what it multiplies, and only that, into its own part of a ring: no barrier of the
// block stands between load and use. Codes are the left operand, in slices of a tile's outputs. A
// warp's places are neighbours. It adds products of channels that share a scale, and multiplies
// them when a channel with another scale comes.

namespace tandem {
namespace {

using bf16x = __nv_bfloat16;

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarp;
constexpr int kAtOnce = 16;                 // listed rows of a warp's step
constexpr int kSliceColumns = 64;           // of a block
constexpr int kPieces = kSliceColumns / 8;  // of 16 bytes, of a row's slice
constexpr int kStages = 4;
constexpr int kStageBytes = kAtOnce * kSliceColumns * 2;  // of a warp
constexpr int kRingBytes = kStages * kWarps * kStageBytes;
constexpr int kPlainThreads = 64;
static_assert(kListedRows == 16 && (kWarps + 1) * kListedRows * kSliceColumns * 4 <= kRingBytes);

__device__ int listed(const DownChannelsParams& p) { return p.n != nullptr ? *p.n : p.n_channels; }

/// Where piece `c` of row `k` lies in a stage: the eight rows that a load of a tile reads at the
/// same piece lie in different banks.
__device__ int piece_at(int k, int c) { return (k * kPieces + (c ^ k % kPieces)) * 16; }

/// A warp's way through the list: 16 neighbouring places a step.
struct Steps {
  const DownChannelsParams& p;
  int n, stride, first;  // places of the list, between two steps, of the first
  int64_t column;        // of the lane's pieces
  unsigned ring;         // shared address of the warp's part

  __device__ int place(int step) const { return first + step * stride; }
  /// The channel of place lane % 16 of a step, negative beyond the list.
  __device__ int channel(int step) const {
    const int i = place(step) + cuda::lane_of() % kAtOnce;
    return i >= n ? -1 : p.ids != nullptr ? p.ids[i] : i;
  }
  /// Copies the rows of the lanes' channels; zeros where there are none, and beyond the last
  /// column.
  __device__ void copy(int stage, int channel) const {
    const unsigned to = ring + stage * kStageBytes;
    const int lane = cuda::lane_of();
#pragma unroll
    for (int e = 0; e < kAtOnce / 4; ++e) {
      const int k = e * 4 + lane / kPieces;
      const int row = __shfl_sync(cuda::kAllLanes, channel, k);
      const bool wanted = row >= 0 && column < p.width;
      const int64_t at = wanted ? int64_t{row} * p.width + column : 0;
      cuda::copy_async<16>(to + piece_at(k, lane % kPieces), static_cast<const bf16x*>(p.w) + at,
                           wanted);
    }
    cuda::copies_commit();
  }
  /// The lane's numbers of y for a step, as the left operand; also of the first place beyond the
  /// list where they come in pairs.
  __device__ void load(int step, uint32_t (&y)[4]) const {
    const int g = cuda::lane_of() / 4, t = cuda::lane_of() % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = g + i % 2 * 8, k = place(step) + 2 * t + i / 2 * 8;
      y[i] = 0;
      if (r < p.rows && k < n)
        y[i] =
            *reinterpret_cast<const uint32_t*>(static_cast<const bf16x*>(p.y) + r * p.y_stride + k);
    }
  }
  /// Zeros there: apart from the load, so that nothing waits for it until it is needed.
  __device__ void end(int step, uint32_t (&y)[4]) const {
    const int t = cuda::lane_of() % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (place(step) + 2 * t + i / 2 * 8 + 1 == n) y[i] &= 0xffffu;
  }
};

/// Adds to out the sums that all warps of all blocks of a cluster have of a slice, which they left
/// in shared memory: [kWarps][rows, kColumns].
template <int kColumns>
__device__ void add_up(const DownChannelsParams& p, float* shared, int parts, int rank,
                       int64_t first_column) {
  const int n = p.rows * kColumns;
  float* const of_block = shared + kWarps * n;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += shared[w * n + i];
    of_block[i] = sum;
  }
  const auto store = [&](int i, float sum) {
    const int64_t r = i / kColumns, column = first_column + i % kColumns;
    if (column >= p.width) return;
    float* const to = p.out + r * p.width + column;
    *to += sum + (p.bias != nullptr ? p.bias[column] : 0.0f);
  };
  const int begin = static_cast<int>(threadIdx.x) + rank * kThreads, step = parts * kThreads;
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  if (parts > 1) {
    cluster.sync();
    for (int i = begin; i < n; i += step) {
      float sum = 0;
      for (int q = 0; q < parts; ++q)
        sum += *cluster.map_shared_rank(of_block + i, static_cast<unsigned>(q));
      store(i, sum);
    }
    cluster.sync();  // no block may go while others read its sums
    return;
  }
#endif
  for (int i = begin; i < n; i += step) store(i, of_block[i]);  // its own
}

/// parts: blocks of a slice, which are neighbours.
__global__ void __launch_bounds__(kThreads, 2)
    down_channels(const DownChannelsParams p, const int parts) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = cuda::warp_of(), lane = cuda::lane_of();
  const int rank = static_cast<int>(blockIdx.x) % parts;
  const int64_t first_column = int64_t{static_cast<int>(blockIdx.x) / parts} * kSliceColumns;
  const auto all = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  Steps steps{.p = p,
              .n = listed(p),
              .stride = parts * kWarps * kAtOnce,
              .first = (rank * kWarps + warp) * kAtOnce,
              .column = first_column + lane % kPieces * 8,
              .ring = all + warp * kStages * kStageBytes};
  // Channels and y are read as far ahead as W: under load what L2 has takes as long to come.
  int channel[kStages];
  uint32_t y[kStages][4];
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) channel[stage] = steps.channel(stage);
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    steps.copy(stage, channel[stage]);
    channel[stage] = steps.channel(stage + kStages);
  }
  cuda::wait_for_previous();  // for y and out

  float sums[kPieces][4] = {};
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) steps.load(stage, y[stage]);
  for (int first = 0; steps.place(first) < steps.n; first += kStages) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      steps.end(first + stage, y[stage]);
      cuda::copies_wait<kStages - 1>();
      __syncwarp();
      const unsigned from = steps.ring + stage * kStageBytes;
#pragma unroll
      for (int c = 0; c < kPieces; c += 2) {  // two pieces, each of both eights of rows
        uint32_t w[4];
        cuda::load_tiles_transposed(w, from + piece_at(lane % 16, c + lane / 16));
        cuda::mma_bf16(sums[c], y[stage], w[0], w[1]);
        cuda::mma_bf16(sums[c + 1], y[stage], w[2], w[3]);
      }
      __syncwarp();  // all have read what the next copies write over
      steps.load(first + stage + kStages, y[stage]);
      steps.copy(stage, channel[stage]);
      channel[stage] = steps.channel(first + stage + 2 * kStages);
    }
  }
  cuda::release_next();
  cuda::copies_wait<0>();  // zeros beyond the list are still being written
  __syncthreads();         // the ring's memory
  float* const of_warp = reinterpret_cast<float*>(shared) + warp * p.rows * kSliceColumns;
#pragma unroll
  for (int c = 0; c < kPieces; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (const int r = lane / 4 + i / 2 * 8; r < p.rows)
        of_warp[r * kSliceColumns + c * 8 + lane % 4 * 2 + i % 2] = sums[c][i];
  add_up<kSliceColumns>(p, reinterpret_cast<float*>(shared), parts, rank, first_column);
}

namespace coded {

/// Bytes in flight are about the same.
__host__ __device__ constexpr int stages_of(Code code) { return code == Code::i4 ? 6 : 4; }
constexpr int kLaneOutputs = kStripOutputs / 8;  // outputs of a lane
constexpr int kTileShift = 7;
static_assert(1 << kTileShift == kTileInputs);
constexpr int kWideTiles = kLaneOutputs / 2;  // products of 16 outputs

/// A warp's stage: strips of 16 channels, their y [8 kGroups][16], and a number for each place.
template <Code kCode>
constexpr int kStripBytes = kCode == Code::i4 ? kStripOutputs / 2 : kStripOutputs;
__host__ __device__ constexpr int stage_bytes(int strip_bytes, int groups) {
  return kAtOnce * (strip_bytes + groups * 8 * 2 + 4);
}

/// A warp's way through its part of the list, and its copies.
template <Code kCode, int kGroups>
struct Strips {
  static constexpr int kRun = kStripBytes<kCode>, kRunPieces = kRun / 16;
  static constexpr int kYAt = kAtOnce * kRun, kKeysAt = kYAt + kAtOnce * kGroups * 16;
  const DownChannelsParams& p;
  const uint8_t* slice;                  // row of tiles
  unsigned char* ring;                   // the warp's part
  int n, first, steps;                   // places of the list, first place, steps of 16 places
  int unit_shift;                        // inputs that share a scale, as a power of 2
  int next = 0, id = -1, id_after = -1;  // channels of place lane % 16 in the next steps

  /// The channel of place lane % 16 of a step, negative beyond the list.
  __device__ int channel(int step) const {
    const int i = first + step * kAtOnce + cuda::lane_of() % kAtOnce;
    return step >= steps || i >= n ? -1 : p.ids != nullptr ? p.ids[i] : i;
  }
  __device__ unsigned char* stage(int i) const { return ring + i * stage_bytes(kRun, kGroups); }
  /// Place 4 t + c of a step is strip 4 c + t of a stage. Pieces of strips are exchanged, so that
  /// those that some lanes read at once are in different banks.
  __device__ static int piece_at(int strip, int piece) {
    const int moved = kCode == Code::i4 ? strip / 2 % 2 * 2 : strip % 4 * 2;
    return strip * kRun + (piece ^ moved) * 16;
  }
  /// Copies the strips of the next step, and asks for their scales. A key is the channel's unit.
  __device__ void copy_strips(int to) {
    const int lane = cuda::lane_of(), units = kTileInputs >> unit_shift;
    const CodeTiles& w = p.codes;
    const auto at = cuda::shared_address(stage(to));
    const uint8_t* const tile = slice + max(id, 0) / kTileInputs * w.tile_bytes();
    const auto strip = reinterpret_cast<uintptr_t>(tile + max(id, 0) % kTileInputs * kRun);
#pragma unroll
    for (int e = 0; e < kAtOnce * kRunPieces / cuda::kWarp; ++e) {
      const int k = e * (cuda::kWarp / kRunPieces) + lane / kRunPieces, piece = lane % kRunPieces;
      const bool wanted = __shfl_sync(cuda::kAllLanes, id, k) >= 0;
      const auto from = __shfl_sync(cuda::kAllLanes, static_cast<unsigned long long>(strip), k);
      cuda::copy_async<16>(at + piece_at(k % 4 * 4 + k / 4, piece),
                           reinterpret_cast<const uint8_t*>(from) + piece * 16, wanted);
    }
    const int key = id < 0 ? -1 : id >> unit_shift;
    const int before = __shfl_up_sync(cuda::kAllLanes, key, 1);
    if (lane < kAtOnce) {
      reinterpret_cast<int*>(stage(to) + kKeysAt)[lane] = key;
      if (key >= 0 && (lane == 0 || key != before)) {
        constexpr int kLine = 128;
        const int unit = (key & (units - 1)) * kStripOutputs;
        for (int b = 0; b < kStripOutputs * w.scale_bytes(); b += kLine)
          cuda::prefetch(tile + w.scales_at() + unit * w.scale_bytes() + b);
        for (int b = 0; b < kStripOutputs * w.zero_bytes(); b += kLine)
          cuda::prefetch(tile + w.zeros_at() + unit * w.zero_bytes() + b);
      }
    }
    id = id_after;
    id_after = channel(++next + 1);
  }
  /// Copies y of a step; also of the first place beyond the list where they come in pairs.
  __device__ void copy_y(int step, int to) const {
    const auto at = cuda::shared_address(stage(to)) + kYAt;
#pragma unroll
    for (int e = 0; e < kGroups * 2; ++e) {
      const int i = e * cuda::kWarp + cuda::lane_of(), r = i / 8, k = i % 8 * 2;
      const int place = first + step * kAtOnce + k;
      const bool wanted = step < steps && r < p.rows && place < n;
      const auto* const from =
          static_cast<const bf16x*>(p.y) + (wanted ? r * p.y_stride + place : 0);
      cuda::copy_async<4>(at + (r * kAtOnce + k) * 2, from, wanted);
    }
    cuda::copies_commit();
  }
};

/// Sums of a warp, of 16 outputs of each g: output 2 m + h is row g + 8 h of product m.
template <Code kCode, Zero kZero, int kGroups>
struct UnitSums {
  using Factors = tiles::Factors<kCode, kZero>;
  static constexpr int kScaleWords = kLaneOutputs / (kCode == Code::fp8 ? 1 : 2),
                       kZeroWords = kZero == Zero::minimum ? kLaneOutputs / 2 : kLaneOutputs / 4;
  float sums[kWideTiles][kGroups][4] = {};
  float part[kWideTiles][kGroups][4] = {}, inputs[kGroups][4] = {};  // sums of a unit
  unsigned scales[kScaleWords] = {}, zeros[kZeroWords] = {};

  /// Reads scales of the unit that comes.
  __device__ void begin(const CodeTiles& w, const uint8_t* tile, int unit, int g) {
    const int place = unit * kStripOutputs + g * kLaneOutputs;
    const auto read = [](auto& to, const uint8_t* from) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(to) / 4); i += 4) {
        const uint4 v = reinterpret_cast<const uint4*>(from)[i / 4];
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
      }
    };
    read(scales, tile + w.scales_at() + place * w.scale_bytes());
    if (Factors::kHasZero && w.zero != Zero::none)
      read(zeros, tile + w.zeros_at() + place * w.zero_bytes());
  }
  /// Adds the sums of a unit.
  __device__ void end(const tiles::Reader<kCode, kZero == Zero::minimum>& read) {
    const auto half = [](const unsigned* all, int i) { return all[i / 2] >> i % 2 * 16 & 0xffff; };
#pragma unroll
    for (int o = 0; o < kLaneOutputs; ++o) {
      const int m = o / 2, h = o % 2;
      const unsigned zero =
          kZero == Zero::minimum ? half(zeros, o) : zeros[o / 4] >> o % 4 * 8 & 0xff;
      const Factors factors(read, kCode == Code::fp8 ? scales[o % kScaleWords] : half(scales, o),
                            zero, h);
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          factors.add(sums[m][j][i], part[m][j][i], inputs[j][i]);
          part[m][j][i] = 0;
        }
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (float& sum : inputs[j]) sum = 0;
  }
};

/// The lane's outputs of four strips.
template <Code kCode>
struct LaneCodes {
  static constexpr int kWords = kCode == Code::i4 ? 2 : 4;
  unsigned of[4][kWords];

  __device__ LaneCodes(const unsigned char* strips, int g, int t) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int strip = 4 * c + t;
      if constexpr (kCode == Code::i4) {
        const uint2 v = *reinterpret_cast<const uint2*>(
            strips + Strips<kCode, 1>::piece_at(strip, g / 2) + g % 2 * 8);
        of[c][0] = v.x, of[c][1] = v.y;
      } else {
        const uint4 v =
            *reinterpret_cast<const uint4*>(strips + Strips<kCode, 1>::piece_at(strip, g));
        of[c][0] = v.x, of[c][1] = v.y, of[c][2] = v.z, of[c][3] = v.w;
      }
    }
  }
  /// Two strips' codes of outputs 4 q to 4 q + 3, as words of tiles hold them.
  __device__ void four(unsigned (&a)[4], int first, int q) const {
    const unsigned *x = of[first], *y = of[first + 1];
    const int word = q * kWords / 4;
    const unsigned both[] = {__byte_perm(x[word], y[word], 0x5410),
                             __byte_perm(x[word], y[word], 0x7632)};
    const uint4 pieces[kWords] = {{both[kCode == Code::i4 ? q % 2 : 0], both[1], 0, 0}};
    tiles::Decoder<kCode>::fragment(a, pieces, 0);
  }
};

/// parts: blocks of a slice, which are neighbours.
template <Code kCode, Zero kZero, int kGroups>
__global__ void __launch_bounds__(kThreads, 1)
    down_codes(const DownChannelsParams p, const int parts) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr unsigned kOnes = 0x3f803f80u;
  constexpr int kStages = stages_of(kCode);
  using Way = Strips<kCode, kGroups>;
  const CodeTiles& w = p.codes;
  const int warp = cuda::warp_of(), lane = cuda::lane_of(), g = lane / 4, t = lane % 4;
  const int rank = static_cast<int>(blockIdx.x) % parts;
  const int slice = static_cast<int>(blockIdx.x) / parts, n = listed(p);
  const int all_steps = (n + kAtOnce - 1) / kAtOnce;
  const int each = (all_steps + parts * kWarps - 1) / (parts * kWarps);
  const int first = (rank * kWarps + warp) * each;
  Way way{.p = p,
          .slice = w.data + slice * w.row_bytes(),
          .ring = shared + warp * kStages * stage_bytes(Way::kRun, kGroups),
          .n = n,
          .first = first * kAtOnce,
          .steps = max(0, min(each, all_steps - first)),
          .unit_shift = 31 - __clz(w.unit())};
  way.id = way.channel(0);
  way.id_after = way.channel(1);
  for (int stage = 0; stage < kStages; ++stage) way.copy_strips(stage);
  cuda::wait_for_previous();  // for y and out
  for (int stage = 0; stage < kStages; ++stage) way.copy_y(stage, stage);

  const tiles::Reader<kCode, kZero == Zero::minimum> read(w);
  UnitSums<kCode, kZero, kGroups> all;
  int unit = -1, stage = 0;
  for (int step = 0; step < way.steps; ++step) {
    cuda::copies_wait<kStages - 1>();
    __syncwarp();
    const unsigned char* const from = way.stage(stage);
    const LaneCodes<kCode> codes(from, g, t);
    uint2 y[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
      y[j] =
          *reinterpret_cast<const uint2*>(from + Way::kYAt + ((g + 8 * j) * kAtOnce + 4 * t) * 2);
    const int key = reinterpret_cast<const int*>(from + Way::kKeysAt)[lane % kAtOnce];
    __syncwarp();  // all have read what the next copies write over
    way.copy_strips(stage);
    way.copy_y(step + kStages, stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;

    unsigned left = __ballot_sync(cuda::kAllLanes, key >= 0) & 0xffffu;
    while (left != 0) {
      const int now = __shfl_sync(cuda::kAllLanes, key, __ffs(static_cast<int>(left)) - 1);
      const unsigned with = __ballot_sync(cuda::kAllLanes, key == now) & 0xffffu;
      left &= ~with;
      if (now != unit) {
        if (unit >= 0) all.end(read);
        unit = now;
        const int tile = now << way.unit_shift >> kTileShift;
        all.begin(w, way.slice + tile * w.tile_bytes(),
                  now - (tile << kTileShift >> way.unit_shift), g);
      }
      const auto kept = [&](unsigned pair, int i) {
        const unsigned bits = with >> (4 * t + 2 * i);
        const unsigned mask = (bits & 1 ? 0xffffu : 0) | (bits & 2 ? 0xffff0000u : 0);
        return tiles::scaled<tiles::kInX<kCode>>(pair & mask);
      };
      uint2 b[kGroups];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        b[j] = {kept(y[j].x, 0), kept(y[j].y, 1)};
        if (kCode != Code::fp8)
          skinny::multiply(all.inputs[j], kOnes, kOnes, kOnes, kOnes, b[j].x, b[j].y);
      }
#pragma unroll
      for (int q = 0; q < kLaneOutputs / 4; ++q) {
        unsigned low[4], high[4];
        codes.four(low, 0, q);
        codes.four(high, 2, q);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int j = 0; j < kGroups; ++j)
            skinny::multiply(all.part[2 * q + m][j], low[2 * m], low[2 * m + 1], high[2 * m],
                             high[2 * m + 1], b[j].x, b[j].y);
      }
    }
  }
  if (unit >= 0) all.end(read);
  cuda::release_next();
  cuda::copies_wait<0>();  // zeros beyond the list are still being written
  __syncthreads();         // the ring's memory
  float* const of_warp = reinterpret_cast<float*>(shared) + warp * p.rows * kStripOutputs;
#pragma unroll
  for (int m = 0; m < kWideTiles; ++m)
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (const int r = 8 * j + 2 * t + i % 2; r < p.rows)
          of_warp[r * kStripOutputs + g * kLaneOutputs + 2 * m + i / 2] = all.sums[m][j][i];
  add_up<kStripOutputs>(p, reinterpret_cast<float*>(shared), parts, rank, slice * kStripOutputs);
}

int groups_of(const DownChannelsParams& p) { return p.rows > 8 ? 2 : 1; }

int bytes_of(const DownChannelsParams& p) {
  const int stage = kWarps * stage_bytes(p.codes.strip_bytes(), groups_of(p));
  return std::max(stages_of(p.codes.code) * stage, (kWarps + 1) * p.rows * kStripOutputs * 4);
}

template <Code kCode>
auto kernel_of(const DownChannelsParams& p) {
  const bool few = groups_of(p) == 1;
  if constexpr (kCode != Code::fp8)
    if (p.codes.zero == Zero::minimum)
      return few ? down_codes<kCode, Zero::minimum, 1> : down_codes<kCode, Zero::minimum, 2>;
  return few ? down_codes<kCode, Zero::integer, 1> : down_codes<kCode, Zero::integer, 2>;
}
auto kernel_of(const DownChannelsParams& p) {
  return p.codes.code == Code::i4   ? kernel_of<Code::i4>(p)
         : p.codes.code == Code::i8 ? kernel_of<Code::i8>(p)
                                    : kernel_of<Code::fp8>(p);
}

}  // namespace coded

/// For any type, width and address: a thread a column.
template <class T>
__global__ void __launch_bounds__(kPlainThreads) down_channels_plain(const DownChannelsParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  const int64_t column = int64_t{blockIdx.x} * kPlainThreads + threadIdx.x;
  if (column >= p.width) return;
  const int n = listed(p);
  float sums[kListedRows] = {};
  for (int i = 0; i < n; ++i) {
    const int64_t id = p.ids != nullptr ? p.ids[i] : i;
    const float weight =
        p.codes.data != nullptr
            ? tiles::number_at(p.codes, static_cast<int>(column), static_cast<int>(id))
            : cuda::to_float(static_cast<const T*>(p.w)[id * p.width + column]);
#pragma unroll
    for (int r = 0; r < kListedRows; ++r)
      if (r < p.rows)
        sums[r] =
            fmaf(cuda::to_float(static_cast<const T*>(p.y)[r * p.y_stride + i]), weight, sums[r]);
  }
#pragma unroll
  for (int r = 0; r < kListedRows; ++r)
    if (r < p.rows)
      p.out[r * p.width + column] += sums[r] + (p.bias != nullptr ? p.bias[column] : 0.0f);
}

/// Blocks that share a slice: as many as give most multiprocessors work. One block on each is
/// faster than two (measured, 2.87 to 2.53 TB/s of an H100). By the width alone: a row's bits are
/// the same in any company.
int parts_of(int slices, const cuda::Gpu& gpu) {
  if (gpu.isa != cuda::GpuIsa::hopper) return 1;
  const auto use = [&](int parts) {
    const double each = static_cast<double>(parts) * slices / gpu.multiprocessors;
    return each <= 1 ? each : each <= 2 ? each / 2 * .88 : 0;
  };
  int best = 1;
  for (int parts = 2; parts <= 8; ++parts)
    if (use(parts) > use(best)) best = parts;
  return best;
}

/// Launches blocks that share slices.
/// kernel   takes the number of blocks of a slice
void launch_slices(void (*kernel)(DownChannelsParams, int), const DownChannelsParams& p,
                   int columns, int bytes, Stream stream) {
  const int slices = (p.width + columns - 1) / columns, parts = parts_of(slices, cuda::gpu());
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cuda::launch(kernel, static_cast<unsigned>(slices * parts), kThreads, static_cast<size_t>(bytes),
               parts, stream, p, parts);
}

}  // namespace

void down_channels_cuda(const DownChannelsParams& p, Stream stream) {
  if (p.rows == 0 || p.width == 0) return;
  const bool pairs = p.y_stride % 2 == 0 && reinterpret_cast<uintptr_t>(p.y) % 4 == 0;
  if (p.codes.data != nullptr && pairs)
    return launch_slices(coded::kernel_of(p), p, kStripOutputs, coded::bytes_of(p), stream);
  if (p.codes.data == nullptr && p.type == DType::bf16 && pairs &&
      cuda::packable<bf16>(p.width, p.w))
    return launch_slices(down_channels, p, kSliceColumns, kRingBytes, stream);
  cuda::with_act(p.type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    cuda::launch(down_channels_plain<T>, cuda::blocks_for(p.width, kPlainThreads), kPlainThreads,
                 stream, p);
  });
}

}  // namespace tandem
