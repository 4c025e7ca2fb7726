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

void for_each_jsonl(std::string_view text, const std::string& where,
                    const std::function<void(const Json&, const std::string&)>& take) {
  text = text_in(text, where);
  for (int line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    take(parse_json(line, where, {.first_line = line_number}),
         fmt::format("{}:{}", where, line_number));
  }
}

size_t whole_lines(std::string_view text, const std::string& where, std::string_view begins) {
  const size_t whole = text.rfind('\n') + 1;  // npos + 1 = 0: not one whole line
  const std::string_view torn = text.substr(whole);
  if (text.find_first_not_of(" \t\r\n") < whole) begins = "{\"";  // the first line is another
  if (torn.starts_with(begins) || begins.starts_with(torn)) return whole;
  throw input_error(where, "ends without a line break in {}, which is no beginning of a record",
                    quote(torn, 40))
      .hint("--resume continues a file of an earlier run: name that, or a new one, with -o");
}

}  // namespace tandem::io
