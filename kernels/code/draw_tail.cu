// A block a list: the scale of probabilities from some of its scores, a bit a key for those that
// are drawn, masses by runs, and ids in their order.
#include <math.h>

#include "kernels/code/judge_tail.cuh"
#include "kernels/code/tail_keys.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace tails {
namespace {

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

/// A list's sample.
struct Sample {
  float log_scale = 0;
  int n = 0;
};
__device__ Sample draw(const TailKeys& keys, double wanted, uint32_t* taken) {
  const auto about = static_cast<float>(wanted);
  Sample s{.log_scale = find_log_scale(keys, about)};
  s.n = take(keys, s.log_scale, taken);
  while (s.n > most_sampled(about)) s.n = take(keys, s.log_scale += kScaleRise, taken);
  return s;
}

/// The error of a list, and one more in the totals.
__device__ void leave_error(const TailErrorParams& p, int64_t list, double error) {
  p.error[list] = static_cast<float>(error);
  if (error < 0) return;
  constexpr double kMost = 1 << 10;
  atomicAdd(p.totals, static_cast<unsigned long long>(fmin(error, kMost) / kErrorUnit));
  atomicAdd(p.totals + 1, 1ull);
}

/// A sample large enough for the error aimed at, as far as `most` allows.
template <class T>
__device__ Sample draw_for_error(const DrawTailParams& p, int64_t list, const ChoosingRow& row,
                                 const TailKeys& keys, double share, uint32_t* taken) {
  const double most = fmax(static_cast<double>(kErrorPilot), share);
  double wanted = fmin(static_cast<double>(kErrorPilot), most);
  const TailJudge<T> judge(p, list, row, keys);
  Sample s = draw(keys, wanted, taken);
  double error = judge.error_of(s.log_scale, taken, s.n);
  if (error > p.by_error.aim && wanted < most) {
    // The variance falls as the sample grows.
    const double ratio = error / p.by_error.aim;
    wanted = fmin(most, wanted * (ratio * ratio));
    s = draw(keys, wanted, taken);
    error = judge.error_of(s.log_scale, taken, s.n);
  }
  if (threadIdx.x == 0) leave_error(p.by_error, list, error);
  return s;
}

/// T: of keys, for a budget by error; void without.
template <class T>
__global__ void __launch_bounds__(kThreads) draw_tail(const DrawTailParams p) {
  extern __shared__ uint32_t taken[];
  cuda::start_after_previous();
  const int64_t list = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const ChoosingRow row(p.choosing, static_cast<int>(list / p.n_heads));
  const TailKeys keys(p, list, row);
  const int before = p.count[list];
  int32_t* const ids = p.ids + list * p.stride;
  float *const bias = p.bias + list * p.stride, *const masses = p.masses + list * p.mass_stride;
  for (int i = thread; i < before; i += kThreads) bias[i] = 0;
  if (keys.n == 0 || before >= p.begin + keys.n) {
    for (int r = thread; r < keys.n_runs; r += kThreads) masses[r] = 0;
    if constexpr (!std::is_void_v<T>)
      if (thread == 0) leave_error(p.by_error, list, keys.n == 0 ? -1 : 0);
    return;
  }
  const double share = p.sample * keys.n;
  Sample s;
  if constexpr (std::is_void_v<T>)
    s = draw(keys, share, taken);
  else
    s = draw_for_error<T>(p, list, row, keys, share, taken);
  write_masses(keys, p.threshold[list], s.log_scale, taken, masses);
  write_ids(keys, s.log_scale, taken, p.begin, ids + before, bias + before);
  if (thread == 0) p.count[list] = before + s.n;
}

template <class T>
void launch(const DrawTailParams& p, Stream stream) {
  const int lists = (p.choosing.rows.end - p.choosing.rows.begin) * p.n_heads;
  const size_t bytes =
      sizeof(uint32_t) * kRunWords * static_cast<size_t>((p.max_keys + kMeanKeys - 1) / kMeanKeys);
  (void)cudaFuncSetAttribute(draw_tail<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(draw_tail<T>, dim3(static_cast<unsigned>(lists)), kThreads, bytes, 1, stream, p);
}

}  // namespace
}  // namespace tails

void draw_tail_cuda(const DrawTailParams& p, Stream stream) {
  if (p.choosing.rows.end == p.choosing.rows.begin || p.max_keys <= 0) return;
  if (!(p.by_error.aim > 0)) return tails::launch<void>(p, stream);
  cuda::with_act(p.by_error.dtype, [&](auto* type) {
    tails::launch<std::remove_pointer_t<decltype(type)>>(p, stream);
  });
}

}  // namespace tandem
