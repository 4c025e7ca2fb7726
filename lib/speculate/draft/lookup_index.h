#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tandem::speculate {

/// Where the last tokens of a growing text stood before. Every token knows the latest earlier place
/// of itself and of itself after the token before it, so that a search goes from place to place and
/// not through the text.
class LookupIndex {
 public:
  /// Bytes of an index for each token of its text, at most: two places, and a node and a bucket of
  /// the map of pairs.
  static constexpr size_t kTokenBytes = 64;

  /// Takes in the text as it is now: that of the call before, and new tokens after it.
  /// cost     of the new tokens
  void extend(std::span<const int32_t> tokens);
  /// What followed the text's last tokens where they stood before, `length` tokens at most: of the
  /// longest run of at most `longest` tokens that agrees, the latest place. Empty where nothing
  /// agrees.
  /// tokens   the text that was taken in last
  std::span<const int32_t> find(std::span<const int32_t> tokens, int longest, int length) const;

 private:
  static constexpr int32_t kNone = -1;
  std::unordered_map<int32_t, int32_t> last_;        // place of a token
  std::unordered_map<uint64_t, int32_t> last_pair_;  // of the second of two tokens
  std::vector<int32_t> before_, pair_before_;        // [tokens] the place before, of each place
};

}  // namespace tandem::speculate
