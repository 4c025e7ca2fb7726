#include "text/utf8.h"

#include <utf8proc.h>

#include <cstring>

#include "base/error.h"

namespace tandem::text {
namespace {

struct ByteRange {
  uint8_t low, high;
};

/// Bytes of a sequence that starts with `lead`; 0 if none can.
constexpr size_t sequence_length(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  return utf8_length(static_cast<char>(lead));
}

/// What may follow at index 1: narrower than 80..BF where overlong forms, surrogates or values
/// above U+10FFFF would begin.
constexpr ByteRange second_byte(uint8_t lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {0x80, 0xBF};
  }
}

constexpr bool continues(uint8_t lead, size_t index, uint8_t byte) {
  const ByteRange range = index == 1 ? second_byte(lead) : ByteRange{0x80, 0xBF};
  return byte >= range.low && byte <= range.high;
}

/// Length of the ASCII run at the start.
size_t ascii_prefix(const char* p, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t word;
    std::memcpy(&word, p + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (i < n && static_cast<uint8_t>(p[i]) < 0x80) ++i;
  return i;
}

}  // namespace

size_t find_invalid_utf8(std::string_view bytes) {
  size_t i = 0;
  while (true) {
    i += ascii_prefix(bytes.data() + i, bytes.size() - i);
    if (i == bytes.size()) return std::string_view::npos;
    const auto lead = static_cast<uint8_t>(bytes[i]);
    const size_t length = sequence_length(lead);
    if (length == 0 || length > bytes.size() - i) return i;
    for (size_t k = 1; k < length; ++k)
      if (!continues(lead, k, static_cast<uint8_t>(bytes[i + k]))) return i;
    i += length;
  }
}

void require_utf8(std::string_view bytes, const std::string& what) {
  const size_t at = find_invalid_utf8(bytes);
  if (at == std::string_view::npos) return;
  throw input_error(what, "byte {} (0x{:02X}) is not UTF-8", at, static_cast<uint8_t>(bytes[at]))
      .hint("convert the text, for example with iconv -f LATIN1 -t UTF-8 FILE");
}

char32_t first_char(std::string_view text) {
  utf8proc_int32_t c = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &c);
  return static_cast<char32_t>(c);
}

char32_t last_char(std::string_view text) {
  size_t i = text.size() - 1;
  while (i > 0 && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80) --i;
  return first_char(text.substr(i));
}

void append_utf8(std::string& out, char32_t c) {
  utf8proc_uint8_t buffer[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(n));
}

bool is_white_space(char32_t c) {
  if (c == U' ' || (c >= 0x09 && c <= 0x0D) || c == 0x85) return true;
  if (c < 0x80) return false;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool is_word_char(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D;  // Join_Control
  }
}

std::string_view trim(std::string_view text) {
  const auto goes = [](char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); };
  while (!text.empty() && goes(first_char(text))) text.remove_prefix(utf8_length(text[0]));
  while (!text.empty()) {
    const char32_t c = last_char(text);
    if (!goes(c)) break;
    text.remove_suffix(c < 0x80 ? 1 : c < 0x800 ? 2 : 3);  // all white space is in the BMP
  }
  return text;
}

void Utf8Assembler::append(std::string_view bytes, std::string& out) {
  size_t i = 0;
  while (i < bytes.size()) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (n_pending_ == 0) {
      const size_t n_ascii = ascii_prefix(bytes.data() + i, bytes.size() - i);
      out.append(bytes, i, n_ascii);
      i += n_ascii;
      if (n_ascii > 0) continue;
      if (sequence_length(byte) == 0)
        out += kReplacementCharacter;
      else
        pending_[n_pending_++] = bytes[i];
      ++i;
      continue;
    }
    const auto lead = static_cast<uint8_t>(pending_[0]);
    if (!continues(lead, n_pending_, byte)) {  // `byte` itself is looked at again
      finish(out);
      continue;
    }
    pending_[n_pending_++] = bytes[i++];
    if (n_pending_ == sequence_length(lead)) {
      out.append(pending_.data(), n_pending_);
      n_pending_ = 0;
    }
  }
}

void Utf8Assembler::finish(std::string& out) {
  if (n_pending_ > 0) out += kReplacementCharacter;
  n_pending_ = 0;
}

}  // namespace tandem::text
