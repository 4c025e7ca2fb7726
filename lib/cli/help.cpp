#include "cli/help.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tandem::cli {
namespace {

constexpr size_t kGap = 2, kWidestName = 28;
constexpr size_t kNarrowest = 20, kWidest = 100;  // longer lines are hard to read

std::string spelling(const Flag& flag) {
  const bool short_form = !flag.names.starts_with("--");
  std::string text = short_form ? "  " : "      ";
  text += flag.names;
  if (const size_t comma = text.find(','); comma != std::string::npos) text.insert(comma + 1, " ");
  if (!flag.value.empty()) text += (flag.value[0] == '[' ? "" : " ") + flag.value;
  return text;
}

std::string meaning(const Flag& flag, const recipe::Field& schema) {
  std::string text = flag.text;
  const recipe::Field* field = flag.key.empty() ? nullptr : recipe::find_field(schema, flag.key);
  if (field != nullptr)
    text += fmt::format(" [{}; {}]", flag.key,
                        field->limits.required ? "required" : "default " + field->value->yaml());
  else if (!flag.fallback.empty())
    text += fmt::format(" [default {}]", flag.fallback);
  return text;
}

using Rows = std::vector<std::pair<std::string, std::string>>;

std::string table(const Rows& rows, size_t width) {
  size_t column = 0;
  for (const auto& [name, text] : rows)
    column = std::max(column, std::min({name.size(), kWidestName, width * 3 / 8}));
  column += kGap;
  std::string out;
  for (const auto& [name, text] : rows) {
    out += name;
    size_t used = name.size();
    if (used + kGap > column) {
      out += '\n';
      used = 0;
    }
    append_wrapped(out, width, used, column, text);
  }
  return out;
}

std::string flag_table(const std::vector<Flag>& flags, const recipe::Field& schema, size_t width) {
  Rows rows;
  for (const Flag& flag : flags) rows.emplace_back(spelling(flag), meaning(flag, schema));
  return table(rows, width);
}

/// The parts of a command line that stay on one line: a word, or a flag and its value.
std::vector<std::string> units_of(std::string_view command) {
  std::vector<std::string> units;
  bool takes_value = false;
  for (size_t i = 0; i < command.size();) {
    const size_t begin = i;
    for (char quote = 0; i < command.size() && (quote != 0 || command[i] != ' '); ++i) {
      const char c = command[i];
      if (quote == 0 && (c == '"' || c == '\''))
        quote = c;
      else if (c == quote)
        quote = 0;
    }
    const std::string_view word = command.substr(begin, i++ - begin);
    const bool is_flag = word.size() > 1 && word[0] == '-';
    if (takes_value && !is_flag)
      units.back().append(" ").append(word);
    else
      units.emplace_back(word);
    takes_value = is_flag;
  }
  return units;
}

std::string examples(const ToolInfo& info, size_t n, size_t width) {
  constexpr std::string_view kBreak = " \\";
  std::string text = "examples:\n";
  for (size_t i = 0; i < std::min(n, info.examples.size()); ++i) {
    const std::vector<std::string> units = units_of(info.examples[i]);
    size_t used = 1;
    text += ' ';
    for (const std::string& unit : units) {
      const size_t rest = &unit == &units.back() ? 0 : kBreak.size();
      if (used + 1 + unit.size() + rest > width && used > 4) {
        text.append(kBreak).append("\n   ");
        used = 3;
      }
      text.append(" ").append(unit);
      used += 1 + unit.size();
    }
    text += '\n';
  }
  return text;
}

size_t text_width(size_t columns) { return std::clamp(columns, kNarrowest, kWidest); }

/// errors   kind usage: no such section
std::vector<recipe::Key> keys_of(const ToolInfo& info, const recipe::Field& schema,
                                 std::string_view section) {
  std::vector<std::string_view> names;
  for (const recipe::Field& field : schema.fields) names.push_back(field.name);
  if (!section.empty() && std::ranges::find(names, section) == names.end())
    throw usage_error("--help-recipe", "{} reads no section '{}'", info.name, section)
        .hint(fmt::format("its sections: {}", fmt::join(names, ", ")));
  return recipe::keys_of(schema, section);
}

}  // namespace

void append_wrapped(std::string& out, size_t width, size_t used, size_t column,
                    std::string_view text) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const size_t gap = used > column ? 1 : column - used;
    if (used > column && used + gap + word.size() > width) {
      out.append("\n").append(column, ' ').append(word);
      used = column + word.size();
    } else {
      out.append(gap, ' ').append(word);
      used += gap + word.size();
    }
  }
  out += '\n';
}

