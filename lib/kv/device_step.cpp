#include "kv/device_step.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/paging.h"

namespace tandem::kv {
namespace {

constexpr const char* kStepTables = "kv/page tables";

size_t table_bytes(const DeviceStep::Bounds& b) {
  return static_cast<size_t>(b.n_tables) * PageTables::bytes(b.max_seqs, b.max_pages);
}

Courier::Spec courier_spec(const DeviceStep::Bounds& b) {
  // As many rows as steps may hold, and other pages for all sequences.
  return {.name = "workspace/step",
          .in_bytes = DeviceStep::outbox_bytes(b.max_seqs, b.max_rows) +
                      Outbox::aligned(table_bytes(b) / sizeof(int32_t) * sizeof(PageChange)),
          .turns = DeviceStep::kWaiting,
          .own_places = true};
}

/// Bytes of a step's arrays, with those of all page groups and of near keys.
size_t array_bytes(size_t seqs, size_t rows, size_t mask_words) {
  return rows * mask_words * sizeof(uint64_t) +
         (5 * seqs + 1 + (3 + kMaxPageGroups) * rows) * sizeof(int32_t);
}

/// Writes n entries, those of `from` and what pads them, and goes on after them; returns where they
/// lie on the GPU.
template <class T>
const T* put(Outbox::Part& at, const std::vector<T>& from, int n, T padding = 0) {
  T* const end = reinterpret_cast<T*>(at.host) + n;
  std::fill(std::ranges::copy(from, reinterpret_cast<T*>(at.host)).out, end, padding);
  at.host = reinterpret_cast<std::byte*>(end);
  const T* const device = reinterpret_cast<const T*>(at.device);
  at.device += static_cast<size_t>(n) * sizeof(T);
  return device;
}

}  // namespace

size_t DeviceStep::outbox_bytes(int max_seqs, int max_rows) {
  const auto rows = static_cast<size_t>(max_rows), seqs = static_cast<size_t>(max_seqs);
  // In every level each sequence has a row: the levels' entries a sequence are at most as many as
  // rows, and so are the levels, each with an entry of row_begin beyond those and a gap after it.
  return Outbox::aligned(
      array_bytes(std::max(seqs, rows), rows, (std::min<size_t>(rows, kMaxTreeRows) + 63) / 64) +
      std::max<size_t>(rows, 1) * (sizeof(int32_t) + Outbox::kAlignment));
}

void DeviceStep::plan(const Bounds& bounds, Device device, MemoryPlan& plan) {
  Courier::plan(courier_spec(bounds), device, plan);
  plan.add(kStepTables, table_bytes(bounds), device);
}

DeviceStep::DeviceStep(const Bounds& bounds, Arena& arena, const Exec& exec)
    : bounds_(bounds),
      exec_(exec),
      courier_(courier_spec(bounds), arena, exec),
      page_table_(static_cast<int32_t*>(arena.take(kStepTables))) {
  // No page anywhere, as PageTables begins.
  const size_t bytes = table_bytes(bounds);
  const std::vector<int32_t> none(bytes / sizeof(int32_t), -1);
  exec_.queue->copy_in(page_table_, none.data(), bytes);
  exec_.queue->wait();
}

/// What pads it are sequences without rows, and rows whose K and V go nowhere.
void DeviceStep::place(Step& step, Outbox& outbox) const {
  const int n_seqs = step.places, n_rows = step.padded_rows();
  Outbox::Part at =
      outbox.take(array_bytes(static_cast<size_t>(n_seqs), static_cast<size_t>(n_rows),
                              static_cast<size_t>(step.mask_words)));
  step.point_to_host();
  ops::StepArrays& a = step.arrays;
  a.device = exec_.device();
  a.n_seqs = n_seqs;
  a.n_rows = n_rows;
  a.max_pages = bounds_.max_pages;
  a.page_table = page_table_;
  // The widest entries first: all are aligned.
  if (a.tree_mask != nullptr) a.tree_mask = put(at, step.tree_mask, n_rows * step.mask_words);
  a.slot = put(at, step.slot, n_seqs);
  a.row_begin = put(at, step.row_begin, n_seqs + 1, step.n_rows);
  a.base = put(at, step.base, n_seqs);
  if (a.tentative != nullptr) a.tentative = put(at, step.tentative, n_seqs);
  a.pos = put(at, step.pos, n_rows);
  a.row_page = put(at, step.row_page, n_rows, -1);
  a.row_in_page = put(at, step.row_in_page, n_rows);
  for (size_t g = 0; g < step.groups.size(); ++g) {
    Step::GroupRows& group = step.groups[g];
    group.arrays = a;
    group.arrays.page_table = table(1 + g);
    group.arrays.row_page = put(at, group.row_page, n_rows, -1);
  }
  if (step.near_begin.empty()) return;
  ops::StepArrays& near = step.near;
  near = a;
  near.page_table = table(1 + step.groups.size());
  near.row_page = put(at, step.near_page, n_rows, -1);
  step.near_lo = put(at, step.near_begin, n_seqs);
}

void DeviceStep::send_again(Step& step) {
  place(step, courier_.open());
  courier_.send();
}

void DeviceStep::send(std::span<Step> steps, std::span<const PageTables* const> tables,
                      Outbox* outbox) {
  changes_.clear();
  for (size_t i = 0; i < tables.size(); ++i)
    for (const PageChange& c : tables[i]->changes())
      changes_.push_back({c.cell + static_cast<int32_t>(i * cells()), c.page});
  const std::span<const PageChange> changes = changes_;
  Outbox* const own = outbox == nullptr || !changes.empty() ? &courier_.open() : nullptr;
  for (Step& step : steps) place(step, outbox != nullptr ? *outbox : *own);
  if (own == nullptr) return;
  const Outbox::Part part = own->take(changes.size_bytes());
  std::memcpy(part.host, changes.data(), changes.size_bytes());
  courier_.send();
  if (changes.empty()) return;
  ops::set_pages({.table = page_table_,
                  .changes = reinterpret_cast<const PageChange*>(part.device),
                  .n_changes = static_cast<int>(changes.size())},
                 exec_.stream());
}

}  // namespace tandem::kv
