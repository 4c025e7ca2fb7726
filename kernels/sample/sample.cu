#include "kernels/sample/row_launch.cuh"
#include "kernels/sample/row_rule.cuh"
#include "kernels/sample/row_stats.cuh"
#include "kernels/sample/sample_cuda.h"

namespace tandem::TANDEM_GPU_BODY {
namespace {

using cuda::Best;
using cuda::RowGroup;
using cuda::RowRule;

__host__ __device__ bool penalizes(const SampleParams& p) {
  return p.seen != nullptr && p.rule.repetition_penalty != 1.0f;
}

__device__ void write(const SampleParams& p, int64_t r, int32_t token, float lse) {
  p.tokens[r] = token;
  if (p.lse != nullptr) p.lse[r] = lse;
  if (p.logprobs != nullptr)
    p.logprobs[r] =
        token == kInvalidToken ? cuda::quiet_nan() : p.logits[r * p.vocab + token] - lse;
}

/// Draws by the weights of all tokens; the token in one warp, else -1.
__device__ int draw_any(const SampleParams& p, const cuda::Temper& temper, int64_t r, RowGroup& row,
                        float max) {
  cuda::WeightSum mine;
  row.each<4>([&](int i) { mine.add(temper(row.logit(i) - max)); });
  return row.find_first(
      mine.total(), [&](int i) { return weight_of(temper(row.logit(i) - max)); },
      [&](uint64_t total) { return weight_before(p.uniform[r], total); });
}

/// Draws by the weights of what top-k, top-p and min-p leave; the token in one warp, else -1.
__device__ int draw_cut(const SampleParams& p, const RowRule& rule, int64_t r, RowGroup& row,
                        cuda::CutShared& shared, float max) {
  const cuda::CutWeights weight(rule, p.vocab, row, shared, max);
  uint64_t mine = 0;
  row.each<4>([&](int i) { mine += weight(i); });
  return row.find_first(mine, weight,
                        [&](uint64_t total) { return weight_before(p.uniform[r], total); });
}

#ifdef TANDEM_HOPPER_BODY
constexpr int kBestBlocks = 4;
#else
constexpr int kBestBlocks = 3;
static_assert(kBestBlocks * cuda::kRowThreads <= 1536,
              "a multiprocessor of sm_86, sm_89 and sm_120 has 1536 threads");
#endif

/// Rows whose largest logit is all that is wanted: they are read and not kept.
__global__ void __launch_bounds__(cuda::kRowThreads, kBestBlocks)
    sample_best(const SampleParams p, const cuda::RowSplit split) {
  __shared__ cuda::RowShared shared;
  cuda::start_after_previous();
  const cuda::RowLink link(split, shared);
  RowGroup row(split, link, nullptr, shared);
  const int64_t r = link.row();
  const Best best = row.load<false>(p.logits + r * p.vocab);
  if (row.rank() == 0 && threadIdx.x == 0)
    write(p, r, best.is_valid() ? best.id : kInvalidToken, 0);
  row.sync();  // others may still read this block's best
}

template <bool kCuts>
struct Shared {
  cuda::RowShared row;
};
template <>
struct Shared<true> {
  cuda::RowShared row;
  cuda::CutShared cut;
};

/// kCuts: whether top-k, top-p or min-p is on.
template <bool kCuts>
__global__ void __launch_bounds__(cuda::kRowThreads, kCuts ? cuda::kBlocksASm : 3)
    sample_rows(const SampleParams p, const RowRule rule, const cuda::RowSplit split) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared<kCuts> shared;
  cuda::start_after_previous();
  const cuda::RowLink link(split, shared);
  float* const logits = link.data(reinterpret_cast<float*>(dynamic));
  RowGroup row(split, link, logits, shared.row);
  const int64_t r = link.row();
  Best best = row.load(p.logits + r * p.vocab);
  float lse = 0;
  if (p.logprobs != nullptr || p.lse != nullptr) lse = cuda::log_sum_exp(row, best);
  if (penalizes(p)) {
    const int32_t* seen = p.seen + p.seen_begin[r];
    auto* marks = reinterpret_cast<uint32_t*>(logits + cuda::kRowThreads * split.run);
    cuda::penalize(row, p.rule.repetition_penalty, marks, p.seen_begin[r + 1] - p.seen_begin[r],
                   [&](int i) { return seen[i]; });
    Best mine{0, 0};
    row.each([&](int i) { mine.consider(row.logit(i), row.first() + i); });
    best = row.best(mine);
  }
  if (!best.is_valid() || p.rule.temperature == 0.0f) {
    if (row.rank() == 0 && threadIdx.x == 0)
      write(p, r, best.is_valid() ? best.id : kInvalidToken, lse);
  } else {
    int token;
    if constexpr (kCuts) {
      token = draw_cut(p, rule, r, row, shared.cut, best.logit());
    } else {
      token = draw_any(p, rule.temper, r, row, best.logit());
    }
    if (token >= 0 && threadIdx.x % cuda::kWarp == 0) write(p, r, token, lse);
  }
  row.sync();  // others may still read this block's sums
}

}  // namespace

void sample_cuda(const SampleParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  const cuda::RowSplit split = cuda::split_row(cuda::gpu(), p.vocab, p.n_rows);
  if (p.rule.temperature == 0.0f && !penalizes(p) && p.logprobs == nullptr && p.lse == nullptr)
    return cuda::launch_rows(sample_best, p.n_rows, split, 0, p.workspace, stream, p);
  const size_t bytes = split.part_bytes() + (penalizes(p) ? cuda::mark_bytes(split) : 0);
  const auto kernel = cuda::has_cuts(p.rule, p.vocab) ? sample_rows<true> : sample_rows<false>;
  cuda::launch_rows(kernel, p.n_rows, split, bytes, p.workspace, stream, p, RowRule(p.rule));
}

}  // namespace tandem::TANDEM_GPU_BODY
