#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::text {

/// U+FFFD, which stands for bytes that form no character.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// Offset of the first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7); npos if
/// all of it is. Surrogates, overlong forms and values above U+10FFFF are malformed.
size_t find_invalid_utf8(std::string_view bytes);

/// errors   kind input: names the offset of the first malformed byte of `what`
void require_utf8(std::string_view bytes, const std::string& what);

/// Bytes of the character that begins with `lead`; the input must be well formed.
constexpr size_t utf8_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}
/// Whether a byte of well-formed UTF-8 belongs to the character before it.
constexpr bool continues_char(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }
/// The character that begins at `p`, in well-formed UTF-8.
constexpr char32_t decode_char(const char* p) {
  const auto byte = [p](int i) { return static_cast<char32_t>(static_cast<uint8_t>(p[i])); };
  const auto low = [&](int i) { return byte(i) & 0x3F; };
  if (byte(0) < 0x80) return byte(0);
  if (byte(0) < 0xE0) return (byte(0) & 0x1F) << 6 | low(1);
  if (byte(0) < 0xF0) return (byte(0) & 0x0F) << 12 | low(1) << 6 | low(2);
  return (byte(0) & 0x07) << 18 | low(1) << 12 | low(2) << 6 | low(3);
}
/// First character of a well-formed, non-empty text.
char32_t first_char(std::string_view text);
/// Last character of a well-formed, non-empty text.
char32_t last_char(std::string_view text);
void append_utf8(std::string& out, char32_t c);

/// Unicode property White_Space.
bool is_white_space(char32_t c);
/// Letters, marks, digits and connector punctuation: what \w means in Unicode regular expressions.
bool is_word_char(char32_t c);
/// Without white space at its two ends, as Python's str.strip: the separators U+001C to U+001F too.
std::string_view trim(std::string_view text);

/// Turns a stream of byte strings into well-formed UTF-8: a character is passed on when its last
/// byte has arrived, and each maximal malformed part becomes one U+FFFD (the practice that Unicode
/// recommends and that Rust's from_utf8_lossy follows), wherever the stream was cut.
class Utf8Assembler {
 public:
  void append(std::string_view bytes, std::string& out);
  /// The stream ends: an unfinished character becomes U+FFFD.
  void finish(std::string& out);

 private:
  std::array<char, 4> pending_{};
  size_t n_pending_ = 0;
};

}  // namespace tandem::text
