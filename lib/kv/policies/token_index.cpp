#include "kv/policies/token_index.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::kv {
namespace {

int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

TokenIndex::TokenIndex(const Spec& spec) : spec_(spec) {
  const int most = std::max(1, spec.max_tokens - spec.sinks - spec.recent);
  capacity_ = std::min(spec.max_block, round_up(most, kPageTokens));
  max_blocks_ = (most + capacity_ - 1) / capacity_;
  const bool forks_write = spec.max_prompts == 0 && spec.max_seqs > 1;
  const int64_t writers = spec.max_prompts > 0 ? spec.max_prompts : spec.max_seqs;
  // As many blocks as the tokens fill, and one more for every sequence that may end in its own; a
  // fork that writes may also own a copy of the block where it began.
  const int64_t for_all =
      (spec.total_tokens + capacity_ - 1) / capacity_ + (forks_write ? 2 : 1) * writers;
  n_blocks_ = static_cast<int>(std::min(max_blocks_ * writers, for_all));
  slots_.assign(static_cast<size_t>(spec.max_seqs), {spec.sinks, {}});
  refs_.resize(static_cast<size_t>(n_blocks_));
  for (int block = n_blocks_; block-- > 0;) free_.push_back(block);
}

int TokenIndex::block_tokens(int slot, int i) const {
  return std::min(capacity_, end(slot) - begin() - i * capacity_);
}

int TokenIndex::wanted_end(int slot, int length, bool prompt) const {
  const int now = end(slot), room = std::max(0, length - spec_.recent - begin());
  const int wanted = begin() + room / spec_.unit * spec_.unit;
  const std::vector<int>& blocks = at(slot).blocks;
  if (blocks.empty() && wanted - begin() < spec_.least) return now;
  const bool shared = !blocks.empty() && refs_[static_cast<size_t>(blocks.back())] > 1;
  return (prompt && !shared) || wanted - now >= kRoll ? std::max(now, wanted) : now;
}

std::vector<TokenIndex::Piece> TokenIndex::extend(int slot, int end) {
  Slot& s = at(slot);
  std::vector<Piece> pieces;
  while (s.end < end) {
    const int held = s.end - begin(), offset = held % capacity_;
    Piece piece{.offset = offset, .token = s.end, .n = std::min(capacity_ - offset, end - s.end)};
    if (offset == 0) {
      s.blocks.push_back(allocate());
    } else if (refs_[static_cast<size_t>(s.blocks.back())] > 1) {
      piece.copy_of = s.blocks.back();
      s.blocks.back() = allocate();
      unref(piece.copy_of);
    }
    piece.block = s.blocks.back();
    pieces.push_back(piece);
    s.end += piece.n;
  }
  return pieces;
}

void TokenIndex::cut(int slot, int end) {
  Slot& s = at(slot);
  s.end = std::min(s.end, std::max(end, begin()));
  const auto n = static_cast<size_t>((s.end - begin() + capacity_ - 1) / capacity_);
  for (; s.blocks.size() > n; s.blocks.pop_back()) unref(s.blocks.back());
}

void TokenIndex::fork(int from, int to) {
  release(to);
  at(to) = at(from);
  for (const int block : at(to).blocks) ++refs_[static_cast<size_t>(block)];
}

void TokenIndex::release(int slot) {
  for (const int block : at(slot).blocks) unref(block);
  at(slot) = {spec_.sinks, {}};
}

int TokenIndex::allocate() {
  TANDEM_CHECK(!free_.empty(), "all {} index blocks are in use", n_blocks_);
  const int block = free_.back();
  free_.pop_back();
  refs_[static_cast<size_t>(block)] = 1;
  return block;
}

void TokenIndex::unref(int block) {
  if (--refs_[static_cast<size_t>(block)] == 0) free_.push_back(block);
}

}  // namespace tandem::kv
