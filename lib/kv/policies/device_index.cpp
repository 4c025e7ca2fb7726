#include "kv/policies/device_index.h"

#include <algorithm>

namespace tandem::kv {

DeviceIndex::DeviceIndex(const TokenIndex& index, int max_seqs, Device device)
    : max_seqs_(max_seqs),
      max_blocks_(index.max_blocks()),
      max_pages_((index.max_tokens() + kPageTokens - 1) / kPageTokens),
      device_(device) {}

void DeviceIndex::plan(MemoryPlan& plan, const std::string& prefix) const {
  const size_t cells = static_cast<size_t>(max_seqs_) * static_cast<size_t>(2 + max_blocks_) +
                       static_cast<size_t>(max_pages_);
  plan.add(prefix + ".blocks", cells * sizeof(int32_t), device_);
}

void DeviceIndex::allocate(Arena& arena, const std::string& prefix) {
  data_ = static_cast<int32_t*>(arena.take(prefix + ".blocks"));
}

void DeviceIndex::update(int slot, const TokenIndex& index, cuda::Queue& queue) {
  const int32_t end = index.end(slot), rest = index.empty(slot) ? 0 : end;
  const std::vector<int>& ids = index.blocks(slot);
  int32_t* const blocks = data_ + 2 * max_seqs_ + slot * max_blocks_;
  if (!ids.empty()) queue.copy_in(blocks, ids.data(), ids.size() * sizeof(int32_t));
  queue.copy_in(data_ + slot, &end, sizeof(end));
  queue.copy_in(data_ + max_seqs_ + slot, &rest, sizeof(rest));
}

void DeviceIndex::set_pages(std::span<const int32_t> pages, cuda::Queue& queue) {
  const size_t n = std::min(pages.size(), static_cast<size_t>(max_pages_));
  queue.copy_in(data_ + max_seqs_ * (2 + max_blocks_), pages.data(), n * sizeof(int32_t));
}

}  // namespace tandem::kv
