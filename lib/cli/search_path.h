#pragma once
#include <filesystem>
#include <vector>

namespace tandem::cli {

/// Folders with recipes: those of TANDEM_RECIPE_PATH (colon-separated), the installed one, that of
/// the source tree.
std::vector<std::filesystem::path> recipe_folders();

/// Folders with models: those of TANDEM_MODEL_DIR, then `models` in each recipe folder.
std::vector<std::filesystem::path> model_folders();

}  // namespace tandem::cli
