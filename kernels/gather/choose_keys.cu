#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/gather/choose_keys_cuda.h"

namespace tandem {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / cuda::kWarp;
constexpr int kBlocks = 3;  // of a multiprocessor: one waits while another reads
constexpr int kEach = 8;    // keys of a thread at a time
// The upper digit of an f16 distinguishes 32 steps of each power of two: few keys add to one bin.
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;

/// Numbers of 0 or more are ordered as their bits are.
struct Votes {
  static constexpr int kBits = 32;
  const float* at;

  /// The order of keys [i, i + kEach), those before n of them.
  __device__ void load(int i, int n, uint32_t (&x)[kEach]) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) x[e] = i + e < n ? __float_as_uint(at[i + e]) : 0;
  }
};

/// The same of f16 of either sign, of which there are kEach from any multiple of kEach below n on.
struct Scores {
  static constexpr int kBits = 16;
  const f16* at;

  __device__ void load(int i, int n, uint32_t (&x)[kEach]) const {
    if (i >= n) return;
    const uint4 pairs = *reinterpret_cast<const uint4*>(at + i);
    const uint32_t words[] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      uint32_t bits = words[e / 2] >> (e % 2 * 16) & 0xffff;
      if ((bits & 0x7fff) == 0) bits = 0;  // zeros are equal
      x[e] = bits >= 0x8000 ? bits ^ 0xffff : bits | 0x8000;
    }
  }
};

/// A block's shared memory.
struct Shared {
  int bins[kBins];
  int warps[kWarps];
  uint32_t prefix;
  int left;  // of the keys to choose, those whose digits so far are the prefix
};

/// The sum of x over the threads before this one, and over all.
__device__ int sum_before(Shared& s, int x, int& all) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  int sum = x;
  for (int step = 1; step < cuda::kWarp; step *= 2) {
    const int lower = __shfl_up_sync(cuda::kAllLanes, sum, step);
    if (lane >= step) sum += lower;
  }
  __syncthreads();
  if (lane == cuda::kWarp - 1) s.warps[warp] = sum;
  __syncthreads();
  all = 0;
  int before = sum - x;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += s.warps[w];
    all += s.warps[w];
  }
  return before;
}

/// Adds the digit of bins that holds the wanted key, counted from the largest, to the prefix.
__device__ void choose_bin(Shared& s, int low) {
  constexpr int kOwn = kBins / kThreads;
  const int first = kBins - 1 - static_cast<int>(threadIdx.x) * kOwn, wanted = s.left;
  int sum = 0, all;
  for (int i = 0; i < kOwn; ++i) sum += s.bins[first - i];
  int before = sum_before(s, sum, all);
  if (before >= wanted || before + sum < wanted) return;
  int bin = first;
  for (; before + s.bins[bin] < wanted; --bin) before += s.bins[bin];
  s.prefix |= static_cast<uint32_t>(bin) << low;
  s.left = wanted - before;
}

/// The m-th largest of n, digit by digit from the highest, and in `left` how many that equal it are
/// chosen.
template <class Keys>
__device__ uint32_t threshold(Shared& s, const Keys& keys, int n, int m) {
  if (threadIdx.x == 0) s.prefix = 0, s.left = m;
#pragma unroll
  for (int high = Keys::kBits; high > 0;) {
    const int low = max(high - kDigitBits, 0);
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) s.bins[i] = 0;
    __syncthreads();
    const uint32_t prefix = s.prefix, known = high == Keys::kBits ? 0 : ~0u << high;
    for (int i = static_cast<int>(threadIdx.x) * kEach; i < n; i += kThreads * kEach) {
      uint32_t x[kEach];
      keys.load(i, n, x);
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        if (i + e < n && (x[e] & known) == prefix)
          atomicAdd(&s.bins[x[e] >> low & ((1u << (high - low)) - 1)], 1);
    }
    __syncthreads();
    choose_bin(s, low);
    __syncthreads();
    high = low;
  }
  return s.prefix;
}

