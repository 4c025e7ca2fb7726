#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/bpe_windows.h"
#include "text/regex.h"

namespace tandem::text {

/// Direct-mapped memory of short words: bounded, without allocation, one slot a cache line.
class WordCache {
 public:
  bool find(std::string_view word, size_t hash, std::vector<int32_t>& ids) const {
    const Slot& slot = slots_[hash % kSlots];
    if (slot.length != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0)
      return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.n_ids);
    return true;
  }

  void store(std::string_view word, size_t hash, std::span<const int32_t> ids) {
    if (ids.size() > std::size(Slot{}.ids)) return;
    Slot& slot = slots_[hash % kSlots];
    slot.length = static_cast<uint8_t>(word.size());
    slot.n_ids = static_cast<uint8_t>(ids.size());
    std::memcpy(slot.word, word.data(), word.size());
    std::ranges::copy(ids, slot.ids);
  }

  static constexpr size_t kMaxWord = 30;

 private:
  struct alignas(64) Slot {
    uint8_t length = 0, n_ids = 0;  // words are never empty, so length 0 matches none
    char word[kMaxWord];
    int32_t ids[8];
  };
  static constexpr size_t kSlots = size_t{1} << 14;  // 1 MiB, an L2 cache
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

/// What one encode call needs and the next can use again.
struct Scratch {
  RegexScratch regex;
  WordCache cache;
  BpeWorkspace bpe;
  BpeWindows windows;
  std::vector<int32_t> word;
};

/// Scratches that no call is using; there are never more than calls at one time.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    const std::scoped_lock lock(mutex_);
    if (idle_.empty()) return std::make_unique<Scratch>();
    auto scratch = std::move(idle_.back());
    idle_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<Scratch> scratch) {
    const std::scoped_lock lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace tandem::text
