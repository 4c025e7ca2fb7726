#include "cli/listing.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "cli/help.h"
#include "cli/search_path.h"
#include "cli/terminal.h"
#include "io/file.h"
#include "model/spec/config.h"
#include "recipe/load.h"
#include "recipe/rewrite.h"

namespace tandem::cli {
namespace {

/// Names in one column, texts in the next; a terminal's lines fit its window.
std::string columns(const std::vector<std::pair<std::string, std::string>>& lines) {
  size_t width = 0;
  for (const auto& [name, text] : lines) width = std::max(width, name.size());
  const size_t window = ::isatty(STDOUT_FILENO) == 1 ? window_columns(STDOUT_FILENO)
                                                     : std::numeric_limits<size_t>::max();
  std::string all;
  for (const auto& [name, text] : lines) {
    all += name;
    append_wrapped(all, window, name.size(), width + 2, text);
  }
  return all;
}

/// The first sentence of the comment that a recipe begins with.
std::string first_sentence(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string text;
  for (std::string line; std::getline(in, line) && line.starts_with('#');) {
    const size_t begin = line.find_first_not_of("# ");
    if (begin == std::string::npos) break;
    text += (text.empty() ? "" : " ") + line.substr(begin);
  }
  return text.substr(0, text.find(". "));
}

/// True if the tool reads all sections of a recipe that is of its kind.
bool reads(const ToolInfo& info, const recipe::Field& schema, const std::filesystem::path& file) {
  try {
    const recipe::Node tree = recipe::load_recipe(
        file, info.kind, recipe_folders(),
        [&](recipe::Node& over, const recipe::Node& base) { return info.upgraded(over, base); });
    return !tree.entries.empty() &&
           std::ranges::all_of(tree.entries, [&](const recipe::Node::Entry& entry) {
             return entry.key == "sweep" ? info.sweeps
                                         : recipe::find_field(schema, entry.key) != nullptr;
           });
  } catch (const Error&) {
    return false;  // -r says why
  }
}

}  // namespace

std::string model_list() {
  std::vector<std::pair<std::string, std::string>> lines;
  const recipe::Folders folders = model_folders();
  for (const std::string& name : recipe::model_names(folders))
    for (const auto& folder : folders)
      if (std::error_code failed; std::filesystem::exists(folder / name, failed)) {
        lines.emplace_back(name, (folder / name).string());
        break;
      }
  for (const std::string& name : model::synthetic_names())
    lines.emplace_back("synthetic:" + name, "model shape with random weights");
  return columns(lines);
}

std::string upgraded_recipe(const ToolInfo& info, const std::string& name) {
  recipe::Node before, after;
  std::vector<recipe::Renaming> renamed;
  const auto file = recipe::find_recipe(name, recipe_folders());
  // The last file that is rewritten is this one: its bases come first.
  (void)recipe::load_recipe(file, info.kind, recipe_folders(),
                            [&](recipe::Node& over, const recipe::Node& base) {
                              renamed = recipe::upgrade_keys(over, info.kind);
                              before = over;
                              if (info.upgrade != nullptr) info.upgrade(over, base);
                              after = over;
                              return std::vector<recipe::Renaming>();
                            });
  const std::string text = recipe::rewrite_words(io::read_file(file), renamed);
  return recipe::with_version(recipe::rewrite_sections(text, before, after));
}

std::string recipe_list(const ToolInfo& info) {
  const recipe::Field schema = info.schema();
  std::vector<std::pair<std::string, std::string>> lines;
  for (const recipe::NamedRecipe& recipe : recipe::named_recipes(recipe_folders()))
    if (reads(info, schema, recipe.file))
      lines.emplace_back(recipe.name, first_sentence(recipe.file));
  return columns(lines);
}

}  // namespace tandem::cli
