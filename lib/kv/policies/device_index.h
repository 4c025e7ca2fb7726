#pragma once
#include <span>
#include <string>

#include "kv/policies/token_index.h"
#include "tensor/arena.h"
#include "tensor/cuda.h"

namespace tandem::kv {

/// A TokenIndex in a GPU's memory, so that recorded graphs find how far each sequence is indexed
/// and in which blocks.
class DeviceIndex {
 public:
  DeviceIndex(const TokenIndex& index, int max_seqs, Device device);

  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);
  /// Writes what `index` says of a slot, in the queue's order. Each slot needs it once before
  /// kernels read it, and whenever the slot's index changes.
  void update(int slot, const TokenIndex& index, cuda::Queue& queue);

  /// [slots] end of the indexed tokens; the index's begin() where there are none.
  const int32_t* ends() const { return data_; }
  /// [slots] where rows begin to read all tokens: the index's end, or 0 where it is empty.
  const int32_t* rests() const { return data_ + max_seqs_; }
  /// [slots, max_blocks()] block ids.
  const int32_t* blocks() const { return data_ + 2 * max_seqs_; }
  int max_blocks() const { return max_blocks_; }

  /// A sequence's page table, for work that follows until the next call, in the queue's order.
  void set_pages(std::span<const int32_t> pages, cuda::Queue& queue);
  const int32_t* pages() const { return data_ + max_seqs_ * (2 + max_blocks_); }

 private:
  int max_seqs_, max_blocks_, max_pages_;
  Device device_;
  int32_t* data_ = nullptr;
};

}  // namespace tandem::kv
