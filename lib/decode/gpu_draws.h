#pragma once
#include <deque>

#include "decode/sampler.h"
#include "tensor/courier.h"

namespace tandem::decode {

/// The draws of a sampler on a GPU: tokens stay there between steps, and copies follow to the host.
class GpuDraws {
 public:
  static void plan(const SamplerBounds& bounds, Device device, MemoryPlan& plan);
  GpuDraws(const SamplerBounds& bounds, Arena& arena, const Exec& exec);

  void start(const SamplerSpec& spec);
  /// A rule that asks for a text's tokens needs those in flight on the host first.
  int depth() const { return spec_.rule.needs_seen() ? 1 : 2; }
  int in_flight() const { return static_cast<int>(flying_.size()); }

  /// Begins a parcel: what is taken from it goes along with the draws' inputs.
  Outbox& open() { return *(outbox_ = &courier_.open()); }
  /// Sends the parcel with what the draws of these sequences read.
  /// places   of the step (kv::StepSpec)
  void send(std::span<const DrawSeq> seqs, int places);
  /// Fetches the tokens last drawn for the sequences sent; may be recorded in a graph.
  /// shapes   result [places] in device memory
  const int32_t* load_ids();
  /// Draws for the sequences sent; may be recorded in a graph.
  /// shapes   logits [places, vocab]
  void launch(const Tensor& logits);
  /// Copies the results of the launch before out.
  void finish(int n);
  std::vector<Drawn> collect();

 private:
  struct Flying {
    int receipt, n;
  };
  /// What a draw reads, in device memory.
  struct Inputs {
    int places = 0;
    const double* uniform = nullptr;      // [places]
    const int32_t* slot = nullptr;        // [places], -1 where there is no sequence
    const int32_t* seen_begin = nullptr;  // [places + 1] into seen
    const int32_t* seen = nullptr;        // the parcels' place, for rules that ask for tokens
  };

  SamplerBounds bounds_;
  Exec exec_;
  SamplerSpec spec_;
  Courier courier_;
  Outbox* outbox_ = nullptr;  // of the open parcel
  Inputs in_;
  int32_t* last_;  // [max_seqs] by slot
  void* rows_;     // workspace of draws, or null
  std::deque<Flying> flying_;
};

}  // namespace tandem::decode
