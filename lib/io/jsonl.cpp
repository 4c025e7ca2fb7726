#include "io/jsonl.h"

#include <fmt/format.h>

#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"
#include "io/text_file.h"

namespace tandem::io {

std::string jsonl_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

namespace {

/// Calls `take(line, number)` for every line that is not blank.
template <class Take>
void for_each_line(std::string_view text, const std::string& where, const Take& take) {
  text = text_in(text, where);
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) take(line, number);
  }
}

}  // namespace

void for_each_jsonl(std::string_view text, const std::string& where,
                    const std::function<void(const Json&, const std::string&)>& take) {
  for_each_line(text, where, [&](std::string_view line, int number) {
    take(parse_json(line, where, {.first_line = number}), fmt::format("{}:{}", where, number));
  });
}

void for_each_ordered_jsonl(
    std::string_view text, const std::string& where,
    const std::function<void(const OrderedJson&, const std::string&)>& take) {
  for_each_line(text, where, [&](std::string_view line, int number) {
    take(parse_ordered_json(line, where, {.first_line = number}),
         fmt::format("{}:{}", where, number));
  });
}

size_t whole_lines(std::string_view text, const std::string& where, std::string_view begins) {
  const size_t whole = text.rfind('\n') + 1;  // npos + 1 = 0: not one whole line
  const std::string_view torn = text.substr(whole);
  if (text.find_first_not_of(" \t\r\n") < whole) begins = "{\"";  // the first line is another
  if (torn.starts_with(begins) || begins.starts_with(torn)) return whole;
  throw input_error(where, "the last line, {}, has no line break and does not begin a record",
                    quote(torn, 40))
      .hint("give -o a new file, or one that an earlier run wrote (one JSON object a line)");
}

}  // namespace tandem::io
