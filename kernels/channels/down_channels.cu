#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/channels/channel_products.h"
#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

// out += y W over listed rows of W. A block has 128 bytes of every row, 8 lanes with 16 bytes each,
// and 32 rows at once; on Hopper the blocks of a cluster share the rows of such a slice and add up
// what they have through each other's shared memory: no second pass, no memory between. A lane
// copies what it multiplies, and only that, into its own places of a ring: no barrier stands
// between load and use.

namespace tandem {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarp;
constexpr int kPieceLanes = 8;                   // of a row's slice
constexpr int kAtOnce = kThreads / kPieceLanes;  // rows that a block takes together
constexpr int kRingPieces = 16;                  // of a lane: 64 KiB a block
constexpr int kRingBytes = kRingPieces * kThreads * 16;
constexpr int kPlainThreads = 64;

template <class T>
constexpr int kSliceColumns = kPieceLanes* cuda::Pack<T>::kSize;
/// Pieces of a stage: of many rows of x fewer, whose factors stand in registers.
template <int kRows>
constexpr int kEach = kRows >= 8 ? 2 : 4;

__device__ int listed(const DownChannelsParams& p) { return p.n != nullptr ? *p.n : p.n_channels; }

/// A lane's way through the list: which place its piece `e` of step s has, and its copies.
template <class T, int kRows>
struct Pieces {
  static constexpr int kOfStage = kEach<kRows>, kStages = kRingPieces / kOfStage;
  const DownChannelsParams& p;
  int n, parts, rank;
  int64_t column;
  unsigned ring;
  int next = 0;       // step that is copied next
  int ids[kOfStage];  // of it

  __device__ int place(int s, int e) const {
    return ((s * kOfStage + e) * parts + rank) * kAtOnce +
           static_cast<int>(threadIdx.x) / kPieceLanes;
  }
  __device__ void look_up() {
#pragma unroll
    for (int e = 0; e < kOfStage; ++e) {
      const int i = place(next, e);
      ids[e] = i >= n ? -1 : p.ids != nullptr ? p.ids[i] : i;
    }
  }
  /// Zeros beyond the list, and beyond the last column.
  __device__ void issue(int stage) {
#pragma unroll
    for (int e = 0; e < kOfStage; ++e) {
      const bool wanted = ids[e] >= 0 && column < p.width;
      const int64_t at = wanted ? int64_t{ids[e]} * p.width + column : 0;
      cuda::copy_async<16>(ring + (stage * kOfStage + e) * kThreads * 16,
                           static_cast<const T*>(p.w) + at, wanted);
    }
    cuda::copies_commit();
    ++next;
    look_up();
  }
};

/// Adds to out the sums that all warps of all blocks of a cluster have of a slice.
template <class T, int kRows>
__device__ void add_up(const DownChannelsParams& p, float (&sums)[kRows][cuda::Pack<T>::kSize],
                       float* shared, int parts, int rank, int64_t first_column) {
  constexpr int kColumns = kSliceColumns<T>, kOfLane = cuda::Pack<T>::kSize;
  constexpr int kNumbers = kRows * kColumns;
  float* const of_block = shared + kWarps * kNumbers;
  cuda::copies_wait<0>();  // zeros beyond the list are still being written
  __syncthreads();         // the ring's memory
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int c = 0; c < kOfLane; ++c) {
      float sum = sums[r][c];
      sum += __shfl_xor_sync(cuda::kAllLanes, sum, kPieceLanes);
      sum += __shfl_xor_sync(cuda::kAllLanes, sum, 2 * kPieceLanes);
      if (cuda::lane_of() < kPieceLanes)
        shared[cuda::warp_of() * kNumbers + r * kColumns + cuda::lane_of() * kOfLane + c] = sum;
    }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kNumbers; i += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += shared[w * kNumbers + i];
    of_block[i] = sum;
  }
  const auto store = [&](int i, float sum) {
    const int64_t r = i / kColumns, column = first_column + i % kColumns;
    if (r >= p.rows || column >= p.width) return;
    float* const to = p.out + r * p.width + column;
    *to += sum + (p.bias != nullptr ? p.bias[column] : 0.0f);
  };
  const int begin = static_cast<int>(threadIdx.x) + rank * kThreads, step = parts * kThreads;
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  if (parts > 1) {
    cluster.sync();
    for (int i = begin; i < kNumbers; i += step) {
      float sum = 0;
      for (int q = 0; q < parts; ++q)
        sum += *cluster.map_shared_rank(of_block + i, static_cast<unsigned>(q));
      store(i, sum);
    }
    cluster.sync();  // no block may go while others read its sums
    return;
  }
