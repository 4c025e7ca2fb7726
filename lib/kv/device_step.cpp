#include "kv/device_step.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/paging.h"

namespace tandem::kv {
namespace {

constexpr const char* kTables = "kv/page tables";

/// Places arrays one behind the other.
class Layout {
 public:
  template <class T>
  size_t add(size_t n) {
    const size_t at = (bytes_ + alignof(T) - 1) / alignof(T) * alignof(T);
    bytes_ = at + n * sizeof(T);
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

/// Of one step's arrays.
struct Offsets {
  size_t tree_mask, slot, row_begin, base, tentative, pos, row_page, row_in_page;

  Offsets(Layout& l, size_t seqs, size_t rows, size_t mask_words)
      : tree_mask(l.add<uint64_t>(rows * mask_words)),
        slot(l.add<int32_t>(seqs)),
        row_begin(l.add<int32_t>(seqs + 1)),
        base(l.add<int32_t>(seqs)),
        tentative(l.add<int32_t>(seqs)),
        pos(l.add<int32_t>(rows)),
        row_page(l.add<int32_t>(rows)),
        row_in_page(l.add<int32_t>(rows)) {}
  Offsets(Layout& l, const Step& step)
      : Offsets(l, static_cast<size_t>(step.places), static_cast<size_t>(step.padded_rows()),
                static_cast<size_t>(step.mask_words)) {}
};

size_t bytes_of(const Step& step) {
  Layout l;
  (void)Offsets(l, step);
  return l.bytes();
}

Courier::Spec courier_spec(const DeviceStep::Bounds& b) {
  // As many rows as steps may hold, and other pages for all sequences.
  return {.name = "workspace/step",
          .in_bytes = DeviceStep::outbox_bytes(b.max_seqs, b.max_rows) +
                      Outbox::aligned(static_cast<size_t>(b.max_seqs) *
                                      static_cast<size_t>(b.max_pages) * sizeof(PageChange)),
          .turns = DeviceStep::kWaiting,
          .own_places = true};
}

/// Writes a step's arrays to their places, and in what pads them sequences without rows, and rows
/// whose K and V go nowhere.
void write(std::byte* to, const Offsets& at, const Step& step) {
  const auto copy = [&](size_t offset, const auto& from, int padded = 0, int32_t filler = 0) {
    std::memcpy(to + offset, from.data(), from.size() * sizeof(from[0]));
    auto* const ints = reinterpret_cast<int32_t*>(to + offset);
    for (auto i = static_cast<int>(from.size()); i < padded; ++i) ints[i] = filler;
  };
  const int rows = step.padded_rows();
  copy(at.tree_mask, step.tree_mask);
  copy(at.slot, step.slot, step.places);
  copy(at.row_begin, step.row_begin, step.places + 1, step.n_rows);
  copy(at.base, step.base, step.places);
  copy(at.tentative, step.tentative, step.places);
  copy(at.pos, step.pos, rows);
  copy(at.row_page, step.row_page, rows, -1);
  copy(at.row_in_page, step.row_in_page, rows);
}

/// A step's arrays at their places in a GPU's memory.
ops::StepArrays arrays_at(const std::byte* memory, const Offsets& at, const Step& step) {
  const auto ints = [&](size_t offset) {
    return reinterpret_cast<const int32_t*>(memory + offset);
  };
  ops::StepArrays a = step.arrays;
  a.slot = ints(at.slot);
  a.row_begin = ints(at.row_begin);
  a.base = ints(at.base);
  if (a.tentative != nullptr) a.tentative = ints(at.tentative);
  a.pos = ints(at.pos);
  a.row_page = ints(at.row_page);
  a.row_in_page = ints(at.row_in_page);
  if (a.tree_mask != nullptr)
    a.tree_mask = reinterpret_cast<const uint64_t*>(memory + at.tree_mask);
  return a;
}

}  // namespace

size_t DeviceStep::outbox_bytes(int max_seqs, int max_rows) {
  const auto rows = static_cast<size_t>(max_rows), seqs = static_cast<size_t>(max_seqs);
  Layout l;
  // In every level each sequence has a row: the levels' entries a sequence are at most as many as
  // rows, and so are the levels, each with an entry of row_begin beyond those and a gap behind it.
  (void)Offsets(l, std::max(seqs, rows), rows, (std::min<size_t>(rows, kMaxTreeRows) + 63) / 64);
  return Outbox::aligned(l.bytes() +
                         std::max<size_t>(rows, 1) * (sizeof(int32_t) + Outbox::kAlignment));
}

void DeviceStep::plan(const Bounds& bounds, Device device, MemoryPlan& plan) {
  Courier::plan(courier_spec(bounds), device, plan);
  plan.add(kTables, PageTables::bytes(bounds.max_seqs, bounds.max_pages), device);
}

DeviceStep::DeviceStep(const Bounds& bounds, Arena& arena, const Exec& exec)
    : bounds_(bounds),
      exec_(exec),
      courier_(courier_spec(bounds), arena, exec),
      page_table_(static_cast<int32_t*>(arena.take(kTables))) {
  // No page anywhere, as PageTables begins.
  const size_t bytes = PageTables::bytes(bounds.max_seqs, bounds.max_pages);
  const std::vector<int32_t> none(bytes / sizeof(int32_t), -1);
  exec_.queue->copy_in(page_table_, none.data(), bytes);
  exec_.queue->wait();
}

void DeviceStep::place(Step& step, Outbox& outbox) const {
  const Outbox::Part part = outbox.take(bytes_of(step));
  Layout layout;
  const Offsets at(layout, step);
  write(part.host, at, step);
  step.point_to_host();
  step.arrays = arrays_at(part.device, at, step);
  step.arrays.device = exec_.device();
  step.arrays.n_seqs = step.places;
  step.arrays.n_rows = step.padded_rows();
  step.arrays.max_pages = bounds_.max_pages;
  step.arrays.page_table = page_table_;
}

void DeviceStep::send(std::span<Step> steps, const PageTables& tables, Outbox* outbox) {
  const std::span<const PageChange> changes = tables.changes();
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
