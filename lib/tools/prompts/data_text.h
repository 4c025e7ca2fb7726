#pragma once
#include <filesystem>

#include "recipe/sections.h"

namespace tandem::tools {

/// The text of section `data`: data.path, or the demo document where that is empty.
/// errors   kind input: the recipes are not installed
std::filesystem::path data_text(const recipe::Data& data);

}  // namespace tandem::tools