#endif
  for (int i = begin; i < kNumbers; i += step) store(i, of_block[i]);  // its own
}

/// parts: blocks of a slice, which are neighbours.
template <class T, int kRows>
__global__ void __launch_bounds__(kThreads, kRows > 8 ? 1 : 2)
    down_channels(const DownChannelsParams p, const int parts) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Pack = cuda::Pack<T>;
  const int rank = static_cast<int>(blockIdx.x) % parts;
  const int64_t first_column = int64_t{static_cast<int>(blockIdx.x) / parts} * kSliceColumns<T>;
  Pieces<T, kRows> pieces{
      .p = p,
      .n = listed(p),
      .parts = parts,
      .rank = rank,
      .column = first_column + threadIdx.x % kPieceLanes * Pack::kSize,
      .ring = static_cast<unsigned>(__cvta_generic_to_shared(shared)) + threadIdx.x * 16};
  constexpr int kOfStage = kEach<kRows>, kStages = Pieces<T, kRows>::kStages;
  const int in_step = kOfStage * parts * kAtOnce;
  const int steps = (pieces.n + in_step - 1) / in_step;
  pieces.look_up();
  for (int s = 0; s < kStages; ++s) pieces.issue(s);
  cuda::wait_for_previous();  // for y and out

  float sums[kRows][Pack::kSize] = {};
  int stage = 0;
  for (int s = 0; s < steps; ++s) {
    float factors[kOfStage][kRows];
#pragma unroll
    for (int e = 0; e < kOfStage; ++e) {
      const int i = pieces.place(s, e);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        factors[e][r] = i < pieces.n && r < p.rows
                            ? cuda::to_float(static_cast<const T*>(p.y)[r * p.y_stride + i])
                            : 0.0f;
    }
    cuda::copies_wait<kStages - 1>();
#pragma unroll
    for (int e = 0; e < kOfStage; ++e) {
      const Pack w = *reinterpret_cast<const Pack*>(
          shared + ((stage * kOfStage + e) * kThreads + threadIdx.x) * 16);
#pragma unroll
      for (int c = 0; c < Pack::kSize; ++c) {
        const float weight = cuda::to_float(w.at[c]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) sums[r][c] = fmaf(factors[e][r], weight, sums[r][c]);
      }
    }
    pieces.issue(stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  cuda::release_next();
  add_up<T, kRows>(p, sums, reinterpret_cast<float*>(shared), parts, rank, first_column);
}

/// For any width and address: a thread a column.
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

template <class T, int kRows>
void launch_rows(const DownChannelsParams& p, Stream stream) {
  const cuda::Gpu& gpu = cuda::gpu();
  const int slices = (p.width + kSliceColumns<T> - 1) / kSliceColumns<T>;
  // By the width alone: a row's bits are the same in any company.
  int parts = 1;
  while (gpu.isa == cuda::GpuIsa::hopper && parts < 8 &&
         2 * parts * slices <= 2 * gpu.multiprocessors)
    parts *= 2;
  constexpr int kSumBytes = (kWarps + 1) * kRows * kSliceColumns<T> * 4;
  constexpr int kBytes = std::max(kRingBytes, kSumBytes);
  (void)cudaFuncSetAttribute(down_channels<T, kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kBytes);
  cuda::launch(down_channels<T, kRows>, static_cast<unsigned>(slices * parts), kThreads, kBytes,
               parts, stream, p, parts);
}

}  // namespace

void down_channels_cuda(const DownChannelsParams& p, Stream stream) {
  if (p.rows == 0 || p.width == 0) return;
  cuda::with_act(p.type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    if (!cuda::packable<T>(p.width, p.w))
      return cuda::launch(down_channels_plain<T>, cuda::blocks_for(p.width, kPlainThreads),
                          kPlainThreads, stream, p);
    if (p.rows == 1) return launch_rows<T, 1>(p, stream);
    if (p.rows == 2) return launch_rows<T, 2>(p, stream);
    if (p.rows <= 4) return launch_rows<T, 4>(p, stream);
    if (p.rows <= 8) return launch_rows<T, 8>(p, stream);
    launch_rows<T, 16>(p, stream);
  });
}

}  // namespace tandem
