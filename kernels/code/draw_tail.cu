// A block a list: the scale of probabilities from some of its scores, a bit a key for those that
// are drawn, masses by runs, and ids in their order.
#include <math.h>

#include "base/philox.h"
#include "kernels/code/draw_tail.h"
#include "kernels/code/tail_means.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scan.cuh"
#include "kernels/gather/list_rows.cuh"
#include "kernels/selection/tail_numbers.h"

namespace tandem {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / cuda::kWarp;
constexpr int kRunWords = kMeanKeys / cuda::kWarp;  // of a bit a key
static_assert(kScaleScores == kThreads, "each thread has one of them");

__device__ int lane_of() { return static_cast<int>(threadIdx.x) % cuda::kWarp; }
__device__ int warp_of() { return static_cast<int>(threadIdx.x) / cuda::kWarp; }

/// One list's keys.
struct TailKeys {
  const float* scores;
  int n, n_runs;
  uint32_t draw_key;

  __device__ TailKeys(const DrawTailParams& p, int64_t list, const ChoosingRow& row)
      : scores(p.scores + list * p.score_stride),
        n(row.exists() ? p.ends[row.slot] - p.begin : 0),
        n_runs((n + kMeanKeys - 1) / kMeanKeys),
        draw_key(0) {
    if (!row.exists()) return;
    const int head = static_cast<int>(list % p.n_heads),
              kv_head = head / (p.n_heads / p.n_kv_heads);
    draw_key = philox_block({{static_cast<uint32_t>(p.choosing.pos[row.number]),
                              static_cast<uint32_t>(p.layer * p.n_kv_heads + kv_head),
                              static_cast<uint32_t>(DrawPurpose::keys), 0}},
                            p.seed)
                   .w[1];
  }
  /// Reads a lane's keys of a run, key word * kWarp + lane of it at [word]; -inf beyond the last.
  __device__ void load(int run, float (&x)[kRunWords]) const {
#pragma unroll
    for (int w = 0; w < kRunWords; ++w) {
      const int i = run * kMeanKeys + w * cuda::kWarp + lane_of();
      x[w] = i < n ? scores[i] : -INFINITY;
    }
  }
};

/// The scale of probabilities as a logarithm, by the whole block; inf: nothing to sample from.
__device__ float find_log_scale(const TailKeys& keys, float wanted) {
  __shared__ float tops[kWarps];
  __shared__ int n_above[kScaleRounds];
  __shared__ uint32_t units[kScaleRounds];
  const int thread = static_cast<int>(threadIdx.x), n = scale_scores(keys.n);
  const float each = static_cast<float>(keys.n) / static_cast<float>(n);
  const float score = thread < n ? keys.scores[int64_t{thread} * scale_step(keys.n)] : -INFINITY;
  __syncthreads();
  if (thread < kScaleRounds) n_above[thread] = 0, units[thread] = 0;
  const float top = cuda::warp_max(score);
  if (lane_of() == 0) tops[warp_of()] = top;
  __syncthreads();
  float log_scale = cuda::warp_max(tops[lane_of() % kWarps]);
  if (!(log_scale > -INFINITY)) return INFINITY;
  for (int round = 0; round < kScaleRounds; ++round) {
    const float w = score - log_scale;
    const int above = __popc(__ballot_sync(cuda::kAllLanes, w > 0));
    const uint32_t below = __reduce_add_sync(cuda::kAllLanes, w > 0 ? 0u : weight_units(w));
    if (lane_of() == 0) atomicAdd(&n_above[round], above), atomicAdd(&units[round], below);
    __syncthreads();
    const float change = scale_change({n_above[round], units[round]}, each, wanted);
    log_scale += change;
    if (ends_search(change)) break;
  }
  return log_scale;
}

/// Sets the bits of the keys that a scale takes, by the whole block; returns how many.
__device__ int take(const TailKeys& keys, float log_scale, uint32_t* taken) {
  __syncthreads();
  int own = 0, all;
#pragma unroll 1
  for (int run = warp_of(); run < keys.n_runs; run += kWarps) {
    float x[kRunWords];
    keys.load(run, x);
#pragma unroll
    for (int w = 0; w < kRunWords; ++w) {
      const int i = run * kMeanKeys + w * cuda::kWarp + lane_of();
      const uint32_t bits =
          __ballot_sync(cuda::kAllLanes, x[w] + exponential_of(keys.draw_key, i) >= log_scale);
      if (lane_of() == 0) taken[run * kRunWords + w] = bits;
      own += __popc(bits);
    }
  }
  cuda::sum_before<kThreads>(lane_of() == 0 ? own : 0, all);
  return all;
}

/// Writes what stands for the keys: estimated weights, corrected by those of the taken ones.
__device__ void write_masses(const TailKeys& keys, float threshold, float log_scale,
                             const uint32_t* taken, float* masses) {
#pragma unroll 1
  for (int run = warp_of(); run < keys.n_runs; run += kWarps) {
    float x[kRunWords], mass = 0;
    keys.load(run, x);
#pragma unroll
    for (int w = 0; w < kRunWords; ++w) {
      const float below = fminf(x[w], threshold) - threshold;
      mass += exp2f(below * kLog2E);
      if ((taken[run * kRunWords + w] >> lane_of() & 1) != 0)
        mass -= exp2f((below + fmaxf(log_scale - x[w], 0.0f)) * kLog2E);
    }
    mass = cuda::warp_sum(mass);
    if (lane_of() == 0) masses[run] = mass;
  }
}

/// Writes the tokens of set bits in their order, and their biases.
__device__ void write_ids(const TailKeys& keys, float log_scale, const uint32_t* taken, int first,
                          int32_t* ids, float* bias) {
  const int words = keys.n_runs * kRunWords, each = (words + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, words),
            end = min(begin + each, words);
  int own = 0, all;
  for (int w = begin; w < end; ++w) own += __popc(taken[w]);
  int at = cuda::sum_before<kThreads>(own, all);
  for (int w = begin; w < end; ++w)
    for (uint32_t word = taken[w]; word != 0; word &= word - 1) {
      const int i = w * cuda::kWarp + __ffs(static_cast<int>(word)) - 1;
      ids[at] = first + i;
      bias[at++] = fmaxf(log_scale - keys.scores[i], 0.0f);
    }
}

__global__ void __launch_bounds__(kThreads) draw_tail(const DrawTailParams p) {
  extern __shared__ uint32_t taken[];
  cuda::start_after_previous();
  const int64_t list = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const TailKeys keys(p, list, ChoosingRow(p.choosing, static_cast<int>(list / p.n_heads)));
  const int before = p.count[list];
  int32_t* const ids = p.ids + list * p.stride;
  float *const bias = p.bias + list * p.stride, *const masses = p.masses + list * p.mass_stride;
  for (int i = thread; i < before; i += kThreads) bias[i] = 0;
  if (keys.n == 0 || before >= p.begin + keys.n) {
    for (int r = thread; r < keys.n_runs; r += kThreads) masses[r] = 0;
    return;
  }
  const double share = p.sample * keys.n;
  const auto wanted = static_cast<float>(share);
  float log_scale = find_log_scale(keys, wanted);
  int n = take(keys, log_scale, taken);
  while (n > most_sampled(wanted)) n = take(keys, log_scale += kScaleRise, taken);
  write_masses(keys, p.threshold[list], log_scale, taken, masses);
  write_ids(keys, log_scale, taken, p.begin, ids + before, bias + before);
  if (thread == 0) p.count[list] = before + n;
}

}  // namespace

void draw_tail_cuda(const DrawTailParams& p, Stream stream) {
  const int lists = (p.choosing.rows.end - p.choosing.rows.begin) * p.n_heads;
  if (lists == 0 || p.max_keys <= 0) return;
  const size_t bytes =
      sizeof(uint32_t) * kRunWords * static_cast<size_t>((p.max_keys + kMeanKeys - 1) / kMeanKeys);
  (void)cudaFuncSetAttribute(draw_tail, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(draw_tail, dim3(static_cast<unsigned>(lists)), kThreads, bytes, 1, stream, p);
}

}  // namespace tandem
