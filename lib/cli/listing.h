#pragma once
#include <string>

#include "cli/options.h"

namespace tandem::cli {

/// A line for each model that -m knows by name: the name, and the folder or that it is a shape.
std::string model_list();

/// A line for each installed recipe that a tool reads: the name, and its first sentence.
std::string recipe_list(const ToolInfo& info);

/// --upgrade-recipe: the text of a recipe with the present names of its keys.
/// errors   kind recipe: no such recipe; one whose sections share lines
std::string upgraded_recipe(const ToolInfo& info, const std::string& name);

}  // namespace tandem::cli
