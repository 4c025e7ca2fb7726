#include "text/pre_tokenizer.h"

#include "text/utf8.h"

namespace tandem::text {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

size_t PreTokenizer::after(std::string_view text, Regex::Match match) {
  if (match.end > match.begin) return match.end;
  return match.end < text.size() ? match.end + utf8_length(text[match.end]) : text.size() + 1;
}

}  // namespace tandem::text
