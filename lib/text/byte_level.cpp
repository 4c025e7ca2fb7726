#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace tandem::text {
namespace {

constexpr size_t kTableEnd = 0x100 + 68;

struct Tables {
  std::array<uint16_t, 256> char_of_byte{};
  std::array<int16_t, kTableEnd> byte_of_char{};
};

constexpr bool prints(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Tables make_tables() {
  Tables t;
  t.byte_of_char.fill(-1);
  uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const uint16_t c = prints(byte) ? static_cast<uint16_t>(byte) : next++;
    t.char_of_byte[static_cast<size_t>(byte)] = c;
    t.byte_of_char[c] = static_cast<int16_t>(byte);
  }
  return t;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::optional<std::string> bytes_of_byte_level(std::string_view piece) {
  std::string bytes;
  for (size_t i = 0; i < piece.size(); i += utf8_length(piece[i])) {
    const char32_t c = first_char(piece.substr(i));
    if (c >= kTableEnd || kTables.byte_of_char[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kTables.byte_of_char[c]);
  }
  return bytes;
}

std::string byte_level_of_bytes(std::string_view bytes) {
  std::string piece;
  for (const char byte : bytes)
    append_utf8(piece, kTables.char_of_byte[static_cast<uint8_t>(byte)]);
  return piece;
}

}  // namespace tandem::text
