#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace tandem::text {
namespace {

constexpr uint64_t pair_key(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

}  // namespace

BpeMerger::BpeMerger(std::span<const Merge> merges) : merges_(merges.begin(), merges.end()) {
  const size_t n_slots = std::bit_ceil(std::max<size_t>(2 * merges.size(), 2));
  slots_.resize(n_slots);
  shift_ = 64 - std::countr_zero(n_slots);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_key(merges[rank].left, merges[rank].right);
    slots_[slot_of(pair)] = {pair, static_cast<uint32_t>(rank)};
  }
}

/// The slot that holds `pair`, or the empty one where it would go. Fibonacci hashing.
size_t BpeMerger::slot_of(uint64_t pair) const {
  size_t i = static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> shift_);
  while (slots_[i].pair != pair && slots_[i].pair != kEmpty) i = (i + 1) & (slots_.size() - 1);
  return i;
}

void BpeMerger::push_candidate(BpeWorkspace& w, int32_t position) const {
  const auto& symbol = w.symbols[static_cast<size_t>(position)];
  if (symbol.next < 0) return;
  const int32_t right = w.symbols[static_cast<size_t>(symbol.next)].id;
  const Slot& slot = slots_[slot_of(pair_key(symbol.id, right))];
  if (slot.pair == kEmpty) return;
  w.heap.push_back(uint64_t{slot.rank} << 32 | static_cast<uint32_t>(position));
}

void BpeMerger::apply(std::vector<int32_t>& word, BpeWorkspace& w,
                      std::vector<uint32_t>* starts) const {
  const auto n = static_cast<int32_t>(word.size());
  constexpr std::greater<> kLowestOnTop;  // of equal ranks the leftmost
  w.symbols.clear();
  w.heap.clear();
  for (int32_t i = 0; i < n; ++i)
    w.symbols.push_back({word[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1});
  for (int32_t i = 0; i < n; ++i) push_candidate(w, i);
  std::make_heap(w.heap.begin(), w.heap.end(), kLowestOnTop);
  while (!w.heap.empty()) {
    std::pop_heap(w.heap.begin(), w.heap.end(), kLowestOnTop);
    const auto position = static_cast<int32_t>(static_cast<uint32_t>(w.heap.back()));
    const Merge& rule = merges_[w.heap.back() >> 32];
    w.heap.pop_back();
    auto& left = w.symbols[static_cast<size_t>(position)];
    // A neighbour may have been merged since the candidate was pushed: then it is stale.
    if (left.id != rule.left || left.next < 0) continue;
    auto& right = w.symbols[static_cast<size_t>(left.next)];
    if (right.id != rule.right) continue;
    left.id = rule.result;
    right.id = -1;
    left.next = right.next;
    if (right.next >= 0) w.symbols[static_cast<size_t>(right.next)].previous = position;
    for (const int32_t changed : {left.previous, position}) {
      if (changed < 0) continue;
      const size_t before = w.heap.size();
      push_candidate(w, changed);
      if (w.heap.size() > before) std::push_heap(w.heap.begin(), w.heap.end(), kLowestOnTop);
    }
  }
  word.clear();
  if (starts != nullptr) starts->clear();
  for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = w.symbols[static_cast<size_t>(i)].next) {
    word.push_back(w.symbols[static_cast<size_t>(i)].id);
    if (starts != nullptr) starts->push_back(static_cast<uint32_t>(i));
  }
}

}  // namespace tandem::text
