#pragma once
#include <span>
#include <vector>

#include "kv/page_tables.h"
#include "kv/step.h"
#include "tensor/courier.h"

namespace tandem::kv {

/// The arrays of steps in a GPU's memory, and the page tables, which stay there: those of all page
/// groups, and of layers whose keys are in host memory (Step::near). Where arrays lie
/// in an outbox depends on the steps' numbers of sequences, rows and mask words alone, so a
/// recorded graph finds those of all later steps of its shapes.
class DeviceStep {
 public:
  /// Steps sent without an outbox that may wait to run: their places are used again in turns.
  static constexpr int kWaiting = 4;
  struct Bounds {
    int max_seqs = 0, max_rows = 0, max_pages = 0;  // rows of all levels together
    int n_tables = 1;                               // page groups, and near keys
  };
  static void plan(const Bounds& bounds, Device device, MemoryPlan& plan);
  DeviceStep(const Bounds& bounds, Arena& arena, const Exec& exec);

  /// Bytes of an outbox for steps of max_rows rows, all levels together.
  static size_t outbox_bytes(int max_seqs, int max_rows);
  /// Gives a step, or the levels of a tree, their arrays on the GPU, and sends what laying out the
  /// page tables has changed, in the queue's order; every change must be sent.
  /// tables   [n_tables] those of page groups, last that of near keys
  /// outbox   where the arrays go, for the caller to send; null: at once
  void send(std::span<Step> steps, std::span<const PageTables* const> tables, Outbox* outbox);
  /// Sends the arrays of a step that was sent before.
  void send_again(Step& step);

 private:
  size_t cells() const {
    return static_cast<size_t>(bounds_.max_seqs) * static_cast<size_t>(bounds_.max_pages);
  }
  const int32_t* table(size_t i) const { return page_table_ + i * cells(); }
  void place(Step& step, Outbox& outbox) const;

  Bounds bounds_;
  Exec exec_;
  Courier courier_;
  int32_t* page_table_;  // [n_tables, max_seqs, max_pages] by slot
  std::vector<PageChange> changes_;
};

}  // namespace tandem::kv
