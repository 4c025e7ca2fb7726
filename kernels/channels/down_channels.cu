#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/channels/channel_products.h"
#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

// out += y W over listed rows of W. A block has 128 bytes of every row; on Hopper the blocks of a
// cluster share the rows of such a slice and add up what they have through each other's shared
// memory: no second pass, no memory between. A warp takes 16 listed rows at a time, on tensor cores
// for any rows of y (they are padded to 16, so that a row's bits are the same in any company),
// and copies what it multiplies, and only that, into its own part of a ring: no barrier of the
// block stands between load and use.

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
static_assert(kListedRows == 16);

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
/// in shared memory: [kWarps][rows, kSliceColumns].
__device__ void add_up(const DownChannelsParams& p, float* shared, int parts, int rank,
                       int64_t first_column) {
  const int n = p.rows * kSliceColumns;
  float* const of_block = shared + kWarps * n;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += shared[w * n + i];
    of_block[i] = sum;
  }
  const auto store = [&](int i, float sum) {
    const int64_t r = i / kSliceColumns, column = first_column + i % kSliceColumns;
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
  add_up(p, reinterpret_cast<float*>(shared), parts, rank, first_column);
}

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
    const float weight = cuda::to_float(static_cast<const T*>(p.w)[id * p.width + column]);
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

void launch_slices(const DownChannelsParams& p, Stream stream) {
  const int slices = (p.width + kSliceColumns - 1) / kSliceColumns;
  const int parts = parts_of(slices, cuda::gpu());
  static_assert((kWarps + 1) * kListedRows * kSliceColumns * 4 <= kRingBytes);
  (void)cudaFuncSetAttribute(down_channels, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kRingBytes);
  cuda::launch(down_channels, static_cast<unsigned>(slices * parts), kThreads, kRingBytes, parts,
               stream, p, parts);
}

}  // namespace

void down_channels_cuda(const DownChannelsParams& p, Stream stream) {
  if (p.rows == 0 || p.width == 0) return;
  const bool pairs = p.y_stride % 2 == 0 && reinterpret_cast<uintptr_t>(p.y) % 4 == 0;
  if (p.type == DType::bf16 && pairs && cuda::packable<bf16>(p.width, p.w))
    return launch_slices(p, stream);
  cuda::with_act(p.type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    cuda::launch(down_channels_plain<T>, cuda::blocks_for(p.width, kPlainThreads), kPlainThreads,
                 stream, p);
  });
}

}  // namespace tandem
