#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace tandem::io {

/// The text that a file's bytes are, without the byte order mark that some editors put in front.
/// errors   kind input at `where`: UTF-16 or UTF-32, marked or not (with the command that converts
///          it)
std::string_view text_in(std::string_view bytes, const std::string& where);

/// read_file for text.
/// errors   those of read_file and of text_in
std::string read_text_file(const std::filesystem::path& path, size_t limit_bytes = size_t{1} << 30);

}  // namespace tandem::io
