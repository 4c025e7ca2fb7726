#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kv/paged_store.h"
#include "ops/step_arrays.h"

namespace tandem::kv {

/// The page tables of all sequences as kernels read them: a row a slot, so that steps of different
/// sequences never share one. They stay from step to step: laying one out costs what has changed
/// since, and a copy of them elsewhere follows by the changes alone.
class PageTables {
 public:
  static size_t bytes(int max_seqs, int max_pages) {
    return static_cast<size_t>(max_seqs) * static_cast<size_t>(max_pages) * sizeof(int32_t);
  }
  /// cells    [max_seqs, max_pages], of the caller; all become -1
  PageTables(int32_t* cells, int max_seqs, int max_pages);

  /// Makes the rows of these slots their tables in a store; others stay as they are. Stores of the
  /// same slots may take turns.
  /// cost     for rows whose table is another than it was, their length
  void lay_out(const PagedStore& store, std::span<const int32_t> slots);

  /// [max_seqs, max_pages]; -1 = no page.
  const int32_t* cells() const { return cells_; }
  int max_pages() const { return max_pages_; }
  /// Makes these the tables of a step's arrays.
  void give_to(ops::StepArrays& arrays) const {
    arrays.page_table = cells_;
    arrays.max_pages = max_pages_;
  }
  /// Cells that the last lay_out has written, each once.
  std::span<const PageChange> changes() const { return changes_; }

 private:
  struct Row {
    const PagedStore* store = nullptr;  // whose table it holds
    uint64_t version = 0;               // of that table
    size_t length = 0;                  // cells beyond are -1
  };
  void update(int32_t* cells, Row& row, const std::vector<int32_t>& pages);

  int32_t* cells_;
  int max_pages_;
  std::vector<Row> rows_;
  std::vector<PageChange> changes_;
};

}  // namespace tandem::kv
