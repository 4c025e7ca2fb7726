#include "kv/device_step.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda_table.h"

namespace tandem::kv {
namespace {

constexpr const char* kName = "workspace/step";
constexpr const char* kTables = "kv/page tables";

/// Places arrays one behind the other, the widest elements first: all stay aligned.
class Layout {
 public:
  template <class T>
  size_t add(size_t n) {
    const size_t at = bytes_;
    bytes_ += n * sizeof(T);
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

struct Offsets {
  size_t tree_mask, slot, row_begin, base, pos, row_page, row_in_page, changes, bytes;

  Offsets(size_t seqs, size_t rows, size_t mask_words, size_t n_changes) {
    Layout l;
    tree_mask = l.add<uint64_t>(rows * mask_words);
    slot = l.add<int32_t>(seqs);
    row_begin = l.add<int32_t>(seqs + 1);
    base = l.add<int32_t>(seqs);
    pos = l.add<int32_t>(rows);
    row_page = l.add<int32_t>(rows);
    row_in_page = l.add<int32_t>(rows);
    changes = l.add<PageChange>(n_changes);
    bytes = l.bytes();
  }
};

/// Trees of as many rows as a step may hold, and other pages for all sequences.
Offsets largest(const DeviceStep::Bounds& b) {
  const auto rows = static_cast<size_t>(b.max_rows), seqs = static_cast<size_t>(b.max_seqs);
  return {seqs, rows, (std::min<size_t>(rows, kMaxTreeRows) + 63) / 64,
          seqs * static_cast<size_t>(b.max_pages)};
}

}  // namespace

void DeviceStep::plan(const Bounds& bounds, Device device, MemoryPlan& plan) {
  plan.add(kName, largest(bounds).bytes, device);
  plan.add(std::string(kName) + " staging", kRing * largest(bounds).bytes);
  plan.add(kTables, PageTables::bytes(bounds.max_seqs, bounds.max_pages), device);
}

DeviceStep::DeviceStep(const Bounds& bounds, Arena& arena, const Exec& exec)
    : bounds_(bounds),
      exec_(exec),
      device_(static_cast<std::byte*>(arena.take(kName))),
      page_table_(static_cast<int32_t*>(arena.take(kTables))) {
  for (Slot& s : ring_) {
    s.host = std::make_unique<cuda::PinnedBuffer>(largest(bounds).bytes);
    s.sent = std::make_unique<cuda::Event>();
  }
  // No page anywhere, as PageTables begins.
  const size_t bytes = PageTables::bytes(bounds.max_seqs, bounds.max_pages);
  std::memset(ring_[0].host->data(), 0xff, bytes);
  exec_.queue->copy_in(page_table_, ring_[0].host->data(), bytes);
  ring_[0].sent->record(*exec_.queue);
}

ops::StepArrays DeviceStep::send(const Step& step, const PageTables& tables) {
  const auto rows = static_cast<size_t>(step.n_rows), seqs = static_cast<size_t>(step.n_seqs);
  const std::span<const PageChange> changes = tables.changes();
  const Offsets at(seqs, rows, static_cast<size_t>(step.mask_words), changes.size());
  TANDEM_CHECK(at.bytes <= largest(bounds_).bytes, "a step of {} rows", rows);
  Slot& slot = ring_[turn_];
  turn_ = (turn_ + 1) % kRing;
  slot.sent->wait();  // of kRing steps ago
  std::byte* host = slot.host->data();
  const auto copy = [&](size_t offset, const auto& from) {
    std::memcpy(host + offset, from.data(), from.size() * sizeof(from[0]));
  };
  copy(at.tree_mask, step.tree_mask);
  copy(at.slot, step.slot);
  copy(at.row_begin, step.row_begin);
  copy(at.base, step.base);
  copy(at.pos, step.pos);
  copy(at.row_page, step.row_page);
  copy(at.row_in_page, step.row_in_page);
  copy(at.changes, changes);
  exec_.queue->copy_in(device_, host, at.bytes);
  slot.sent->record(*exec_.queue);
  if (!changes.empty()) {
    cuda_table().set_pages({.table = page_table_,
                            .changes = reinterpret_cast<const PageChange*>(device_ + at.changes),
                            .n_changes = static_cast<int>(changes.size())},
                           exec_.stream());
    cuda::launched("set_pages", exec_.stream());
  }

  ops::StepArrays a = step.arrays();
  const auto ints = [&](size_t offset) { return reinterpret_cast<const int32_t*>(device_ + offset); };
  a.device = exec_.device();
  a.max_pages = bounds_.max_pages;
  a.slot = ints(at.slot);
  a.row_begin = ints(at.row_begin);
  a.base = ints(at.base);
  a.pos = ints(at.pos);
  a.row_page = ints(at.row_page);
  a.row_in_page = ints(at.row_in_page);
  a.page_table = page_table_;
  if (step.mask_words > 0) a.tree_mask = reinterpret_cast<const uint64_t*>(device_ + at.tree_mask);
  return a;
}

}  // namespace tandem::kv
