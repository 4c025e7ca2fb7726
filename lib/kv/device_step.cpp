#include "kv/device_step.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda_table.h"

namespace tandem::kv {
namespace {

constexpr const char* kName = "workspace/step";
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
};

/// Bytes for trees of as many rows as steps may hold, and other pages for all sequences. In every
/// level each sequence has a row: the levels' entries a sequence are at most as many as rows, and
/// so are the levels, each with an entry of row_begin beyond those and a gap before its masks.
size_t most_bytes(const DeviceStep::Bounds& b) {
  const auto rows = static_cast<size_t>(b.max_rows), seqs = static_cast<size_t>(b.max_seqs);
  Layout l;
  (void)Offsets(l, std::max(seqs, rows), rows, (std::min<size_t>(rows, kMaxTreeRows) + 63) / 64);
  l.add<uint64_t>(rows);
  l.add<PageChange>(seqs * static_cast<size_t>(b.max_pages));
  return l.bytes();
}

/// Writes a step's arrays to their places.
void place(std::byte* to, const Offsets& at, const Step& step) {
  const auto copy = [&](size_t offset, const auto& from) {
    std::memcpy(to + offset, from.data(), from.size() * sizeof(from[0]));
  };
  copy(at.tree_mask, step.tree_mask);
  copy(at.slot, step.slot);
  copy(at.row_begin, step.row_begin);
  copy(at.base, step.base);
  copy(at.tentative, step.tentative);
  copy(at.pos, step.pos);
  copy(at.row_page, step.row_page);
  copy(at.row_in_page, step.row_in_page);
}

/// A step's arrays at their places in a GPU's memory.
ops::StepArrays arrays_at(const std::byte* memory, const Offsets& at, const Step& step) {
  const auto ints = [&](size_t offset) {
    return reinterpret_cast<const int32_t*>(memory + offset);
  };
  ops::StepArrays a = step.arrays();
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

void DeviceStep::plan(const Bounds& bounds, Device device, MemoryPlan& plan) {
  plan.add(kName, most_bytes(bounds), device);
  plan.add(std::string(kName) + " staging", kRing * most_bytes(bounds));
  plan.add(kTables, PageTables::bytes(bounds.max_seqs, bounds.max_pages), device);
}

DeviceStep::DeviceStep(const Bounds& bounds, Arena& arena, const Exec& exec)
    : bounds_(bounds),
      exec_(exec),
      device_(static_cast<std::byte*>(arena.take(kName))),
      page_table_(static_cast<int32_t*>(arena.take(kTables))) {
  for (Slot& s : ring_) {
    s.host = std::make_unique<cuda::PinnedBuffer>(most_bytes(bounds));
    s.sent = std::make_unique<cuda::Event>();
  }
  // No page anywhere, as PageTables begins.
  const size_t bytes = PageTables::bytes(bounds.max_seqs, bounds.max_pages);
  std::memset(ring_[0].host->data(), 0xff, bytes);
  exec_.queue->copy_in(page_table_, ring_[0].host->data(), bytes);
  ring_[0].sent->record(*exec_.queue);
}

std::vector<ops::StepArrays> DeviceStep::send(std::span<const Step> steps,
                                              const PageTables& tables) {
  const std::span<const PageChange> changes = tables.changes();
  Layout layout;
  std::vector<Offsets> places;
  for (const Step& s : steps)
    places.emplace_back(layout, static_cast<size_t>(s.n_seqs), static_cast<size_t>(s.n_rows),
                        static_cast<size_t>(s.mask_words));
  const size_t changes_at = layout.add<PageChange>(changes.size());
  TANDEM_CHECK(layout.bytes() <= most_bytes(bounds_), "{} bytes of steps, planned for {}",
               layout.bytes(), most_bytes(bounds_));
  Slot& slot = ring_[turn_];
  turn_ = (turn_ + 1) % kRing;
  slot.sent->wait();  // of kRing turns ago
  std::byte* host = slot.host->data();
  for (size_t i = 0; i < steps.size(); ++i) place(host, places[i], steps[i]);
  std::memcpy(host + changes_at, changes.data(), changes.size_bytes());
  exec_.queue->copy_in(device_, host, layout.bytes());
  slot.sent->record(*exec_.queue);
  if (!changes.empty()) {
    cuda_table().set_pages({.table = page_table_,
                            .changes = reinterpret_cast<const PageChange*>(device_ + changes_at),
                            .n_changes = static_cast<int>(changes.size())},
                           exec_.stream());
    cuda::launched("set_pages", exec_.stream());
  }
  std::vector<ops::StepArrays> arrays;
  for (size_t i = 0; i < steps.size(); ++i) {
    ops::StepArrays& a = arrays.emplace_back(arrays_at(device_, places[i], steps[i]));
    a.device = exec_.device();
    a.max_pages = bounds_.max_pages;
    a.page_table = page_table_;
  }
  return arrays;
}

}  // namespace tandem::kv
