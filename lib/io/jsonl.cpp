#include "io/jsonl.h"

#include <fmt/format.h>

#include "io/json.h"

namespace tandem::io {

std::string jsonl_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void for_each_jsonl(std::string_view text, const std::string& where,
                    const std::function<void(const Json&, const std::string&)>& take) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (int line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    take(parse_json(line, where, {.first_line = line_number}),
         fmt::format("{}:{}", where, line_number));
  }
}

}  // namespace tandem::io
