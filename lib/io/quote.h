#pragma once
#include <string>
#include <string_view>

namespace tandem::io {

/// Text from a file made fit for a one-line message: in single quotes, control characters and
/// invalid UTF-8 as '?', cut to about `limit` bytes with "..." at the end.
std::string quote(std::string_view text, size_t limit = 80);

/// Text that goes to a terminal as part of a line, such as a file's name: control characters and
/// invalid UTF-8 as escapes, `\n` or `\x1b`.
std::string escape_controls(std::string_view text);

/// Text as one word of a shell's command line, in single quotes where it needs them.
std::string shell_word(const std::string& text);

/// Returns `text` with every `from` replaced by `to`; `from` is not empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

/// Length of the valid UTF-8 sequence at the front of `text` (RFC 3629), 0 if there is none.
size_t utf8_length(std::string_view text);

}  // namespace tandem::io
