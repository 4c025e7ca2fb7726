#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::text {

/// The pattern of GPT-2, which byte-level pre-tokenisers use by default.
extern const char* const kGpt2Pattern;
/// The pattern of Qwen2 and its successors.
extern const char* const kQwen2Pattern;
/// The pattern of Llama 3, in which three digits at most make a word.
extern const char* const kLlama3Pattern;

/// A matcher of the patterns above, by hand: they differ in few places. Their words cover a text
/// without gaps, and a word is found in time linear in it and in the white space around it, where
/// PCRE2 tries \s*[\r\n]+ once for each character of a run of blanks.
struct WordRules {
  bool any_case = false;              // (?i:'s|'t|...) instead of 's|'t|...
  bool any_before_letters = true;     // [^\r\n\p{L}\p{N}]?\p{L}+ instead of  ?\p{L}+
  bool space_before_numbers = false;  //  ?\p{N}+ instead of \p{N}{1,max_digits}
  size_t max_digits = 1;
  bool line_ends = true;  // [\r\n]* after signs, and white space up to its last line end is a word

  /// The rules that match what `pattern` does, if it is one of the above.
  static std::optional<WordRules> of(std::string_view pattern);

  /// Where the word that begins at `begin` ends.
  /// text     well-formed UTF-8
  /// begin    below text.size(), where a character begins
  /// result   above `begin`
  size_t end_of_word(std::string_view text, size_t begin) const;
};

}  // namespace tandem::text
