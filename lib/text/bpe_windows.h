#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "text/bpe.h"

namespace tandem::text {

/// Merges one long word in windows, so that only a window of it is in memory.
///
/// The ids are those of BpeMerger::apply on the whole word. Tokens t1 t2 ... are what merging a
/// word gives if and only if merging each alone gives it and merging the symbols of each two
/// neighbours gives just these two: until a first merge crosses a border, the merges on its two
/// sides follow one another as they do in the two tokens alone, since each side always waits for
/// the lower rank of the two. A window begins with the last token that is taken from the one before
/// it. Where it is the first token of the new window too, all neighbours have thus been seen next
/// to each other.
class BpeWindows {
 public:
  /// Window and margin, in symbols: tokens of the margin are merged again, as later symbols may
  /// change them. A workspace of 20 bytes a symbol stays in an L2 cache. A change reaches back over
  /// a chain of rules whose ranks fall to the right, in known vocabularies some tokens.
  static constexpr size_t kWindow = size_t{1} << 14, kMargin = kWindow / 4;

  /// Appends symbols of the word until there are at least `n`, false if the word has no more.
  using Fill = std::function<bool(size_t n, std::vector<int32_t>& symbols)>;
  /// Called after each window with the number of symbols that wait for the next; false stops.
  using GoOn = std::function<bool(size_t n_waiting)>;

  enum class End : uint8_t { whole, stopped, uncertain };

  /// Appends the word's ids. With `uncertain`, a later window changed the last token of an earlier
  /// one: those that were appended may be wrong, and the word has to be merged at once.
  End apply(const BpeMerger& merger, BpeWorkspace& workspace, const Fill& fill, const GoOn& go_on,
            std::vector<int32_t>& ids);

 private:
  std::vector<int32_t> symbols_, tokens_;
  std::vector<int32_t> merged_;   // the symbols that tokens_ are of
  std::vector<uint32_t> starts_;  // of tokens_
};

}  // namespace tandem::text
