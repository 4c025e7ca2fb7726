#include "kernels/adapter/grouped_products.h"
#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

// A warp has 256 bytes of every value of an adapter, for the rows of one of its groups; kAlong
// warps of a block share the values, the others have columns next to these. A warp takes 16 values
// at a time, on tensor cores for any number of rows (they are padded to 16, so that a row's bits
// are the same in any company), and copies what it multiplies, and only that, into its own part of
// a ring: as down_channels.cu.

namespace tandem {
namespace {

using bf16x = __nv_bfloat16;

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarp;
constexpr int kAtOnce = 16;  // values of a warp's step
constexpr int kWarpColumns = 128;
constexpr int kPieces = kWarpColumns / 8;  // of 16 bytes, of a warp's columns of a value
constexpr int kStages = 3;
constexpr int kStageBytes = kAtOnce * kWarpColumns * 2;  // of a warp
constexpr int kRingBytes = kStages * kWarps * kStageBytes;
constexpr int kPlainThreads = 64;

/// The block's columns: of which target, and from which on.
struct Slice {
  GroupedTarget target;
  int begin;
};

/// Blocks that `each` columns of every target need.
__host__ __device__ int slices_of(const GroupedSumsParams& p, int each) {
  int n = 0;
  for (int t = 0; t < p.n_targets; ++t) n += (p.targets[t].width + each - 1) / each;
  return n;
}

__device__ Slice slice_of(const GroupedSumsParams& p, int block, int each) {
  int t = 0;
  for (; t + 1 < p.n_targets; ++t) {
    const int n = (p.targets[t].width + each - 1) / each;
    if (block < n) break;
    block -= n;
  }
  return {p.targets[t], block * each};
}

__device__ AdapterPart part_of(const GroupedSumsParams& p, int group, const Slice& slice) {
  return p.parts[p.groups.adapter[group] * p.part_stride + slice.target.part];
}

/// Where piece `c` of value `k` lies in a stage: the eight values that a load of a tile reads at
/// the same piece lie in different banks.
__device__ int piece_at(int k, int c) { return (k * kPieces + (c ^ k % 8)) * 16; }

/// A warp's way through the values: 16 neighbouring ones a step.
template <int kAlong>
struct Steps {
  const GroupedSumsParams& p;
  const AdapterPart& part;
  int width;       // of a value
  int64_t column;  // of the lane's pieces
  unsigned ring;   // shared address of the warp's part
  int32_t row[2];  // of the lane's rows of x, negative: none

  __device__ int place(int step) const {
    return (step * kAlong + cuda::warp_of() % kAlong) * kAtOnce;
  }
  /// Copies a step's values; zeros where there are none, and beyond the last column.
  __device__ void copy(int stage, int step) const {
    const unsigned to = ring + stage * kStageBytes;
    const int lane = cuda::lane_of();
#pragma unroll
    for (int e = 0; e < kAtOnce / 2; ++e) {
      const int k = e * 2 + lane / kPieces, j = place(step) + k;
      const bool wanted = j < part.n && column < width;
      const int64_t at = wanted ? int64_t{j} * width + column : 0;
      cuda::copy_async<16>(to + piece_at(k, lane % kPieces),
                           static_cast<const bf16x*>(part.values) + at, wanted);
    }
    cuda::copies_commit();
  }
  /// Columns of x of the lane's values of a step.
  __device__ void look_up(int step, int32_t (&index)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = place(step) + 2 * (cuda::lane_of() % 4) + i / 2 * 8 + i % 2;
      index[i] = j < part.n ? part.index[j] : -1;
    }
  }
  /// The lane's numbers of x for a step, as the left operand.
  __device__ void load(const int32_t (&index)[4], uint32_t (&x)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto* const of_row =
          static_cast<const unsigned short*>(p.x) + int64_t{row[i % 2]} * p.x_stride;
      uint32_t pair = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t at = index[i / 2 * 2 + half];
        if (row[i % 2] >= 0 && at >= 0) pair |= uint32_t{of_row[at]} << (16 * half);
      }
      x[i] = pair;
    }
  }
};

template <class Y, int kAlong>
__global__ void __launch_bounds__(kThreads, 2)
    grouped_sums(const __grid_constant__ GroupedSumsParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kSliceColumns = kWarps / kAlong * kWarpColumns;
  if (!p.groups.settled) cuda::wait_for_previous();
  const int group = static_cast<int>(blockIdx.x);
  // Asked for together: each takes as long to come as the other.
  const int n_groups = *p.groups.n;
  const int32_t adapter = p.groups.adapter[group];
  if (group >= n_groups) return;
  const Slice slice = slice_of(p, static_cast<int>(blockIdx.y), kSliceColumns);
  const AdapterPart part = p.parts[adapter * p.part_stride + slice.target.part];
  if (part.n == 0) return;
  const int32_t* const rows = p.groups.rows + group * kGroupRows;
  const int warp = cuda::warp_of(), lane = cuda::lane_of();
  const auto all = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int first_column = warp / kAlong * kWarpColumns;  // of the slice
  const Steps<kAlong> steps{.p = p,
                            .part = part,
                            .width = slice.target.width,
                            .column = slice.begin + first_column + lane % kPieces * 8,
                            .ring = all + warp * kStages * kStageBytes,
                            .row = {rows[lane / 4], rows[lane / 4 + 8]}};
  // Columns and x are read as far ahead as values: under load what L2 has takes as long to come.
  int32_t index[kStages][4];
  uint32_t x[kStages][4];
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    steps.look_up(stage, index[stage]);
    steps.copy(stage, stage);
  }
  if (p.groups.settled) cuda::wait_for_previous();  // for x and y
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    steps.load(index[stage], x[stage]);
    steps.look_up(stage + kStages, index[stage]);
  }
  float sums[kPieces][4] = {};
  for (int first = 0; steps.place(first) < part.n; first += kStages) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      cuda::copies_wait<kStages - 1>();
      __syncwarp();
      const unsigned from = steps.ring + stage * kStageBytes;
