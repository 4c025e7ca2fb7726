#include "cli/help.h"

#include <algorithm>

namespace tandem::cli {
namespace {

constexpr size_t kWidth = 100, kGap = 2, kWidestName = 28;

/// Appends words at `column`, breaking lines before kWidth; the first line starts at `used`.
void append_wrapped(std::string& out, size_t used, size_t column, std::string_view text) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const size_t gap = used > column ? 1 : column - used;
    if (used > column && used + gap + word.size() > kWidth) {
      out.append("\n").append(column, ' ').append(word);
      used = column + word.size();
    } else {
      out.append(gap, ' ').append(word);
      used += gap + word.size();
    }
  }
  out += '\n';
}

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

std::string table(const Rows& rows) {
  size_t column = 0;
  for (const auto& [name, text] : rows)
    column = std::max(column, std::min(name.size(), kWidestName));
  column += kGap;
  std::string out;
  for (const auto& [name, text] : rows) {
    out += name;
    size_t used = name.size();
    if (used + kGap > column) {
      out += '\n';
      used = 0;
    }
    append_wrapped(out, used, column, text);
  }
  return out;
}

std::string flag_table(const std::vector<Flag>& flags, const recipe::Field& schema) {
  Rows rows;
  for (const Flag& flag : flags) rows.emplace_back(spelling(flag), meaning(flag, schema));
  return table(rows);
}

std::string examples(const ToolInfo& info, size_t n) {
  std::string text = "examples:\n";
  for (size_t i = 0; i < std::min(n, info.examples.size()); ++i)
    text += "  " + info.examples[i] + '\n';
  return text;
}

}  // namespace

std::string help_text(const ToolInfo& info) {
  const recipe::Field schema = info.schema != nullptr ? info.schema() : recipe::Field{};
  std::string text =
      fmt::format("{}: {}\n\nusage: {} [flags]\n\n", info.name, info.purpose, info.name);
  text += examples(info, info.examples.size());
  if (!info.flags.empty()) text += "\nmain flags:\n" + flag_table(info.flags, schema);
  if (info.schema != nullptr) {
    Rows rows;
    for (const recipe::Field& field : schema.fields)
      rows.emplace_back(fmt::format("  {}", field.name), std::string(field.text));
    text += fmt::format("\nrecipe sections ({} --help-recipe lists their keys):\n", info.name) +
            table(rows);
  }
  text += "\ncommon flags:\n" + flag_table(common_flags(info), schema);
  text += R"(
exit status:
  0 done   1 bug   2 command line   3 recipe   4 input or output file   5 memory   6 device
  7 wrong numbers   8 part of a sweep failed   128 + N ended by signal N (130, 143)

files and environment:
  recipes are searched here, in TANDEM_RECIPE_PATH and in the installed recipes; models named
  without a slash here, in TANDEM_MODEL_DIR and in the recipes' models folder. This machine's limits
  are measured once and kept in TANDEM_CACHE_DIR, or in tandem/ of XDG_CACHE_HOME, or in
  ~/.cache/tandem; kernel-bench --limits measures them again. TANDEM_LOG (quiet, normal, verbose,
  debug), TANDEM_ISA (scalar, avx2, avx512, avx512_bf16, amx), TANDEM_GPU_ISA (portable, hopper) and
  NO_COLOR work.
)";
  return text;
}

std::string short_help_text(const ToolInfo& info) {
  constexpr size_t kExamples = 2, kFlags = 5;
  const recipe::Field schema = info.schema != nullptr ? info.schema() : recipe::Field{};
  std::vector<Flag> flags = all_flags(info);
  flags.resize(std::min(flags.size(), kFlags));
  return fmt::format("{}: {}\n\n{}\n{}\n{} --help shows everything\n", info.name, info.purpose,
                     examples(info, kExamples), flag_table(flags, schema), info.name);
}

}  // namespace tandem::cli
