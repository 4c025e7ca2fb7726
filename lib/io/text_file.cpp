#include "io/text_file.h"

#include <algorithm>

#include "base/error.h"
#include "io/file.h"

namespace tandem::io {
namespace {

using namespace std::string_view_literals;

/// True if the bytes are characters of `width` bytes each, of which byte `at` is never 0 and most
/// others are 0, as in Latin text.
bool is_padded(std::string_view bytes, size_t width, size_t at) {
  constexpr size_t kLooked = 64;  // bytes
  const size_t n = std::min(kLooked, bytes.size() / width * width);
  if (n < 2 * width) return false;
  size_t zeros = 0;
  for (size_t i = 0; i < n; ++i) {
    if (bytes[i] != '\0') continue;
    if (i % width == at) return false;
    ++zeros;
  }
  return 4 * zeros > 3 * (n - n / width);
}

/// Names what iconv takes; empty for text of single bytes.
std::string_view wide_encoding(std::string_view bytes) {
  // The mark of UTF-32 begins as that of UTF-16 does.
  if (bytes.starts_with("\xFF\xFE\0\0"sv) || bytes.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  if (bytes.starts_with("\xFF\xFE") || bytes.starts_with("\xFE\xFF")) return "UTF-16";
  if (is_padded(bytes, 4, 0)) return "UTF-32LE";
  if (is_padded(bytes, 4, 3)) return "UTF-32BE";
  if (is_padded(bytes, 2, 0)) return "UTF-16LE";
  if (is_padded(bytes, 2, 1)) return "UTF-16BE";
  return {};
}

}  // namespace

std::string_view text_in(std::string_view bytes, const std::string& where) {
  if (const std::string_view encoding = wide_encoding(bytes); !encoding.empty())
    throw input_error(where, "is {} text, expected UTF-8", encoding)
        .hint(fmt::format("convert it first: iconv -f {} -t UTF-8 FILE", encoding));
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.remove_prefix(3);
  return bytes;
}

std::string read_text_file(const std::filesystem::path& path, size_t limit_bytes) {
  std::string bytes = read_file(path, limit_bytes);
  bytes.erase(0, bytes.size() - text_in(bytes, path.string()).size());
  return bytes;
}

}  // namespace tandem::io
