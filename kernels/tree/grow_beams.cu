#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/select.h"
#include "kernels/sample/weights.h"
#include "kernels/tree/beam_level.h"

namespace tandem {
namespace {

using cuda::kAllLanes;
using cuda::kWarp;
using cuda::lane_of;
using cuda::warp_of;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
static_assert(kWarps == kMaxBeams, "each row of a sequence needs one warp");
static_assert(kMostBeamParts <= kWarp, "one warp reads the results of all parts of a row");

/// Of a token, the likelier the larger, of equals the lower the larger. 0: none.
using Key = unsigned long long;

__device__ Key key_of(float logit, int id) {
  const uint32_t k = order_key(logit);
  // A negative NaN lies below all numbers; as the largest it makes the row meaningless too.
  const uint32_t mine = k < kKeyMinusInf ? ~0u : k;
  return Key{mine} << 32 | ~static_cast<uint32_t>(id);
}
__device__ int32_t id_of(Key key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }
__device__ float logit_of(Key key) {
  const auto k = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((k & 0x80000000u) != 0 ? k ^ 0x80000000u : ~k);
}
__device__ bool has_meaning(Key best) {
  const auto k = static_cast<uint32_t>(best >> 32);
  return k > kKeyMinusInf && k < kKeyPlusInf;
}

__device__ Key warp_best(Key key) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Key other = __shfl_xor_sync(kAllLanes, key, step);
    key = other > key ? other : key;
  }
  return key;
}

/// What parts of rows leave for each other.
struct Parts {
  Key* tops;      // [rows, parts, kMaxBeams] largest first
  uint64_t* sum;  // [rows, parts] of weights
  int n;

  __host__ __device__ Parts(void* workspace, int n_rows, int n_parts)
      : tops(static_cast<Key*>(workspace)),
        sum(reinterpret_cast<uint64_t*>(tops + int64_t{n_rows} * n_parts * kMaxBeams)),
        n(n_parts) {}
  __device__ Key* tops_of(int64_t row, int part) const {
    return tops + (row * n + part) * kMaxBeams;
  }
  /// The largest of a row, by one warp.
  __device__ Key best_of(int64_t row) const {
    return warp_best(lane_of() < n ? tops_of(row, lane_of())[0] : 0);
  }
};

__device__ Parts parts_of(const GrowBeamsParams& p, int n_parts) {
  return {p.workspace, p.n_seqs * nodes_above(p), n_parts};
}

/// Tokens of a row that a part has.
__device__ Range part_range(int vocab, int parts) {
  const int each = (vocab + parts - 1) / parts, begin = static_cast<int>(blockIdx.x) * each;
  return {begin, begin + each < vocab ? begin + each : vocab};
}

/// The largest few keys that a thread has seen.
struct Few {
  Key key[kMaxBeams] = {};

  __device__ void consider(Key mine) {
    if (mine <= key[kMaxBeams - 1]) return;
#pragma unroll
    for (int i = 0; i < kMaxBeams; ++i)
      if (mine > key[i]) {
        const Key less = key[i];
        key[i] = mine;
        mine = less;
      }
  }
  /// Of all threads of a warp, one call after the other: the next largest.
  __device__ Key take() {
    const Key best = warp_best(key[0]);
    if (best != 0 && key[0] == best) {
#pragma unroll
      for (int i = 0; i + 1 < kMaxBeams; ++i) key[i] = key[i + 1];
      key[kMaxBeams - 1] = 0;
    }
    return best;
  }
};

/// Blocks of x for the parts of a row, of y for rows.
__global__ void __launch_bounds__(kThreads) find_tops(const GrowBeamsParams p, const int n_parts) {
  cuda::start_after_previous();
  __shared__ Key shared[kWarps][kMaxBeams];
  const int64_t row = blockIdx.y;
  const float* const logits = p.logits + row * p.vocab;
  const Range part = part_range(p.vocab, n_parts);
  Few few;
  for (int i = part.begin + static_cast<int>(threadIdx.x); i < part.end; i += kThreads)
    few.consider(key_of(logits[i], i));
  for (int i = 0; i < p.width; ++i) {
    const Key best = few.take();
    if (lane_of() == 0) shared[warp_of()][i] = best;
  }
  __syncthreads();
  if (warp_of() != 0) return;
  Few of_warps;
  if (lane_of() < kWarps)
    for (int i = 0; i < p.width; ++i) of_warps.consider(shared[lane_of()][i]);
  Key* const tops = parts_of(p, n_parts).tops_of(row, static_cast<int>(blockIdx.x));
  for (int i = 0; i < p.width; ++i) {
    const Key best = of_warps.take();
    if (lane_of() == 0) tops[i] = best;
  }
}

