#pragma once
#include <string>

#include "cli/options.h"

namespace tandem::cli {

/// A line for each model that -m knows by name: the name, and the folder or that it is a shape.
std::string model_list();

/// A line for each installed recipe that a tool reads: the name, and its first sentence.
std::string recipe_list(const ToolInfo& info);

}  // namespace tandem::cli
