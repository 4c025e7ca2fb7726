#include "kernels/channels/choose_channels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr unsigned kLowest = 0x007fffffu;  // the order of -infinity

/// The order of f32, in which zeros are equal and no number is 0.
__device__ unsigned order_of(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) == 0) bits = 0;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/// The scores of a list in a block's registers: warps hold neighbouring ones, lanes every 32nd.
/// Places beyond the list have an order below all numbers.
template <int kEach>
struct Scores {
  unsigned x[kEach];

  __device__ static int place(int e) {
    return (cuda::warp_of() * kEach + e) * cuda::kWarp + cuda::lane_of();
  }
  __device__ void load(const float* scores, int n) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) x[e] = place(e) < n ? order_of(scores[place(e)]) : 0;
  }
  __device__ int count(unsigned least) const {  // of the warp
    int n = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) n += x[e] >= least ? 1 : 0;
    return static_cast<int>(__reduce_add_sync(cuda::kAllLanes, static_cast<unsigned>(n)));
  }
};

/// The sum of the warps' numbers in every thread. `warps` takes turns between two calls: one
/// barrier is enough.
__device__ int block_count(int of_warp, int (&warps)[kWarps]) {
  if (cuda::lane_of() == 0) warps[cuda::warp_of()] = of_warp;
  __syncthreads();
  const auto mine = static_cast<unsigned>(warps[cuda::lane_of()]);
  return static_cast<int>(__reduce_add_sync(cuda::kAllLanes, mine));
}

/// The largest bound that `keep` scores reach, bit by bit from the highest, or a lower one that no
/// more do; `reached` by how many.
template <int kEach>
__device__ unsigned bound_of(const Scores<kEach>& scores, int keep, int n, int (&warps)[2][kWarps],
                             int& reached) {
  unsigned bound = 0;
  reached = n;
  for (int bit = 31; bit >= 0 && reached > keep; --bit) {
    const unsigned higher = bound | 1u << bit;
    const int n_higher = block_count(scores.count(higher), warps[bit % 2]);
    if (n_higher < keep) continue;
    bound = higher;
    reached = n_higher;
  }
  return bound;
}

template <int kEach, bool kByThreshold>
__global__ void __launch_bounds__(kThreads) choose_channels_list(const ChooseChannelsParams p) {
  __shared__ int warps[2][kWarps];
  __shared__ int above_before[kWarps], equal_before[kWarps];
  cuda::start_after_previous();
  const int64_t l = blockIdx.x;
  Scores<kEach> scores;
  scores.load(p.scores + l * p.score_stride, p.n_channels);
  int reached = 0;
  unsigned least;
  if constexpr (kByThreshold)
    least = order_of(p.threshold);
  else
    least = bound_of(scores, p.keep, p.n_channels, warps, reached);
  least = max(least, kLowest);
  // Those at the bound are numbers that equal it only where more reach it than are kept.
  const int dropped = kByThreshold ? 0 : reached - p.keep;

  const int warp = cuda::warp_of(), lane = cuda::lane_of();
  const int of_warp = scores.count(least), above_of_warp = scores.count(least + 1);
  __syncthreads();
  if (lane == 0) {
    above_before[warp] = above_of_warp;
    equal_before[warp] = of_warp - above_of_warp;
  }
  __syncthreads();
  if (warp == 0) {  // a lane a warp
    int above = above_before[lane], equal = equal_before[lane];
    for (int step = 1; step < cuda::kWarp; step *= 2) {
      const int lower_above = __shfl_up_sync(cuda::kAllLanes, above, step);
      const int lower_equal = __shfl_up_sync(cuda::kAllLanes, equal, step);
      if (lane >= step) above += lower_above, equal += lower_equal;
    }
    if (lane == kWarps - 1) {
      p.n[l * p.n_stride] = above + equal - dropped;
    }
    above_before[lane] = above - above_before[lane];
    equal_before[lane] = equal - equal_before[lane];
  }
  __syncthreads();
  int above = above_before[warp], equal = equal_before[warp];
  int32_t* const ids = p.ids + l * p.id_stride;
  const unsigned lower_lanes = (1u << lane) - 1;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const bool is_above = scores.x[e] > least, is_equal = scores.x[e] == least;
    const unsigned all_above = __ballot_sync(cuda::kAllLanes, is_above);
    const unsigned all_equal = __ballot_sync(cuda::kAllLanes, is_equal);
    const int mine_above = above + __popc(all_above & lower_lanes);
    const int mine_equal = equal + __popc(all_equal & lower_lanes);
    if (is_above || (is_equal && mine_equal >= dropped))
      ids[mine_above + max(mine_equal - dropped, 0)] = Scores<kEach>::place(e);
    above += __popc(all_above);
    equal += __popc(all_equal);
  }
}

template <bool kByThreshold>
void choose(const ChooseChannelsParams& p, Stream stream) {
  if (p.n_lists == 0 || p.n_channels == 0) return;
  const auto run = [&](auto kernel) {
    cuda::launch(kernel, dim3(static_cast<unsigned>(p.n_lists)), kThreads, stream, p);
  };
  const int each = (p.n_channels + kThreads - 1) / kThreads;
  if (each <= 8) return run(choose_channels_list<8, kByThreshold>);
  if (each <= 14) return run(choose_channels_list<14, kByThreshold>);
  if (each <= 28) return run(choose_channels_list<28, kByThreshold>);
  run(choose_channels_list<64, kByThreshold>);
}

}  // namespace

void choose_channels_cuda(const ChooseChannelsParams& p, Stream stream) {
  choose<false>(p, stream);
}

void channels_above_cuda(const ChooseChannelsParams& p, Stream stream) { choose<true>(p, stream); }

}  // namespace tandem
