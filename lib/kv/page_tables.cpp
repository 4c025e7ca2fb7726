#include "kv/page_tables.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::kv {

PageTables::PageTables(int32_t* cells, int max_seqs, int max_pages)
    : cells_(cells), max_pages_(max_pages), rows_(static_cast<size_t>(max_seqs)) {
  std::fill_n(cells, rows_.size() * static_cast<size_t>(max_pages), -1);
}

void PageTables::lay_out(const PagedStore& store, std::span<const int32_t> slots) {
  changes_.clear();
  for (const int32_t slot : slots) {
    const auto i = static_cast<size_t>(slot);
    TANDEM_CHECK(i < rows_.size(), "slot {} is out of range for {} slots", slot, rows_.size());
    const uint64_t version = store.table_version(slot);
    if (rows_[i].store == &store && rows_[i].version == version) continue;
    update(cells_ + i * static_cast<size_t>(max_pages_), rows_[i], store.pages(slot));
    rows_[i].store = &store;
    rows_[i].version = version;
  }
}

void PageTables::update(int32_t* cells, Row& row, const std::vector<int32_t>& pages) {
  const auto set = [&](size_t i, int32_t page) {
    if (cells[i] == page) return;
    cells[i] = page;
    changes_.push_back({static_cast<int32_t>(cells + i - cells_), page});
  };
  for (size_t i = 0; i < pages.size(); ++i) set(i, pages[i]);
  for (size_t i = pages.size(); i < row.length; ++i) set(i, -1);
  row.length = pages.size();
}

}  // namespace tandem::kv