/// Writes the m chosen keys in their order.
template <class Keys>
__device__ void collect(Shared& s, const Keys& keys, int n, int m, uint32_t least, int n_equal,
                        int first_id, int32_t* ids) {
  int above = 0, equal = 0;  // of the keys so far
  for (int begin = 0; begin < n && above + min(equal, n_equal) < m; begin += kThreads * kEach) {
    const int i = begin + static_cast<int>(threadIdx.x) * kEach;
    uint32_t x[kEach];
    keys.load(i, n, x);
    int counts = 0;  // in the lower half of those above the threshold, in the upper of those at it
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (i + e < n) counts += x[e] > least ? 1 : x[e] == least ? 1 << 16 : 0;
    int all;
    const int before = sum_before(s, counts, all);
    int mine_above = above + (before & 0xffff), mine_equal = equal + (before >> 16);
#pragma unroll
    for (int e = 0; e < kEach && counts > 0; ++e) {
      const bool is_above = i + e < n && x[e] > least, is_equal = i + e < n && x[e] == least;
      if (is_above || (is_equal && mine_equal < n_equal))
        ids[mine_above + min(mine_equal, n_equal)] = first_id + i + e;
      mine_above += is_above ? 1 : 0;
      mine_equal += is_equal ? 1 : 0;
    }
    above += all & 0xffff;
    equal += all >> 16;
  }
}

/// Writes the m best of n keys to ids.
template <class Keys>
__device__ void choose_best(Shared& s, const Keys& keys, int n, int m, int first_id, int32_t* ids) {
  const uint32_t least = threshold(s, keys, n, m);
  collect(s, keys, n, m, least, s.left, first_id, ids);
}

__device__ void pool(const ChooseKeysParams& p, const float* votes, float* pooled) {
  const int reach = p.pool / 2;
  for (int t = static_cast<int>(threadIdx.x); t < p.n; t += kThreads) {
    float sum = 0;
    for (int i = max(0, t - reach); i <= min(p.n - 1, t + reach); ++i) sum += votes[i];
    pooled[t] = sum / static_cast<float>(p.pool);
  }
}

// Both kernels, a block a list, release nothing early: kernels that begin ahead of the one before
// them may read lists.

__global__ void __launch_bounds__(kThreads, kBlocks) choose(const ChooseKeysParams p) {
  __shared__ Shared s;
  cuda::wait_for_previous();
  const int64_t list = blockIdx.x;
  float* const pooled = p.pooled + list * p.vote_stride;
  int32_t* const ids = p.ids + list * p.id_stride;
  pool(p, p.votes + list * p.vote_stride, pooled);
  for (int i = static_cast<int>(threadIdx.x); i < p.sinks; i += kThreads) ids[i] = i;
  __syncthreads();
  if (p.n_chosen == p.sinks) return;
  choose_best(s, Votes{pooled + p.sinks}, p.n - p.sinks, p.n_chosen - p.sinks, p.sinks,
              ids + p.sinks);
}

__global__ void __launch_bounds__(kThreads, kBlocks) choose_scored(const ChooseScoredParams p) {
  __shared__ Shared s;
  cuda::wait_for_previous();
  const int head = static_cast<int>(blockIdx.x) % p.n_kv_heads;
  const int layer = static_cast<int>(blockIdx.x) / p.n_kv_heads;
  const int seq = static_cast<int>(blockIdx.y);
  const int n = p.base[seq] - p.recent;
  if (p.row_begin[seq] == p.row_begin[seq + 1] || n <= p.n_chosen) return;
  const int64_t row = p.slot[seq];
  if (layer == 0 && threadIdx.x == 0) {
    p.count[row * p.n_kv_heads + head] = p.n_chosen;
    if (head == 0) p.rest[row] = n;
  }
  const Scores scores{p.scores + row * p.score_row_stride +
                      (int64_t{p.layers[layer]} * p.n_kv_heads + head) * p.score_stride};
  choose_best(s, scores, n, p.n_chosen, 0,
              p.ids + row * p.row_stride + int64_t{blockIdx.x} * p.id_stride);
}

}  // namespace

void choose_keys_cuda(const ChooseKeysParams& p, Stream stream) {
  cuda::launch(choose, dim3(static_cast<unsigned>(p.n_lists)), kThreads, stream, p);
}

void choose_scored_cuda(const ChooseScoredParams& p, Stream stream) {
  if (p.n_seqs == 0 || p.n_layers == 0) return;
  cuda::launch(
      choose_scored,
      dim3(static_cast<unsigned>(p.n_layers * p.n_kv_heads), static_cast<unsigned>(p.n_seqs)),
      kThreads, stream, p);
}

}  // namespace tandem
