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

/// A row as it is given. A name of a token is its id.
class Logits {
 public:
  __device__ explicit Logits(const float* logits) : logits_(logits) {}
  __device__ static int32_t name(int32_t id, int) { return id; }
  __device__ static int32_t id(int32_t name) { return name; }
  __device__ float operator()(int32_t name) const { return logits_[name]; }

 private:
  const float* logits_;
};

/// A row with a penalty. Names, in the order of ids, say whether a token bears it, since a block
/// has the marks of one part alone.
class PenalizedLogits {
 public:
  /// marks    of this block's part; null without penalty
  __device__ PenalizedLogits(const float* logits, float penalty, const uint32_t* marks)
      : logits_(logits), penalty_(penalty), marks_(marks) {}
  __device__ int32_t name(int32_t id, int i) const {
    const uint32_t bit = marks_ != nullptr ? marks_[i / 32] >> (i % 32) & 1 : 0;
    return 2 * id + static_cast<int32_t>(bit);
  }
  __device__ static int32_t id(int32_t name) { return name / 2; }
  __device__ float operator()(int32_t name) const {
    const float logit = logits_[id(name)];
    return name % 2 == 0 ? logit : cuda::penalized(logit, penalty_);
  }

 private:
  const float* logits_;
  float penalty_;
  const uint32_t* marks_;
};

// What E is divided by. Those that come after all others run with less than 2^-59 of their weight,
// since E lies between 2^-53 and 37 and weights between 1 and 2^40: keys of the others are below
// 2^6, theirs from 2^7 to 2^106.
constexpr float kRest = 0x1p-100f;

class AllWeights {
 public:
  __device__ AllWeights(float max, const cuda::Temper& temper) : max_(max), temper_(temper) {}
  __device__ float operator()(float logit, int32_t) const {
    const float weight = truncf(scaled_exp(temper_(logit - max_)));
    return weight > 0.0f ? weight : kRest;
  }

 private:
  float max_;
  const cuda::Temper& temper_;
};

class KeptWeights {
 public:
  __device__ explicit KeptWeights(const cuda::CutWeights& cuts) : cuts_(cuts) {}
  __device__ float operator()(float logit, int32_t id) const {
    const uint64_t weight = cuts_.weight(logit);
    const float exact = static_cast<float>(static_cast<int64_t>(weight));
    return weight > 0 && cuts_.keeps(logit, id, weight) ? exact : fmaxf(exact, 1.0f) * kRest;
  }

 private:
  const cuda::CutWeights& cuts_;
};

/// The runners of a race, with the keys of draw_children.inl.
template <class Row, class Weights>
class Race {
 public:
  __device__ Race(const Row& logits, const Weights& weights, const RaceNames& names)
      : logits_(logits), weights_(weights), names_(names) {}

  /// Fills the orders of a row; the smallest of this thread's.
  __device__ float fill(const RowGroup& row) const {
    float least = infinity();
    const int n_blocks = (row.size() + 63) / 64 * 16;
    for (int b = static_cast<int>(threadIdx.x); b < n_blocks; b += cuda::kRowThreads) {
      const auto block = static_cast<uint32_t>(row.first() / 4 + b);
      const PhiloxBlock words = race_block(names_, block);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int i = b / 16 * 64 + b % 16 + 16 * w;
        if (i >= row.size()) continue;
        const float order =
            __fdividef(exponential(words.w[w], block, w), weights_(row.logit(i), row.first() + i));
        row.logit(i) = order;
        least = fminf(least, order);
      }
    }
    return least;
  }
  __device__ int32_t name(int32_t id, int i) const { return logits_.name(id, i); }
  __device__ int32_t id(int32_t name) const { return logits_.id(name); }
  __device__ uint64_t key(int32_t name) const {
    const int32_t x = id(name);
    const double e = exponential_of_token(names_, x);
    return static_cast<uint64_t>(__double_as_longlong(e / weights_(logits_(name), x)));
  }
  /// Orders are good to 2^-9.
  __device__ float latest(float order) const { return order * (1.0f + 0x1p-7f); }

 private:
  /// E from its leading bits; where these do not settle it to 2^-10, from all.
  __device__ float exponential(uint32_t leading, uint32_t block, int w) const {
    constexpr uint32_t kFew = 1024;
    if (leading + kFew < 2 * kFew)
      return static_cast<float>(
          exponential_of(leading, race_block(names_, block | kMoreBits).w[w]));
    const float v = __uint2float_rn(leading) * 0x1p-32f;
    if (v < 0x1p-4f) return v * (1.0f + v * (0.5f + v * 0.33333333f));
    return -__logf(__uint2float_rn(~leading) * 0x1p-32f);
  }

  Row logits_;
  Weights weights_;
  RaceNames names_;
};

/// At temperature 0 the larger logit comes first.
template <class Row>
class Ranking {
 public:
  __device__ explicit Ranking(const Row& logits) : logits_(logits) {}

  __device__ float fill(const RowGroup& row) const {
    float least = infinity();
    for (int i = static_cast<int>(threadIdx.x); i < row.size(); i += cuda::kRowThreads) {
      row.logit(i) = -row.logit(i);
      least = fminf(least, row.logit(i));
    }
    return least;
  }
  __device__ int32_t name(int32_t id, int i) const { return logits_.name(id, i); }
  __device__ int32_t id(int32_t name) const { return logits_.id(name); }
  __device__ uint64_t key(int32_t name) const { return ~order_key(logits_(name)); }
  __device__ float latest(float order) const { return order; }

