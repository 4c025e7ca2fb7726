#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "io/json_fwd.h"

namespace tandem::io {

/// One line of a JSON Lines file, with its newline. Bytes that are not UTF-8 become U+FFFD, so that
/// text from a model can never make a line unreadable.
std::string jsonl_line(const Json& value);

/// Calls `take(value, where)` for every line that is not blank; `where` is "path:line". A UTF-8
/// byte order mark and CRLF line ends are accepted.
/// errors   kind input at `where:line:column`
void for_each_jsonl(std::string_view text, const std::string& where,
                    const std::function<void(const Json& value, const std::string& where)>& take);

/// The same with the keys of objects in their order.
void for_each_ordered_jsonl(
    std::string_view text, const std::string& where,
    const std::function<void(const OrderedJson& value, const std::string& where)>& take);

/// Bytes of a file's whole lines. What follows the last line break is what a run that was killed
/// has written of one more, and may be cut off.
/// begins   how the first line of such a file begins
/// errors   kind input at `where`: the rest is no beginning of a line, so that the file is another's
size_t whole_lines(std::string_view text, const std::string& where, std::string_view begins);

}  // namespace tandem::io
