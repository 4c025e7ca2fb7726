#include "text/word_rules.h"

#include "text/char_class.h"
#include "text/utf8.h"

namespace tandem::text {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

/// A text with the classes of its characters.
struct Classified {
  std::string_view text;
  const CharClasses& classes = CharClasses::get();

  bool ends_at(size_t i) const { return i >= text.size(); }
  size_t after(size_t i) const { return i + utf8_length(text[i]); }
  bool is(size_t i, CharClass wanted) const {
    return !ends_at(i) && classes.of(decode_char(text.data() + i)) == wanted;
  }
  bool is_line_end(size_t i) const { return !ends_at(i) && (text[i] == '\r' || text[i] == '\n'); }

  /// End of the run of a class that begins at i, of n characters at most.
  size_t run(size_t i, CharClass wanted, size_t n = SIZE_MAX) const {
    for (; n > 0 && is(i, wanted); --n) i = after(i);
    return i;
  }
};

/// Bytes of the contraction that `text` begins with, 0 if it begins with none.
size_t contraction(std::string_view text, bool any_case) {
  const auto lower = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  if (lower(0) != '\'') return 0;
  switch (lower(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return lower(2) == 'e' ? 3 : 0;
    case 'l':
      return lower(2) == 'l' ? 3 : 0;
    default:
      // U+017F, the long s, is an s in another case.
      return any_case && text.substr(1).starts_with("\xC5\xBF") ? 3 : 0;
  }
}

/// \s*[\r\n]+ if `line_ends`, else \s+(?!\S), else \s+, of white space that begins at `begin`.
size_t end_of_space(const Classified& t, size_t begin, bool line_ends) {
  size_t end = begin, last = begin, after_line_end = begin;
  while (t.is(end, CharClass::space)) {
    if (t.is_line_end(end)) after_line_end = end + 1;
    last = end;
    end = t.after(end);
  }
  if (line_ends && after_line_end > begin) return after_line_end;
  // The last of several characters goes with the word after it.
  return t.ends_at(end) || last == begin ? end : last;
}

}  // namespace

std::optional<WordRules> WordRules::of(std::string_view pattern) {
  if (pattern == kGpt2Pattern)
    return WordRules{.any_before_letters = false, .space_before_numbers = true, .line_ends = false};
  if (pattern == kQwen2Pattern) return WordRules{.any_case = true};
  if (pattern == kLlama3Pattern) return WordRules{.any_case = true, .max_digits = 3};
  return std::nullopt;
}

size_t WordRules::end_of_word(std::string_view text, size_t begin) const {
  const Classified t{text};
  if (const size_t n = contraction(text.substr(begin, 4), any_case); n > 0) return begin + n;
  const CharClass first = t.classes.of(decode_char(text.data() + begin));
  const size_t second = t.after(begin);
  const bool is_blank = text[begin] == ' ';
  const bool leads_letters = any_before_letters ? !t.is_line_end(begin) : is_blank;
  if (first == CharClass::letter) return t.run(begin, CharClass::letter);
  if (first == CharClass::number)
    return t.run(begin, CharClass::number, space_before_numbers ? SIZE_MAX : max_digits);
  if (leads_letters && t.is(second, CharClass::letter)) return t.run(second, CharClass::letter);
  if (space_before_numbers && is_blank && t.is(second, CharClass::number))
    return t.run(second, CharClass::number);
  if (first == CharClass::other || (is_blank && t.is(second, CharClass::other))) {
    size_t end = t.run(first == CharClass::other ? begin : second, CharClass::other);
    while (line_ends && t.is_line_end(end)) ++end;
    return end;
  }
  return end_of_space(t, begin, line_ends);
}

}  // namespace tandem::text