#pragma unroll
      for (int c = 0; c < kPieces; c += 2) {
        uint32_t w[4];
        cuda::load_tiles_transposed(w, from + piece_at(lane % 16, c + lane / 16));
        cuda::mma_bf16(sums[c], x[stage], w[0], w[1]);
        cuda::mma_bf16(sums[c + 1], x[stage], w[2], w[3]);
      }
      __syncwarp();  // all have read what the next copies write over
      steps.load(index[stage], x[stage]);
      steps.copy(stage, first + stage + kStages);
      steps.look_up(first + stage + 2 * kStages, index[stage]);
    }
  }
  cuda::release_next();
  cuda::copies_wait<0>();  // zeros beyond the last value are still being written
  __syncthreads();         // the ring's memory
  auto* const parts = reinterpret_cast<float*>(shared);  // [kAlong][kGroupRows][kSliceColumns]
  constexpr int kRowFloats = kGroupRows * kSliceColumns;
  static_assert(kAlong * kRowFloats * 4 <= kRingBytes);
#pragma unroll
  for (int c = 0; c < kPieces; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (steps.row[i / 2] >= 0)
        parts[warp % kAlong * kRowFloats + (lane / 4 + i / 2 * 8) * kSliceColumns + first_column +
              c * 8 + lane % 4 * 2 + i % 2] = sums[c][i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRowFloats; i += kThreads) {
    const int32_t row = rows[i / kSliceColumns];
    if (row < 0) break;  // and so are those of the rows after it
    const int column = slice.begin + i % kSliceColumns;
    if (column >= slice.target.width) continue;
    float sum = 0;
    for (int w = 0; w < kAlong; ++w) sum += parts[w * kRowFloats + i];
    Y* const y = static_cast<Y*>(p.y) + row * p.y_stride + slice.target.first + column;
    *y = cuda::from_float<Y>(cuda::to_float(*y) + sum);
  }
}

/// For any type, width and address: a thread a column.
template <class T, class Y>
__global__ void __launch_bounds__(kPlainThreads)
    grouped_sums_plain(const __grid_constant__ GroupedSumsParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  const int group = static_cast<int>(blockIdx.x);
  if (group >= *p.groups.n) return;
  const Slice slice = slice_of(p, static_cast<int>(blockIdx.y), kPlainThreads);
  const AdapterPart part = part_of(p, group, slice);
  const int column = slice.begin + static_cast<int>(threadIdx.x);
  if (column >= slice.target.width || part.n == 0) return;
  int32_t rows[kGroupRows];
  float sums[kGroupRows] = {};
#pragma unroll
  for (int r = 0; r < kGroupRows; ++r) rows[r] = p.groups.rows[group * kGroupRows + r];
  for (int j = 0; j < part.n; ++j) {
    const float value = cuda::to_float(
        static_cast<const T*>(part.values)[int64_t{j} * slice.target.width + column]);
    const int32_t at = part.index[j];
#pragma unroll
    for (int r = 0; r < kGroupRows; ++r)
      if (rows[r] >= 0)
        sums[r] = fmaf(cuda::to_float(static_cast<const T*>(p.x)[rows[r] * p.x_stride + at]), value,
                       sums[r]);
  }
#pragma unroll
  for (int r = 0; r < kGroupRows; ++r) {
    if (rows[r] < 0) continue;
    Y* const y = static_cast<Y*>(p.y) + rows[r] * p.y_stride + slice.target.first + column;
    *y = cuda::from_float<Y>(cuda::to_float(*y) + sums[r]);
  }
}

bool in_eights(const GroupedSumsParams& p) {
  for (int t = 0; t < p.n_targets; ++t)
    if (p.targets[t].width % 8 != 0) return false;
  return true;
}

template <class Y, int kAlong>
void launch_slices(const GroupedSumsParams& p, Stream stream) {
  constexpr int kColumns = kWarps / kAlong * kWarpColumns;
  const auto kernel = grouped_sums<Y, kAlong>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
  cuda::launch(
      kernel,
      dim3(static_cast<unsigned>(p.groups.most), static_cast<unsigned>(slices_of(p, kColumns))),
      kThreads, kRingBytes, 1, stream, p);
}

}  // namespace

void grouped_sums_cuda(const GroupedSumsParams& p, Stream stream) {
  if (p.groups.most == 0) return;
  const auto groups = static_cast<unsigned>(p.groups.most);
  cuda::with_act(p.y_type, [&](auto* out) {
    using Y = std::remove_pointer_t<decltype(out)>;
    if (p.type == DType::bf16 && in_eights(p)) {
      // As few warps as have a step or two each.
      if (p.most <= 4 * kAtOnce) return launch_slices<Y, 2>(p, stream);
      if (p.most <= 8 * kAtOnce) return launch_slices<Y, 4>(p, stream);
      return launch_slices<Y, 8>(p, stream);
    }
    cuda::with_act(p.type, [&](auto* act) {
      using T = std::remove_pointer_t<decltype(act)>;
      cuda::launch(grouped_sums_plain<T, Y>,
                   dim3(groups, static_cast<unsigned>(slices_of(p, kPlainThreads))), kPlainThreads,
                   stream, p);
    });
  });
}

}  // namespace tandem
