#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/adapter/grouped_products.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

// A block multiplies 16 values of an adapter by the rows of one of its groups, on tensor cores for
// any number of rows (they are padded to 16, so that a row's bits are the same in any company). Its
// warps share the columns: a lane reads 16 bytes of two values a step, which is four of both
// operands of two products, since products of any columns may be added in any order that both
// operands follow. On Hopper the blocks of a cluster share the columns and add up what they have
// through each other's shared memory: factors of low rank are few, and long. Neighbouring blocks
// are of neighbouring groups, which often share an adapter.

namespace tandem {
namespace {

using bf16x = __nv_bfloat16;

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarp;
constexpr int kValues = 16;  // of a block
constexpr int kStep = 32;    // columns of a warp's step
constexpr int kAhead = 4;    // steps whose values are on their way
constexpr int kPlainThreads = 256;
constexpr int kBlockColumns = 2048, kMostParts = 8;  // of a block, if a cluster shares them; of one
constexpr int kFewValues = 128;                      // tiles of more give work enough

__device__ const AdapterPart& part_of(const GroupedDotsParams& p, int group) {
  return p.parts[p.groups.adapter[group] * p.part_stride];
}

/// Sets or adds to y of a row, at a value's place.
template <class Y>
__device__ void put(const GroupedDotsParams& p, int32_t row, int32_t at, float sum) {
  Y* const y = static_cast<Y*>(p.y) + row * p.y_stride + at;
  *y = cuda::from_float<Y>(p.add ? cuda::to_float(*y) + sum : sum);
}

/// 16 bytes of two values, g and g + 8 of the tile.
struct Values {
  uint4 low, high;
};

/// The sum of all blocks of a cluster, in the first of them.
__device__ float cluster_sum(float* of_block, int parts) {
  float sum = of_block[threadIdx.x];
#if __CUDA_ARCH__ >= 900
  if (parts == 1) return sum;
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  for (int q = 1; q < parts && cluster.block_rank() == 0; ++q)
    sum += *cluster.map_shared_rank(of_block + threadIdx.x, static_cast<unsigned>(q));
  cluster.sync();  // no block may go while its sums are being read
#endif
  return sum;
}

/// parts: blocks that share the columns, neighbours.
template <class Y>
__global__ void __launch_bounds__(kThreads, 2)
    grouped_dots(const GroupedDotsParams p, const int parts) {
  __shared__ float sums[kWarps][kValues][kGroupRows];
  __shared__ float of_block[kThreads];
  if (!p.groups.settled) cuda::wait_for_previous();
  cuda::release_next();
  const int group = static_cast<int>(blockIdx.x) / parts;
  const int rank = static_cast<int>(blockIdx.x) % parts;
  const int first = static_cast<int>(blockIdx.y) * kValues;
  if (group >= *p.groups.n) return;
  const AdapterPart part = part_of(p, group);
  if (first >= part.n) return;
  const int32_t* const rows = p.groups.rows + group * kGroupRows;
  const int warp = cuda::warp_of(), lane = cuda::lane_of(), g = lane / 4, t = lane % 4;
  const bool many = rows[8] >= 0;

  const auto* const values = static_cast<const bf16x*>(part.values);
  const bool has_low = first + g < part.n, has_high = first + g + 8 < part.n;
  const bf16x* const low = values + int64_t{first + g} * p.in;
  const auto column = [&](int step) {
    return ((step * parts + rank) * kWarps + warp) * kStep + t * 8;
  };
  const auto load = [&](int step) {
    const int k = column(step);
    Values v{};
    if (k < p.in && has_low) v.low = __ldg(reinterpret_cast<const uint4*>(low + k));
    if (k < p.in && has_high)
      v.high = __ldg(reinterpret_cast<const uint4*>(low + int64_t{8} * p.in + k));
    return v;
  };
  Values ahead[kAhead];
#pragma unroll
  for (int s = 0; s < kAhead; ++s) ahead[s] = load(s);
  if (p.groups.settled) cuda::wait_for_previous();  // for x

  const bf16x* x[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t r = rows[g + 8 * half];
    x[half] = r < 0 ? nullptr : static_cast<const bf16x*>(p.x) + int64_t{r} * p.in;
  }
  float c[2][4] = {};
  const int all = parts * kWarps * kStep, steps = (p.in + all - 1) / all;
  for (int begin = 0; begin < steps; begin += kAhead) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      const Values v = ahead[s];
      const int k = column(begin + s);
      ahead[s] = load(begin + s + kAhead);
      const uint32_t first_half[4] = {v.low.x, v.high.x, v.low.y, v.high.y};
      const uint32_t second_half[4] = {v.low.z, v.high.z, v.low.w, v.high.w};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (half == 1 && !many) break;
        uint4 b{};
        if (x[half] != nullptr && k < p.in) b = *reinterpret_cast<const uint4*>(x[half] + k);
        cuda::mma_bf16(c[half], first_half, b.x, b.y);
        cuda::mma_bf16(c[half], second_half, b.z, b.w);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][g + i / 2 * 8][half * 8 + 2 * t + i % 2] = c[half][i];
  __syncthreads();
  const int j = static_cast<int>(threadIdx.x) / kGroupRows,
            r = static_cast<int>(threadIdx.x) % kGroupRows;
  static_assert(kThreads == kValues * kGroupRows);
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += sums[w][j][r];
  of_block[threadIdx.x] = sum;
  sum = cluster_sum(of_block, parts);
  if (rank == 0 && first + j < part.n && rows[r] >= 0)
    put<Y>(p, rows[r], part.index[first + j], sum);
}

/// For any type, number of columns and address: a warp a value.
template <class T, class Y>
__global__ void __launch_bounds__(kPlainThreads) grouped_dots_plain(const GroupedDotsParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  const int group = static_cast<int>(blockIdx.x);
  if (group >= *p.groups.n) return;
  const AdapterPart part = part_of(p, group);
  const int j = static_cast<int>(blockIdx.y) * (kPlainThreads / cuda::kWarp) + cuda::warp_of();
  if (j >= part.n) return;
  const T* const w = static_cast<const T*>(part.values) + int64_t{j} * p.in;
  for (int i = 0; i < kGroupRows; ++i) {
    const int32_t r = p.groups.rows[group * kGroupRows + i];
    if (r < 0) return;
    const T* const x = static_cast<const T*>(p.x) + int64_t{r} * p.in;
    float sum = 0;
    for (int k = cuda::lane_of(); k < p.in; k += cuda::kWarp)
      sum = fmaf(cuda::to_float(w[k]), cuda::to_float(x[k]), sum);
    sum = cuda::warp_sum(sum);
    if (cuda::lane_of() == 0) put<Y>(p, r, part.index[j], sum);
  }
}

/// Blocks that share the columns: by the sizes alone, so that a row's bits are the same in any
/// company.
int parts_of(int in, int most) {
  if (cuda::gpu().isa != cuda::GpuIsa::hopper || most > kFewValues) return 1;
  return std::clamp(in / kBlockColumns, 1, kMostParts);
}

}  // namespace

void grouped_dots_cuda(const GroupedDotsParams& p, Stream stream) {
  if (p.groups.most == 0 || p.most == 0) return;
  const auto groups = static_cast<unsigned>(p.groups.most);
  cuda::with_act(p.y_type, [&](auto* out) {
    using Y = std::remove_pointer_t<decltype(out)>;
    // Parts are allocated at 16 bytes.
    if (p.type == DType::bf16 && cuda::packable<bf16>(p.in, p.x)) {
      const int parts = parts_of(p.in, p.most);
      return cuda::launch(
          grouped_dots<Y>,
          dim3(groups * static_cast<unsigned>(parts), cuda::blocks_for(p.most, kValues)), kThreads,
          0, parts, stream, p, parts);
    }
    cuda::with_act(p.type, [&](auto* act) {
      using T = std::remove_pointer_t<decltype(act)>;
      cuda::launch(grouped_dots_plain<T, Y>,
                   dim3(groups, cuda::blocks_for(p.most, kPlainThreads / cuda::kWarp)),
                   kPlainThreads, stream, p);
    });
  });
}

}  // namespace tandem
