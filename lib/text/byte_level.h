#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace tandem::text {

/// Byte-level BPE files write each byte as one printable character (GPT-2's table: bytes that print
/// in Latin-1 stand for themselves, the other 68 follow in order from U+0100).

/// Bytes of a piece as vocabularies write it; nothing if it holds a character outside the table.
std::optional<std::string> bytes_of_byte_level(std::string_view piece);
/// The inverse, for messages and for writing vocabularies.
std::string byte_level_of_bytes(std::string_view bytes);

}  // namespace tandem::text
