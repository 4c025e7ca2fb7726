#include <cmath>

#include "kernels/sample/row_cut.cuh"
#include "kernels/sample/row_launch.cuh"
#include "kernels/sample/row_stats.cuh"
#include "kernels/sample/sample_cuda.h"

namespace tandem {
namespace {

using cuda::Best;
using cuda::RowCluster;

/// What the launch works out once.
struct Rule {
  float inverse_temperature;
  bool quick_division;
  uint64_t least_weight;  // of min-p
};

/// Out of line: where it is used, speed is not wanted and its code would be in the way.
__device__ __noinline__ float divide(float x, float y) { return __fdiv_rn(x, y); }

/// x / temperature, rounded once as on the CPU.
class Temper {
 public:
  __device__ Temper(const SampleParams& p, const Rule& rule)
      : temperature_(p.rule.temperature),
        inverse_(rule.inverse_temperature),
        quick_(rule.quick_division) {}

  __device__ float operator()(float x) const {
    if (!quick_) return divide(x, temperature_);
    // Two corrections by the exact remainder. The first brings the quotient within one spacing of
    // the exact one; from there, with a correctly rounded reciprocal, the second rounds correctly
    // (Markstein's theorem). Infinities become NaN, whose weight is 0 as well.
    float q = x * inverse_;
    q = fmaf(fmaf(-q, temperature_, x), inverse_, q);
    return fmaf(fmaf(-q, temperature_, x), inverse_, q);
  }

