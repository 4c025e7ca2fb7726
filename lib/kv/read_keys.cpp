#include "kv/read_keys.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace tandem::kv {
namespace {

constexpr const char* kName = "workspace/read keys";
constexpr int kWordBits = 64;

size_t words_of(const ReadKeys::Spec& s) {
  return static_cast<size_t>((s.max_tokens + kWordBits - 1) / kWordBits);
}

size_t bytes_of(const ReadKeys::Spec& s, int n_seqs) {
  return static_cast<size_t>(n_seqs) * static_cast<size_t>(s.n_kv_heads) * words_of(s) *
         sizeof(uint64_t);
}

}  // namespace

void ReadKeys::plan(const Spec& spec, MemoryPlan& plan) {
  if (spec.max_seqs > 0) plan.add(kName, bytes_of(spec, spec.max_seqs));
}

ReadKeys::ReadKeys(const Spec& spec, Arena& arena) : spec_(spec) {
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
  if (spec.max_seqs > 0) bits_ = static_cast<std::atomic<uint64_t>*>(arena.take(kName));
}

size_t ReadKeys::words() const { return words_of(spec_); }

void ReadKeys::clear(int n_seqs) {
  TANDEM_CHECK(n_seqs <= spec_.max_seqs, "{} sequences exceed the planned {}", n_seqs,
               spec_.max_seqs);
  std::memset(static_cast<void*>(bits_), 0, bytes_of(spec_, n_seqs));
}

int ReadKeys::note(int seq, int kv_head, const KeyList& list) {
  std::atomic<uint64_t>* const bits =
      bits_ + static_cast<size_t>(seq * spec_.n_kv_heads + kv_head) * words();
  int n = 0;
  for (const KeySegment& segment : list.segments)
    for (int i = 0; i < segment.n;) {
      // Tokens ascend: those of a word follow each other.
      const int word = segment.ids[i] / kWordBits;
      uint64_t read = 0;
      for (; i < segment.n && segment.ids[i] / kWordBits == word; ++i)
        read |= uint64_t{1} << (segment.ids[i] % kWordBits);
      const uint64_t before = bits[word].fetch_or(read, std::memory_order_relaxed);
      n += std::popcount(read & ~before);
    }
  return n;
}

}  // namespace tandem::kv