std::string help_text(const ToolInfo& info, size_t columns) {
  const size_t width = text_width(columns);
  const recipe::Field schema = info.schema != nullptr ? info.schema() : recipe::Field{};
  std::string text;
  append_wrapped(text, width, 0, 0, fmt::format("{}: {}", info.name, info.purpose));
  text += fmt::format("\nusage: {} [flags]{}\n\n", info.name,
                      info.positional.empty() ? "" : " [" + info.positional + "]");
  text += examples(info, info.examples.size(), width);
  if (!info.flags.empty()) text += "\nmain flags:\n" + flag_table(info.flags, schema, width);
  if (info.schema != nullptr) {
    Rows rows;
    for (const recipe::Field& field : schema.fields)
      rows.emplace_back(fmt::format("  {}", field.name), std::string(field.text));
    text += "\nrecipe sections (see --help-recipe):\n" + table(rows, width);
  }
  text += "\ncommon flags:\n" + flag_table(common_flags(info), schema, width);
  text += "\nexit status:\n";
  append_wrapped(text, width, 0, kGap,
                 "0 success, 1 internal error, 2 command line, 3 recipe, 4 input or output file, 5 "
                 "memory, 6 device, 7 failed numeric check, 8 part of a sweep failed, 128 + N "
                 "ended by signal N (130, 143)");
  text += "\nfiles and environment:\n";
  append_wrapped(
      text, width, 0, kGap,
      "Recipes: current directory, then TANDEM_RECIPE_PATH, then the installed recipes. Models "
      "without a slash in the name: current directory, then TANDEM_MODEL_DIR, then the models "
      "folder of the recipes. Measured limits of this machine: TANDEM_CACHE_DIR, else "
      "XDG_CACHE_HOME/tandem, else ~/.cache/tandem. kernel-bench --limits measures them again. "
      "Other variables: TANDEM_LOG (quiet, normal, verbose, debug), TANDEM_ISA (scalar, avx2, "
      "avx512, avx512_bf16, amx), TANDEM_GPU_ISA (portable, hopper) and NO_COLOR.");
  return text;
}

std::string short_help_text(const ToolInfo& info, size_t columns) {
  const size_t width = text_width(columns);
  constexpr size_t kExamples = 2, kFlags = 5;
  const recipe::Field schema = info.schema != nullptr ? info.schema() : recipe::Field{};
  std::vector<Flag> flags = all_flags(info);
  flags.resize(std::min(flags.size(), kFlags));
  std::string text;
  append_wrapped(text, width, 0, 0, fmt::format("{}: {}", info.name, info.purpose));
  return text + fmt::format("\n{}\n{}\n{} --help shows all flags\n",
                            examples(info, kExamples, width), flag_table(flags, schema, width),
                            info.name);
}

std::string recipe_help_text(const ToolInfo& info, std::string_view section, size_t columns) {
  const size_t width = text_width(columns), indent = 4;
  const recipe::Field schema = info.schema();
  std::string text;
  for (const auto& [name, field] : keys_of(info, schema, section)) {
    std::string facts;
    for (const char c : field->value->type()) facts += c == '|' ? " | " : std::string(1, c);
    facts += field->limits.required ? ", required" : ", default " + field->value->yaml();
    if (const std::string range = field->limits.range(); !range.empty()) facts += ", " + range;
    text += name + ' ';
    append_wrapped(text, width, name.size() + 1, indent, facts);
    append_wrapped(text, width, 0, indent, field->meaning());
  }
  return text;
}

std::string recipe_help_lines(const ToolInfo& info, std::string_view section) {
  const recipe::Field schema = info.schema();
  std::string text = "key\ttype\tdefault\trange\tmeaning\n";
  for (const auto& [name, field] : keys_of(info, schema, section))
    text += fmt::format("{}\t{}\t{}\t{}\t{}\n", name, field->value->type(),
                        field->limits.required ? "(required)" : field->value->yaml(),
                        field->limits.range(), field->meaning());
  return text;
}

std::string recipe_help_json(const ToolInfo& info, std::string_view section) {
  const recipe::Field schema = info.schema();
  auto all = nlohmann::ordered_json::array();
  for (const auto& [name, field] : keys_of(info, schema, section)) {
    nlohmann::ordered_json& key = all.emplace_back();
    key = {{"key", name}, {"type", field->value->type()}};
    if (field->limits.required)
      key["required"] = true;
    else
      key["default"] = field->value->json();
    key["range"] = field->limits.range();
    key["meaning"] = field->meaning();
  }
  return all.dump(2) + '\n';
}

}  // namespace tandem::cli
