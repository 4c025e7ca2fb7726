#include "cli/search_path.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

void append_variable(std::vector<fs::path>& folders, const char* name) {
  const char* value = std::getenv(name);
  for (std::string_view rest = value != nullptr ? value : ""; !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    if (!folder.empty()) folders.emplace_back(folder);
  }
}

}  // namespace

std::vector<fs::path> recipe_folders() {
  std::vector<fs::path> folders;
  append_variable(folders, "TANDEM_RECIPE_PATH");
  std::error_code failed;
  const fs::path binary = fs::read_symlink("/proc/self/exe", failed);
  const fs::path installed = binary.parent_path().parent_path() / "share/tandem/recipes";
  for (const fs::path& folder : {installed, fs::path(TANDEM_SOURCE_RECIPES)})
    if (fs::is_directory(folder, failed)) folders.push_back(folder);
  return folders;
}

std::vector<fs::path> model_folders() {
  std::vector<fs::path> folders;
  append_variable(folders, "TANDEM_MODEL_DIR");
  for (const fs::path& folder : recipe_folders()) folders.push_back(folder / "models");
  return folders;
}

}  // namespace tandem::cli
