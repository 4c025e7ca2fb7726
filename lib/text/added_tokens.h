#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

/// A token that is found in the text as it stands, before any merging. Names as in tokenizer.json.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;      // control token: left out of decoded text on request
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space after it along
  bool single_word = false;  // only where no word character touches it
  bool normalized = false;   // looked for in normalised text
};

/// Finds added tokens: leftmost first, the longest at each place (as Hugging Face tokenizers do).
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  /// Cuts `text` into parts between tokens (never empty) and tokens, in order, until a callback
  /// returns false. Special tokens count only if `parse_special`.
  /// result   false if a callback stopped it
  /// cost     linear in the text, times the length of the longest token where prefixes of it abound
  bool split(std::string_view text, bool parse_special,
             const std::function<bool(std::string_view)>& on_text,
             const std::function<bool(int32_t)>& on_token) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;        // sorted by content, without duplicates
  std::array<bool, 256> starts_token_{};  // by first byte
};

}  // namespace tandem::text
