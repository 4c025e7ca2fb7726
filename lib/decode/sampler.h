#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/gpu.h"
#include "ops/sampling.h"
#include "tensor/courier.h"

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

/// What bounds a run's draws.
struct SamplerBounds {
  int max_seqs = 0, max_tokens = 0, vocab = 0;
  cuda::Gpu gpu = {};  // where one draws
};

/// Draws tokens. Draws are named by (seed, sequence, position), so that the text of a sequence does
/// not depend on its neighbours. Tokens stay on the device between the steps that draw and read
/// them. Results come in the order of the draws; `depth` draws may be in flight, the later ones
/// without knowledge of what the earlier ones gave.
class Sampler {
 public:
  static void plan(const SamplerBounds& bounds, Device device, MemoryPlan& plan);
  Sampler(const SamplerBounds& bounds, Arena& arena, const Exec& exec = {});

  /// Begins anew; results not yet collected are forgotten.
  /// errors   kind recipe: more alternatives than a GPU reports
  void start(const SamplerSpec& spec);
  const SamplerSpec& spec() const { return spec_; }
  /// A rule that asks for a sequence's tokens needs those in flight on the host first.
  int depth() const { return exec_.on_gpu() && !spec_.rule.needs_seen() ? 2 : 1; }
  int in_flight() const { return static_cast<int>(flying_.size()); }

  /// shapes   logits [seqs, vocab]
  void draw(std::span<const DrawSeq> seqs, const Tensor& logits);
  /// The oldest draw not collected yet, one result a sequence.
  /// errors   kind numeric for logits without meaning
  std::vector<Drawn> collect();

  // The parts of a draw that goes with a step:
  /// Begins a parcel: what is taken from it goes along with the draws' inputs.
  Outbox& open() { return *(outbox_ = &courier_.open()); }
  /// Sends the parcel with what the draws of these sequences read.
  /// places   of the step (kv::StepSpec)
  void send(std::span<const DrawSeq> seqs, int places);
  /// Fetches the tokens last drawn for the sequences sent; may be recorded in a graph.
  /// shapes   result [places] in the device's memory
  const int32_t* load_ids();
  /// Draws for the sequences sent; may be recorded in a graph.
  /// shapes   logits [places, vocab]
  void launch(const Tensor& logits);
  /// Copies the results of the launch before out, those of n sequences.
  void finish(int n);

 private:
  struct Flying {
    int receipt, n;
  };
  /// What a draw reads, in the device's memory.
  struct Inputs {
    int places = 0;
    const double* uniform = nullptr;      // [places]
    const int32_t* slot = nullptr;        // [places], -1 where there is no sequence
    const int32_t* seen_begin = nullptr;  // [places + 1] into seen
    const int32_t* seen = nullptr;        // the parcels' place, for rules that ask for tokens
  };

  int n_top() const { return std::min(spec_.top_logprobs, bounds_.vocab); }

  SamplerBounds bounds_;
  Exec exec_;
  SamplerSpec spec_;
  Courier courier_;
  Outbox* outbox_ = nullptr;  // of the open parcel
  Inputs in_;
  int32_t* last_;         // [max_seqs] by slot
  void* rows_ = nullptr;  // workspace of draws on a GPU, or null
  std::deque<Flying> flying_;
};

}  // namespace tandem::decode
