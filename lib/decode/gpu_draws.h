#pragma once
#include <array>
#include <deque>
#include <memory>

#include "decode/sampler.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

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

  /// Sends what the draws of these sequences will read.
  void prepare(std::span<const DrawSeq> seqs);
  /// Fetches the tokens last drawn for n prepared sequences; may be recorded in a graph.
  /// shapes   result [n] in device memory
  const int32_t* load_ids(int n);
  /// Draws for n prepared sequences; may be recorded in a graph.
  void launch(int n, const Tensor& logits);
  /// Copies the results of the launch before out.
  void finish(int n);
  std::vector<Drawn> collect();

 private:
  static constexpr size_t kRing = 4;  // more than draws in flight and the one being prepared
  struct Turn {
    std::unique_ptr<cuda::PinnedBuffer> in, out;
    std::unique_ptr<cuda::Event> sent, done;
  };
  struct Flying {
    size_t turn;
    int n;
  };

  SamplerBounds bounds_;
  Exec exec_;
  SamplerSpec spec_;
  std::byte *in_, *out_;
  int32_t* last_;  // [max_seqs] by slot
  void* rows_;     // workspace of draws, or null
  std::array<Turn, kRing> ring_;
  size_t next_in_ = 0, next_out_ = 0;
  std::deque<Flying> flying_;
};

}  // namespace tandem::decode
