#pragma once
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "kv/page_tables.h"
#include "kv/step.h"
#include "tensor/arena.h"
#include "tensor/exec.h"
#include "tensor/outbox.h"

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

  /// Bytes of an outbox for steps of so many rows, all levels together.
  static size_t outbox_bytes(int max_seqs, int max_rows);
  /// Sends the arrays of a step, or of a tree's levels, side by side, and what laying out the page
  /// tables has changed, in the queue's order; every change must be sent.
  /// outbox   where the arrays go, for the caller to send; null: at once
  /// arrays   result: one for each step
  void send(std::span<const Step> steps, const PageTables& tables, Outbox* outbox,
            std::vector<ops::StepArrays>& arrays);

 private:
  // Steps whose arrays may be on their way: the host runs at most a few ahead of the GPU.
  static constexpr size_t kRing = 4;
  struct Slot {
    std::unique_ptr<cuda::PinnedBuffer> host;
    std::unique_ptr<cuda::Event> sent;
    Outbox outbox;
  };

  ops::StepArrays place(const Step& step, Outbox& outbox) const;
  Slot& next_slot();

  Bounds bounds_;
  Exec exec_;
  int32_t* page_table_;  // [max_seqs, max_pages]
  std::array<Slot, kRing> ring_;
  size_t turn_ = 0;
};

}  // namespace tandem::kv