 private:
  Row logits_;
};

template <bool kCuts>
struct Shared {
  cuda::RowShared row;
  cuda::LeadersShared leading;
};
/// Cuts are over when the race begins.
template <>
struct Shared<true> {
  cuda::RowShared row;
  union {
    cuda::LeadersShared leading;
    cuda::CutShared cut;
  };
};

__host__ __device__ bool penalizes(const DrawChildrenParams& p) {
  return p.rule.repetition_penalty != 1.0f;
}

/// Penalises the tokens of a node's sequence and path; the best token after it.
__device__ cuda::Best penalize_row(const DrawChildrenParams& p, const ParentRow& at, RowGroup& row,
                                   uint32_t* marks) {
  const int begin = p.seen != nullptr ? p.seen_begin[at.seq] : 0;
  const int n_seen = p.seen != nullptr ? p.seen_begin[at.seq + 1] - begin : 0;
  const int first = p.parent != nullptr ? p.node_begin[at.seq] : 0;
  const auto above = [&](int node) { return p.parent[first + node]; };
  int n_path = 0;
  if (p.parent != nullptr)
    for (int node = at.node; above(node) >= 0; node = above(node)) ++n_path;
  cuda::penalize(row, p.rule.repetition_penalty, marks, n_seen + n_path, [&](int i) {
    if (i < n_seen) return p.seen[begin + i];
    int node = at.node;
    for (int step = n_seen; step < i; ++step) node = above(node);
    return p.tokens[first + node];
  });
  cuda::Best mine{0, 0};
  row.each([&](int i) { mine.consider(row.logit(i), row.first() + i); });
  return row.best(mine);
}

/// A group of blocks a row.
/// kRuled   whether there is a penalty, or in a race top-k, top-p or min-p
template <bool kRace, bool kRuled>
__global__ void __launch_bounds__(cuda::kRowThreads, cuda::kBlocksASm)
    draw_rows(const DrawChildrenParams p, const cuda::RowRule rule, const cuda::RowSplit split) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared<kRace && kRuled> shared;
  cuda::start_after_previous();
  const cuda::RowLink link(split, shared);
  float* const data = link.data(reinterpret_cast<float*>(dynamic));
  RowGroup row(split, link, data, shared.row);
  const int64_t r = link.row();
  const ParentRow parent = p.parents[r];
  int32_t* tokens = p.tokens + parent.first_child;
  const float* logits = p.logits + r * split.vocab;
  const RaceNames names{names_of(p.numbers, parent.seq), static_cast<uint32_t>(parent.node)};
  cuda::Best best = row.load(logits);
  if (parent.n_children == 0) return row.sync();
  uint32_t* marks = nullptr;
  if constexpr (kRuled) {
    if (penalizes(p)) {
      marks = reinterpret_cast<uint32_t*>(data + cuda::kRowThreads * split.run);
      best = penalize_row(p, parent, row, marks);
    }
  }
  const auto draw = [&](const auto& runners) {
    cuda::Leaders leaders(row, shared.leading, runners);
    leaders.write(tokens, parent.n_children, runners.fill(row));
  };
  if (!best.is_valid()) {
    const int i = static_cast<int>(threadIdx.x) + row.rank() * cuda::kRowThreads;
    for (int c = i; c < parent.n_children; c += cuda::kRowThreads * row.parts())
      tokens[c] = kInvalidToken;
  } else if constexpr (kRuled) {
    const PenalizedLogits given(logits, p.rule.repetition_penalty, marks);
    if constexpr (kRace) {
      const cuda::CutWeights cuts(rule, split.vocab, row, shared.cut, best.logit());
      __syncthreads();
      draw(Race(given, KeptWeights(cuts), names));
    } else {
      draw(Ranking(given));
    }
  } else if constexpr (kRace) {
    draw(Race(Logits(logits), AllWeights(best.logit(), rule.temper), names));
  } else {
    draw(Ranking(Logits(logits)));
  }
  row.sync();  // others may still read this block's shared memory
}

}  // namespace

void draw_children_cuda(const DrawChildrenParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  const bool races = p.rule.temperature > 0.0f;
  const bool ruled = penalizes(p) || (races && has_cuts(p.rule, p.vocab));
  // Cuts are made in as many parts as a power of two.
  const cuda::RowSplit split = ruled ? cuda::split_row(cuda::gpu(), p.vocab, p.n_rows)
                                     : cuda::split_rows_at_once(cuda::gpu(), p.vocab, p.n_rows);
  const size_t bytes = split.part_bytes() + (penalizes(p) ? cuda::mark_bytes(split) : 0);
  const auto kernel = races   ? ruled ? draw_rows<true, true> : draw_rows<true, false>
                        : ruled ? draw_rows<false, true>
                              : draw_rows<false, false>;
  cuda::launch_rows(kernel, p.n_rows, split, bytes, p.workspace, stream, p, cuda::RowRule(p.rule));
}

}  // namespace tandem::TANDEM_GPU_BODY
