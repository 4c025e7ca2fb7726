#pragma once
#include <array>
#include <memory>

#include "kv/page_tables.h"
#include "kv/step.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::kv {

/// The arrays of the step in flight in a GPU's memory, and the page tables, which stay there. Where
/// they lie depends on the numbers of sequences, rows and mask words alone, so a recorded graph
/// finds those of every later step of its shape.
class DeviceStep {
 public:
  struct Bounds {
    int max_seqs = 0, max_rows = 0, max_pages = 0;
  };
  static void plan(const Bounds& bounds, Device device, MemoryPlan& plan);
  DeviceStep(const Bounds& bounds, Arena& arena, const Exec& exec);

  /// Sends a step's arrays and what laying out its page tables has changed, in the queue's order;
  /// every change must be sent.
  ops::StepArrays send(const Step& step, const PageTables& tables);

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
  int32_t* page_table_;  // [max_seqs, max_pages]
  std::array<Slot, kRing> ring_;
  size_t turn_ = 0;
};

}  // namespace tandem::kv
