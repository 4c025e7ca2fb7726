#include "kernels/channels/choose_channels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/scan.cuh"

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

/// The bound lies in [low, high): `reached` scores, at least those that are kept, are low or more;
/// `above`, fewer, are high or more.
struct Bracket {
  unsigned low, high;
  int reached, above;
  __device__ bool open(int keep) const { return reached > keep && high - low > 1; }
};

constexpr int kBins = 4 * kThreads;

struct Choosing {
  unsigned bins[kBins];
  Bracket found;
  int warps[2][kWarps];
  unsigned most[kWarps], bits[kWarps];
};

/// Narrows a bracket to a bin of 2^kShift orders, or, if the bin is the last, to all that lie below
/// the others: scores of the bracket are counted by bins that go down from its upper end.
template <int kShift, int kEach>
__device__ void narrow(Bracket& b, const Scores<kEach>& scores, int keep, Choosing& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  reinterpret_cast<uint4*>(shared.bins)[thread] = {0, 0, 0, 0};
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    if (const unsigned x = scores.x[e]; x >= b.low && x < b.high)
      atomicAdd(&shared.bins[min((b.high - 1 - x) >> kShift, kBins - 1u)], 1u);
  __syncthreads();
  const uint4 mine = reinterpret_cast<const uint4*>(shared.bins)[thread];
  const int n[4] = {static_cast<int>(mine.x), static_cast<int>(mine.y), static_cast<int>(mine.z),
                    static_cast<int>(mine.w)};
  int all;
  int upto = b.above + cuda::sum_before<kThreads>(n[0] + n[1] + n[2] + n[3], all);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int before = upto;
    upto += n[i];
    if (before >= keep || upto < keep) continue;  // true of all bins but one
    const unsigned bin = 4 * thread + i, high = b.high - (bin << kShift);
    shared.found = {bin + 1 == kBins ? b.low : max(b.low, high - (1u << kShift)), high, upto,
                    before};
  }
  __syncthreads();
  b = shared.found;
}

/// Narrows a bracket by halves until nothing is left to decide.
template <int kEach>
__device__ void halve(Bracket& b, const Scores<kEach>& scores, int keep, int (&warps)[2][kWarps]) {
  for (int turn = 0; b.open(keep); turn ^= 1) {
    const unsigned middle = b.low + (b.high - b.low) / 2;
    const int n = block_count(scores.count(middle), warps[turn]);
    if (n < keep) {
      b.high = middle;
      b.above = n;
    } else {
      b.low = middle;
      b.reached = n;
    }
  }
}

/// The largest order that `keep` of the n scores reach, or a lower one that no more do; `reached`
/// by how many.
template <int kEach>
__device__ unsigned bound_of(const Scores<kEach>& scores, int keep, int n, Choosing& shared,
                             int& reached) {
  // Bins of a 64th of an octave, then of 32 orders: few scores are left, or equal ones.
  constexpr int kCoarse = 17, kFine = 5;
  unsigned most = 0, bits = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    most = max(most, scores.x[e]);
    bits |= scores.x[e];
  }
  most = __reduce_max_sync(cuda::kAllLanes, most);
  bits = __reduce_or_sync(cuda::kAllLanes, bits);
  if (cuda::lane_of() == 0) {
    shared.most[cuda::warp_of()] = most;
    shared.bits[cuda::warp_of()] = bits;
  }
  __syncthreads();
  most = __reduce_max_sync(cuda::kAllLanes, shared.most[cuda::lane_of()]);
  bits = __reduce_or_sync(cuda::kAllLanes, shared.bits[cuda::lane_of()]);

  Bracket b{1, most + 1, n, 0};
  narrow<kCoarse>(b, scores, keep, shared);
  if (b.open(keep) && b.high - b.low <= 1u << kCoarse) {
    narrow<kFine>(b, scores, keep, shared);
    // Magnitudes that come from bf16 have no bits within a bin.
    if (b.open(keep) && bits % (1u << kFine) == 0) b.low = b.high - 1;
  }
  halve(b, scores, keep, shared.warps);
  reached = b.reached;
  return b.low;
}

template <int kEach, bool kByThreshold>
__global__ void __launch_bounds__(kThreads) choose_channels_list(const ChooseChannelsParams p) {
  __shared__ int above_before[kWarps], equal_before[kWarps];
  cuda::start_after_previous();
  const int64_t l = blockIdx.x;
  Scores<kEach> scores;
  scores.load(p.scores + l * p.score_stride, p.n_channels);
  int reached = 0;
  unsigned least;
  if constexpr (kByThreshold) {
    least = order_of(p.threshold);
  } else {
    __shared__ Choosing shared;
    least = bound_of(scores, p.keep, p.n_channels, shared, reached);
  }
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
      if (kByThreshold && p.counted != nullptr) {
        p.counted[2 * l] += 1;
        p.counted[2 * l + 1] += above + equal;
      }
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
