#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/gather/choose_keys_cuda.h"

namespace tandem {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / cuda::kWarp;
constexpr int kBits = 8, kBins = 1 << kBits;  // of a digit

/// Numbers of 0 or more are ordered as their bits are.
__device__ uint32_t order_of(float x) { return __float_as_uint(x); }

/// A block's shared memory.
struct Shared {
  int bins[kBins];
  int warps[2][kWarps];
  uint32_t prefix;
  int left;  // of the keys to choose, those whose digits so far are the prefix
};

__device__ void pool(const ChooseKeysParams& p, const float* votes, float* pooled) {
  const int reach = p.pool / 2;
  for (int t = static_cast<int>(threadIdx.x); t < p.n; t += kThreads) {
    float sum = 0;
    for (int i = max(0, t - reach); i <= min(p.n - 1, t + reach); ++i) sum += votes[i];
    pooled[t] = sum / static_cast<float>(p.pool);
  }
}

/// The m-th largest of the scores, digit by digit from the highest, and in `left` how many that
/// equal it are chosen.
__device__ uint32_t threshold(Shared& s, const float* scores, int n, int m) {
  if (threadIdx.x == 0) s.prefix = 0, s.left = m;
  for (int shift = 32 - kBits; shift >= 0; shift -= kBits) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) s.bins[i] = 0;
    __syncthreads();
    const uint32_t prefix = s.prefix, known = shift == 32 - kBits ? 0 : ~0u << (shift + kBits);
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
      const uint32_t x = order_of(scores[i]);
      if ((x & known) == prefix) atomicAdd(&s.bins[x >> shift & (kBins - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = kBins - 1;
      for (; bin > 0 && s.bins[bin] < s.left; --bin) s.left -= s.bins[bin];
      s.prefix = prefix | static_cast<uint32_t>(bin) << shift;
    }
    __syncthreads();
  }
  return s.prefix;
}

/// Writes the chosen tokens in their order.
__device__ void collect(Shared& s, const float* scores, int n, uint32_t least, int n_equal,
                        int first_id, int32_t* ids) {
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  const unsigned before_lane = (1u << threadIdx.x % cuda::kWarp) - 1;
  int above = 0, equal = 0;  // of the scores so far
  for (int begin = 0; begin < n; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const uint32_t x = i < n ? order_of(scores[i]) : 0;
    const bool is_above = i < n && x > least, is_equal = i < n && x == least;
    const unsigned votes_above = __ballot_sync(cuda::kAllLanes, is_above),
                   votes_equal = __ballot_sync(cuda::kAllLanes, is_equal);
    __syncthreads();
    if (before_lane == 0) {
      s.warps[0][warp] = __popc(votes_above);
      s.warps[1][warp] = __popc(votes_equal);
    }
    __syncthreads();
    int mine_above = above + __popc(votes_above & before_lane),
        mine_equal = equal + __popc(votes_equal & before_lane);
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) mine_above += s.warps[0][w], mine_equal += s.warps[1][w];
      above += s.warps[0][w], equal += s.warps[1][w];
    }
    if (is_above || (is_equal && mine_equal < n_equal))
      ids[mine_above + min(mine_equal, n_equal)] = first_id + i;
  }
}

/// A block a list. Releases nothing early: kernels that begin ahead of the one before them may read
/// lists.
__global__ void __launch_bounds__(kThreads) choose(const ChooseKeysParams p) {
  __shared__ Shared s;
  cuda::wait_for_previous();
  const int64_t list = blockIdx.x;
  float* const pooled = p.pooled + list * p.vote_stride;
  int32_t* const ids = p.ids + list * p.id_stride;
  pool(p, p.votes + list * p.vote_stride, pooled);
  for (int i = static_cast<int>(threadIdx.x); i < p.sinks; i += kThreads) ids[i] = i;
  __syncthreads();
  const int m = p.n_chosen - p.sinks;
  if (m == 0) return;
  const uint32_t least = threshold(s, pooled + p.sinks, p.n - p.sinks, m);
  collect(s, pooled + p.sinks, p.n - p.sinks, least, s.left, p.sinks, ids + p.sinks);
}

}  // namespace

void choose_keys_cuda(const ChooseKeysParams& p, Stream stream) {
  cuda::launch(choose, dim3(static_cast<unsigned>(p.n_lists)), kThreads, stream, p);
}

}  // namespace tandem