__global__ void __launch_bounds__(kThreads) sum_parts(const GrowBeamsParams p, const int n_parts) {
  cuda::start_after_previous();
  __shared__ unsigned long long shared[kWarps];
  const int64_t row = blockIdx.y;
  const float* const logits = p.logits + row * p.vocab;
  const Parts parts = parts_of(p, n_parts);
  const Key best = parts.best_of(row);
  if (!has_meaning(best)) return;
  const float max = logit_of(best);
  const Range part = part_range(p.vocab, n_parts);
  unsigned long long sum = 0;
  for (int i = part.begin + static_cast<int>(threadIdx.x); i < part.end; i += kThreads)
    sum += weight_of((logits[i] - max) / p.temperature);
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (lane_of() == 0) shared[warp_of()] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) sum += shared[w];
  parts.sum[row * n_parts + blockIdx.x] = sum;
}

/// A block a sequence, a warp of it a row.
__global__ void __launch_bounds__(kThreads) take_level(const GrowBeamsParams p, const int n_parts) {
  cuda::start_after_previous();
  __shared__ BeamTops tops[kMaxBeams];
  const int seq = static_cast<int>(blockIdx.x), n_above = nodes_above(p), i = warp_of();
  const Parts parts = parts_of(p, n_parts);
  if (i < n_above) {
    const int64_t row = int64_t{seq} * n_above + i;
    unsigned long long sum = lane_of() < n_parts ? parts.sum[row * n_parts + lane_of()] : 0;
    for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    const double log_sum = log(static_cast<double>(sum) * 0x1p-40);
    const double before = score_above(p, seq, i);
    Few few;
    if (lane_of() < n_parts)
      for (int k = 0; k < p.width; ++k) few.consider(parts.tops_of(row, lane_of())[k]);
    Key best = 0;
    for (int k = 0; k < p.width; ++k) {
      const Key key = few.take();
      if (k == 0) best = key;
      if (lane_of() != 0) continue;
      const float y = (logit_of(key) - logit_of(best)) / p.temperature;
      tops[i].score[k] = before + (static_cast<double>(y) - log_sum);
      tops[i].token[k] = id_of(key);
    }
    if (lane_of() == 0) tops[i].has_meaning = has_meaning(best);
  }
  __syncthreads();
  if (threadIdx.x == 0) write_level(p, seq, tops);
  __syncthreads();
  if (p.whole.mask == nullptr) return;
  const int begin = first_of_level(p), thread = static_cast<int>(threadIdx.x);
  for (int w = thread; w < p.width * p.whole.words; w += kThreads)
    write_mask(p, seq, begin + w / p.whole.words, w % p.whole.words);
  __syncthreads();
  if (p.next.mask == nullptr) return;
  for (int w = thread; w < p.width * p.next.words; w += kThreads)
    write_next_mask(p, seq, begin + w / p.next.words, w % p.next.words);
}

}  // namespace

void grow_beams_cuda(const GrowBeamsParams& p, Stream stream) {
  if (p.n_seqs == 0) return;
  const int n_parts = beam_parts(p.vocab);
  const dim3 parts(static_cast<unsigned>(n_parts),
                   static_cast<unsigned>(p.n_seqs * nodes_above(p)));
  cuda::launch(find_tops, parts, kThreads, stream, p, n_parts);
  cuda::launch(sum_parts, parts, kThreads, stream, p, n_parts);
  cuda::launch(take_level, static_cast<unsigned>(p.n_seqs), kThreads, stream, p, n_parts);
}

}  // namespace tandem
