#include "io/quote.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace tandem::io {

size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t n = lead >= 0xC2 && lead < 0xE0   ? 2
                   : lead >= 0xE0 && lead < 0xF0 ? 3
                   : lead >= 0xF0 && lead < 0xF5 ? 4
                                                 : 0;
  if (n == 0 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const uint8_t second = byte(1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second >= 0xA0;
  const bool beyond = lead == 0xF4 && second >= 0x90;
  return overlong || surrogate || beyond ? 0 : n;
}

namespace {

/// Whether the sequence of n bytes at the front is one that a terminal obeys, or no UTF-8 (n = 0).
bool is_unfit(std::string_view text, size_t n) {
  const auto first = static_cast<uint8_t>(text.front());
  // U+0080..U+009F, encoded C2 80..C2 9F, are control characters that terminals obey.
  const bool c1_control = n == 2 && first == 0xC2 && static_cast<uint8_t>(text[1]) < 0xA0;
  return n == 0 || first < 0x20 || first == 0x7F || c1_control;
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t i = 0;
  while ((i = text.find(from)) != std::string_view::npos) {
    out.append(text.substr(0, i)).append(to);
    text.remove_prefix(i + from.size());
  }
  return out.append(text);
}

std::string escape_controls(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t n = utf8_length(text), taken = std::max<size_t>(1, n);
    const std::string_view piece = text.substr(0, taken);
    if (!is_unfit(text, n))
      out += piece;
    else if (piece == "\n")
      out += "\\n";
    else
      for (const char c : piece) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    text.remove_prefix(taken);
  }
  return out;
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=+,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  return fmt::format("'{}'", replace_all(text, "'", "'\\''"));
}

std::string quote(std::string_view text, size_t limit) {
  std::string out = "'";
  while (!text.empty()) {
    if (out.size() > limit) return out + "...'";
    const size_t n = utf8_length(text);
    if (is_unfit(text, n))
      out += '?';
    else
      out.append(text, 0, n);
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out + "'";
}

}  // namespace tandem::io