 private:
  float temperature_, inverse_;
  bool quick_;
};

__host__ __device__ bool penalizes(const SampleParams& p) {
  return p.seen != nullptr && p.rule.repetition_penalty != 1.0f;
}

/// Penalises the seen tokens of this block's part, each once however often it was seen.
__device__ void penalize(const SampleParams& p, int64_t r, const RowCluster& row, uint32_t* marks) {
  for (int w = static_cast<int>(threadIdx.x); w * 32 < row.size(); w += cuda::kRowThreads)
    marks[w] = 0;
  __syncthreads();
#pragma unroll 1
  for (int s = p.seen_begin[r] + static_cast<int>(threadIdx.x); s < p.seen_begin[r + 1];
       s += cuda::kRowThreads) {
    const int i = p.seen[s] - row.first();
    if (i < 0 || i >= row.size()) continue;
    const uint32_t bit = 1u << (i % 32);
    if ((atomicOr(&marks[i / 32], bit) & bit) != 0) continue;
    const float x = row.logit(i);
    row.logit(i) = x < 0 ? x * p.rule.repetition_penalty : divide(x, p.rule.repetition_penalty);
  }
  __syncthreads();
}

/// The number of weights at and before the drawn token that the draw passes, as draw() of
/// sample.inl.
__device__ uint64_t scale_uniform(double uniform, uint64_t total) {
  const auto u53 = static_cast<uint64_t>(uniform * 0x1p53);
  return __umul64hi(u53, total) << 11 | (u53 * total) >> 53;
}

__device__ void write(const SampleCudaParams& p, int64_t r, int32_t token, float lse) {
  p.sample.tokens[r] = token;
  if (p.next_ids != nullptr) p.next_ids[r] = token;
  if (p.lse != nullptr) p.lse[r] = lse;
  if (p.logprobs != nullptr)
    p.logprobs[r] = token == kInvalidToken ? cuda::quiet_nan()
                                           : p.sample.logits[r * p.sample.vocab + token] - lse;
}

/// Draws by the weights of all tokens; the token in one warp, else -1.
__device__ int draw_any(const SampleParams& p, const Temper& temper, int64_t r, RowCluster& row,
                        float max) {
  cuda::WeightSum mine;
  row.each<4>([&](int i) { mine.add(temper(row.logit(i) - max)); });
  return row.find_first(
      mine.total(), [&](int i) { return weight_of(temper(row.logit(i) - max)); },
      [&](uint64_t total) { return scale_uniform(p.uniform[r], total); });
}

/// Draws by the weights of what top-k, top-p and min-p leave; the token in one warp, else -1.
__device__ int draw_cut(const SampleParams& p, const Temper& temper, uint64_t least_weight,
                        int64_t r, RowCluster& row, cuda::CutShared& shared, float max) {
  const float spread = 28.5f * p.rule.temperature;  // a little more than has weights
  cuda::RowCut cut(row, shared, max, spread);
  const auto weight = [&](float x) { return weight_of(temper(x - max)); };
  // A loop, so that the code of the cut is there once.
#pragma unroll 1
  for (const bool by_weight : {false, true}) {
    if (by_weight ? p.rule.top_p >= 1.0 : p.rule.top_k <= 0 || p.rule.top_k >= p.vocab) continue;
    cut.narrow(
        [&](uint64_t total) -> uint64_t {
          if (!by_weight) return static_cast<uint64_t>(p.rule.top_k);
          const double share = ceil(p.rule.top_p * static_cast<double>(total));
          return share > 1.0 ? static_cast<uint64_t>(share) : 1;
        },
        [&](float x) -> uint64_t { return by_weight ? weight(x) : max - x < spread; });
  }
  const auto measure = [&](int i) -> uint64_t {
    if (!cut.keeps(i)) return 0;
    const uint64_t w = weight(row.logit(i));
    return w >= least_weight ? w : 0;
  };
  uint64_t mine = 0;
  row.each<4>([&](int i) { mine += measure(i); });
  return row.find_first(mine, measure,
                        [&](uint64_t total) { return scale_uniform(p.uniform[r], total); });
}

/// Rows whose largest logit is all that is wanted: they are read and not kept.
__global__ void __launch_bounds__(cuda::kRowThreads, 4)
    sample_best(const SampleCudaParams p, const cuda::RowSplit split) {
  __shared__ cuda::RowShared shared;
  cuda::start_after_previous();
  RowCluster row(split, nullptr, shared);
  const int64_t r = blockIdx.x / static_cast<unsigned>(split.parts);
  const Best best = row.load<false>(p.sample.logits + r * p.sample.vocab);
  if (row.rank() == 0 && threadIdx.x == 0)
    write(p, r, best.is_valid() ? best.id : kInvalidToken, 0);
  row.sync();  // others may still read this block's best
}

/// kCuts: whether top-k, top-p or min-p is on.
template <bool kCuts>
__global__ void __launch_bounds__(cuda::kRowThreads, kCuts ? 2 : 3)
    sample_rows(const SampleCudaParams p, const Rule rule, const cuda::RowSplit split) {
  extern __shared__ float4 dynamic[];
  __shared__ cuda::RowShared shared;
  const SampleParams& s = p.sample;
  cuda::start_after_previous();
  float* logits = reinterpret_cast<float*>(dynamic);
  RowCluster row(split, logits, shared);
  const int64_t r = blockIdx.x / static_cast<unsigned>(split.parts);
  Best best = row.load(s.logits + r * s.vocab);
  float lse = 0;
  if (p.logprobs != nullptr || p.lse != nullptr) lse = cuda::log_sum_exp(row, best);
  if (penalizes(s)) {
    penalize(s, r, row, reinterpret_cast<uint32_t*>(logits + cuda::kRowThreads * split.run));
    Best mine{0, 0};
    row.each([&](int i) { mine.consider(row.logit(i), row.first() + i); });
    best = row.best(mine);
  }
  if (!best.is_valid() || s.rule.temperature == 0.0f) {
    if (row.rank() == 0 && threadIdx.x == 0)
      write(p, r, best.is_valid() ? best.id : kInvalidToken, lse);
  } else {
    const Temper temper(s, rule);
    int token;
    if constexpr (kCuts) {
      __shared__ cuda::CutShared cut;
      token = draw_cut(s, temper, rule.least_weight, r, row, cut, best.logit());
    } else {
      token = draw_any(s, temper, r, row, best.logit());
    }
    if (token >= 0 && threadIdx.x % cuda::kWarp == 0) write(p, r, token, lse);
  }
  row.sync();  // others may still read this block's sums
}

Rule rule_of(const SampleParams& p) {
  const float t = p.rule.temperature;
  return {.inverse_temperature = t > 0 ? 1.0f / t : 0.0f,
          // So far from the ends of the exponent's range no step of the division loses bits.
          .quick_division = t >= 0x1p-60f && t <= 0x1p60f,
          .least_weight = p.rule.min_p > 0 ? static_cast<uint64_t>(std::ceil(
                                                 (p.rule.min_p < 1 ? p.rule.min_p : 1.0) * 0x1p40))
                                           : 0};
}

}  // namespace

void sample_cuda(const SampleCudaParams& p, Stream stream) {
  const SampleParams& s = p.sample;
  if (s.n_rows == 0) return;
  const cuda::RowSplit split = cuda::split_row(s.vocab, s.n_rows);
  if (s.rule.temperature == 0.0f && !penalizes(s) && p.logprobs == nullptr && p.lse == nullptr)
    return cuda::launch_rows(sample_best, s.n_rows, split, 0, stream, p);
  const size_t marks = penalizes(s) ? static_cast<size_t>(split.part_size() / 8) : 0;
  const bool cuts =
      (s.rule.top_k > 0 && s.rule.top_k < s.vocab) || s.rule.top_p < 1.0 || s.rule.min_p > 0;
  const size_t bytes = split.part_bytes() + marks;
  if (cuts)
    cuda::launch_rows(sample_rows<true>, s.n_rows, split, bytes, stream, p, rule_of(s));
  else
    cuda::launch_rows(sample_rows<false>, s.n_rows, split, bytes, stream, p, rule_of(s));
}

}  // namespace tandem
