#include "kernels/adapter/grouped_products.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / cuda::kWarp;

__device__ int divide_up(int n, int by) { return (n + by - 1) / by; }

/// The adapter of a row, by the sequence that it belongs to.
__device__ int32_t adapter_of(const GroupRowsParams& p, int32_t row) {
  if (row >= p.row_begin[p.n_seqs]) return -1;
  int low = 0, high = p.n_seqs;  // row_begin[low] <= row < row_begin[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (p.row_begin[middle] <= row ? low : high) = middle;
  }
  if (p.row_begin[low + 1] - p.row_begin[low] > p.max_rows) return -1;
  return p.of_slot[p.slot[low]];
}

/// One block: a warp counts, and then places, an adapter's rows. `first`: of each adapter, in
/// dynamic shared memory.
__global__ void __launch_bounds__(kThreads) group_rows(const GroupRowsParams p) {
  extern __shared__ int32_t first[];
  cuda::wait_for_previous();
  const int warp = cuda::warp_of(), lane = cuda::lane_of();
  for (int r = static_cast<int>(threadIdx.x); r < p.n_rows; r += kThreads)
    p.of_row[r] = p.n_seqs > 0 ? adapter_of(p, r) : -1;
  __syncthreads();
  const auto scan = [&](int adapter, auto&& place) {
    int n = 0;
    for (int begin = 0; begin < p.n_rows; begin += cuda::kWarp) {
      const int r = begin + lane;
      const bool mine = r < p.n_rows && p.of_row[r] == adapter;
      const unsigned all = __ballot_sync(cuda::kAllLanes, mine);
      if (mine) place(r, n + __popc(all & ((1u << lane) - 1)));
      n += __popc(all);
    }
    return n;
  };
  for (int a = warp; a < p.n_adapters; a += kWarps) {
    const int n = scan(a, [](int, int) {});
    if (lane == 0) first[a] = divide_up(n, kGroupRows);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int n = 0;
    for (int a = 0; a < p.n_adapters; ++a) {
      const int groups = first[a];
      first[a] = n;
      n += groups;
    }
    *p.n = n;
  }
  __syncthreads();
  for (int a = warp; a < p.n_adapters; a += kWarps) {
    const int begin = first[a] * kGroupRows;
    const int n = scan(a, [&](int r, int at) { p.rows[begin + at] = r; });
    const int end = divide_up(n, kGroupRows) * kGroupRows;
    for (int i = n + lane; i < end; i += cuda::kWarp) p.rows[begin + i] = -1;
    for (int i = lane; i < end / kGroupRows; i += cuda::kWarp) p.adapter[first[a] + i] = a;
  }
}

}  // namespace

void group_rows_cuda(const GroupRowsParams& p, Stream stream) {
  cuda::launch(group_rows, 1, kThreads, static_cast<size_t>(p.n_adapters) * sizeof(int32_t), 1,
               stream, p);
}

}  // namespace tandem
