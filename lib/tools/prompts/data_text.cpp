#include "tools/prompts/data_text.h"

#include "base/error.h"
#include "cli/search_path.h"

namespace tandem::tools {

std::filesystem::path data_text(const recipe::Data& data) {
  if (!data.path.empty()) return data.path;
  for (const auto& folder : cli::recipe_folders())
    if (const auto path = folder / "demo/lighthouse-logbook.txt"; std::filesystem::exists(path))
      return path;
  throw input_error("data.path", "the built-in text is not installed")
      .hint("name a text with -s data.path=FILE");
}

}  // namespace tandem::tools
