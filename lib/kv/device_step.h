#pragma once
#include <array>
#include <memory>

#include "kv/step.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::kv {

/// The arrays of the step in flight in a GPU's memory. Where they lie depends on the numbers of
/// sequences, rows and mask words alone, so a recorded graph finds those of every later step of its
/// shape.
class DeviceStep {
 public:
  struct Bounds {
    int max_seqs = 0, max_rows = 0, max_pages = 0;
  };
  static void plan(const Bounds& bounds, Device device, MemoryPlan& plan);
  DeviceStep(const Bounds& bounds, Arena& arena, const Exec& exec);

  /// Sends a step's arrays, in the queue's order. Page tables take max_pages columns whatever the step's.
  ops::StepArrays send(const Step& step);

 private:
  // Steps whose arrays may be on their way: the host runs at most a few ahead of the GPU.
  static constexpr size_t kRing = 4;
  struct Slot {
    std::unique_ptr<cuda::PinnedBuffer> host;
    std::unique_ptr<cuda::Event> sent;
  };

  Bounds bounds_;
  Exec exec_;
  std::byte* device_;
  std::array<Slot, kRing> ring_;
  size_t turn_ = 0;
};

}  // namespace tandem::kv
