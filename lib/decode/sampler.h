#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "ops/sampling.h"

namespace tandem::decode {

/// How tokens are drawn.
struct SamplerSpec {
  ops::SampleRule rule;
  int64_t seed = 0;
  int top_logprobs = 0;  // alternatives reported with each token
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

/// Draws tokens. Draws are named by (seed, sequence, position), so that the text of a sequence does not
/// depend on its neighbours. Results come in the order of the draws; `depth` draws may be in flight,
/// the later ones without knowledge of what the earlier ones gave.
class Sampler {
 public:
  /// Begins anew; results not yet collected are forgotten.
  void start(const SamplerSpec& spec);
  int depth() const { return 1; }
  int in_flight() const { return static_cast<int>(results_.size()); }

  /// shapes   logits [seqs, vocab]
  /// errors   kind numeric for logits without meaning
  void draw(std::span<const DrawSeq> seqs, const Tensor& logits);
  /// The oldest draw not collected yet, one result a sequence.
  std::vector<Drawn> collect();

 private:
  SamplerSpec spec_;
  std::deque<std::vector<Drawn>> results_;
};

}  // namespace tandem::decode
