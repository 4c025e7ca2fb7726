#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/gpu.h"
#include "ops/sampling.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::decode {

/// How tokens are drawn.
struct SamplerSpec {
  ops::SampleRule rule;
  int64_t seed = 0;
  int top_logprobs = 0;  // alternatives reported with each token
  bool operator==(const SamplerSpec&) const = default;
  /// Whether all but the seed is the same: it goes to a GPU with every draw, the rest is recorded
  /// in graphs.
  bool is_equal_but_for_seed(SamplerSpec other) const {
    other.seed = seed;
    return *this == other;
  }
};

/// A sequence that gets a token.
struct DrawSeq {
  int seq = 0;                      // names its random numbers
  int slot = 0;                     // of the cache
  int position = 0;                 // tokens before the new one, those in flight included
  std::span<const int32_t> tokens;  // all that are known of them
};

struct Drawn {
  int32_t id = 0;
  float logprob = 0;  // natural log of the untempered softmax
  std::vector<std::pair<int32_t, float>> top;
};

/// The number in [0, 1) that a draw takes, named by (seed, sequence, position).
double draw_uniform(int64_t seed, const DrawSeq& seq);

/// What bounds a run's draws.
struct SamplerBounds {
  int max_seqs = 0, max_tokens = 0, vocab = 0;
  cuda::Gpu gpu = {};  // where one draws
};

class GpuDraws;

/// Draws tokens. Draws are named by (seed, sequence, position), so that the text of a sequence does
/// not depend on its neighbours. Results come in the order of the draws; `depth` draws may be in
/// flight, the later ones without knowledge of what the earlier ones gave.
class Sampler {
 public:
  static void plan(const SamplerBounds& bounds, Device device, MemoryPlan& plan);
  Sampler(const SamplerBounds& bounds, Arena& arena, const Exec& exec = {});
  ~Sampler();

  /// Begins anew; results not yet collected are forgotten.
  /// errors   kind recipe: more alternatives than the device reports
  void start(const SamplerSpec& spec);
  const SamplerSpec& spec() const { return spec_; }
  int depth() const;
  int in_flight() const;

  /// shapes   logits [seqs, vocab]
  /// errors   kind numeric for logits without meaning
  void draw(std::span<const DrawSeq> seqs, const Tensor& logits);
  /// Of a run on a GPU; null on the CPU.
  GpuDraws* gpu() { return gpu_.get(); }
  /// The oldest draw not collected yet, one result a sequence.
  std::vector<Drawn> collect();

 private:
  SamplerSpec spec_;
  std::unique_ptr<GpuDraws> gpu_;
  std::deque<std::vector<Drawn>> results_;
};

}  // namespace tandem::decode
