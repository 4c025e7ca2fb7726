#include "kernels/sample/row_launch.cuh"
#include "kernels/sample/row_rule.cuh"
#include "kernels/sample/sample_cuda.h"
#include "kernels/tree/draw_children.h"
#include "kernels/tree/leaders.cuh"
#include "kernels/tree/race.h"

namespace tandem::TANDEM_GPU_BODY {
namespace {

using cuda::RowGroup;

__device__ float infinity() { return __int_as_float(0x7f800000); }

/// The runners of a race, with the keys of draw_children.inl. Those of weight 0 follow all others:
/// as if their weight were 2^-60, since E lies between 2^-53 and 37.
class Race {
 public:
  __device__ Race(const float* logits, float max, const cuda::Temper& temper,
                  const RaceNames& names)
      : logits_(logits), max_(max), temper_(temper), names_(names) {}

  /// Fills the orders of a row; the smallest of this thread's.
  __device__ float fill(const RowGroup& row) const {
    float least = infinity();
    const int n_blocks = (row.size() + 63) / 64 * 16;
    for (int b = static_cast<int>(threadIdx.x); b < n_blocks; b += cuda::kRowThreads) {
      const auto block = static_cast<uint32_t>(row.first() / 4 + b);
      const PhiloxBlock words = words_of(block);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int i = b / 16 * 64 + b % 16 + 16 * w;
        if (i >= row.size()) continue;
        const float order = order_of(words.w[w], block, w, row.logit(i));
        row.logit(i) = order;
        least = fminf(least, order);
      }
    }
    return least;
  }
  __device__ uint64_t key(int32_t id) const {
    const auto x = static_cast<uint32_t>(id);
    const uint32_t block = x / 64 * 16 + x % 16, w = x % 64 / 16;
    const double e = exponential_of(words_of(block).w[w], words_of(block | kMoreBits).w[w]);
    const float weight = truncf(scaled(logits_[id]));
    return static_cast<uint64_t>(
        __double_as_longlong(e / (weight > 0.0f ? static_cast<double>(weight) : kRest)));
  }
  /// Orders are good to 2^-9.
  __device__ float latest(float order) const { return order * (1.0f + 0x1p-7f); }

 private:
  static constexpr double kRest = 0x1p-60;

  __device__ PhiloxBlock words_of(uint32_t block) const {
    return philox_block({{block, names_.round.sequence, names_.round.position, last_word(names_)}},
                        names_.round.seed);
  }
  __device__ float scaled(float logit) const { return scaled_exp(temper_(logit - max_)); }

  __device__ float order_of(uint32_t leading, uint32_t block, int w, float logit) const {
    const float weight = truncf(scaled(logit));
    return __fdividef(exponential(leading, block, w),
                      weight > 0.0f ? weight : static_cast<float>(kRest));
  }
  /// E from its leading bits; where these do not settle it to 2^-10, from all.
  __device__ float exponential(uint32_t leading, uint32_t block, int w) const {
    constexpr uint32_t kFew = 1024;
    if (leading + kFew < 2 * kFew)
      return static_cast<float>(exponential_of(leading, words_of(block | kMoreBits).w[w]));
    const float v = __uint2float_rn(leading) * 0x1p-32f;
    if (v < 0x1p-4f) return v * (1.0f + v * (0.5f + v * 0.33333333f));
    return -__logf(__uint2float_rn(~leading) * 0x1p-32f);
  }

  const float* logits_;
  float max_;
  const cuda::Temper& temper_;
  RaceNames names_;
};

/// At temperature 0 the larger logit comes first.
class Ranking {
 public:
  __device__ explicit Ranking(const float* logits) : logits_(logits) {}

  __device__ float fill(const RowGroup& row) const {
    float least = infinity();
    for (int i = static_cast<int>(threadIdx.x); i < row.size(); i += cuda::kRowThreads) {
      row.logit(i) = -row.logit(i);
      least = fminf(least, row.logit(i));
    }
    return least;
  }
  __device__ uint64_t key(int32_t id) const { return ~order_key(logits_[id]); }
  __device__ float latest(float order) const { return order; }

 private:
  const float* logits_;
};

struct Shared {
  cuda::RowShared row;
  cuda::LeadersShared leading;
};

/// A group of blocks a row.
template <bool kRace>
__global__ void __launch_bounds__(cuda::kRowThreads, cuda::kBlocksASm)
    draw_rows(const DrawChildrenParams p, const cuda::Temper temper, const cuda::RowSplit split) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared shared;
  cuda::start_after_previous();
  const cuda::RowLink link(split, shared);
  RowGroup row(split, link, link.data(reinterpret_cast<float*>(dynamic)), shared.row);
  const int64_t r = link.row();
  const ParentRow parent = p.parents[r];
  int32_t* tokens = p.tokens + parent.first_child;
  const float* logits = p.logits + r * split.vocab;
  const RaceNames names{names_of(p.numbers, parent.seq), static_cast<uint32_t>(parent.node)};
  const cuda::Best best = row.load(logits);
  if (parent.n_children == 0) return row.sync();
  const auto draw = [&](const auto& runners) {
    cuda::Leaders leaders(row, shared.leading, runners);
    leaders.write(tokens, parent.n_children, runners.fill(row));
  };
  if (!best.is_valid()) {
    const int i = static_cast<int>(threadIdx.x) + row.rank() * cuda::kRowThreads;
    for (int c = i; c < parent.n_children; c += cuda::kRowThreads * row.parts())
      tokens[c] = kInvalidToken;
  } else if constexpr (kRace) {
    draw(Race(logits, best.logit(), temper, names));
  } else {
    draw(Ranking(logits));
  }
  row.sync();  // others may still read this block's shared memory
}

}  // namespace

void draw_children_cuda(const DrawChildrenParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  const cuda::RowSplit split = cuda::split_rows_at_once(cuda::gpu(), p.vocab, p.n_rows);
  const auto kernel = p.temperature > 0.0f ? draw_rows<true> : draw_rows<false>;
  cuda::launch_rows(kernel, p.n_rows, split, split.part_bytes(), p.workspace, stream, p,
                    cuda::Temper(p.temperature));
}

}  // namespace tandem::TANDEM_GPU_BODY
