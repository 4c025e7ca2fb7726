#pragma once
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "kv/page_tables.h"
#include "kv/step.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::kv {

/// The arrays of the steps in flight in a GPU's memory, and the page tables, which stay there.
/// Where they lie depends on the steps' numbers of sequences, rows and mask words alone, so a
/// recorded graph finds those of all later steps of its shapes.
class DeviceStep {
 public:
  struct Bounds {
    int max_seqs = 0, max_rows = 0, max_pages = 0;  // rows of all levels together
  };
  static void plan(const Bounds& bounds, Device device, MemoryPlan& plan);
  DeviceStep(const Bounds& bounds, Arena& arena, const Exec& exec);

  /// Sends the arrays of a step, or of a tree's levels, side by side, and what laying out the page
  /// tables has changed, in the queue's order; every change must be sent.
  std::vector<ops::StepArrays> send(std::span<const Step> steps, const PageTables& tables);

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
