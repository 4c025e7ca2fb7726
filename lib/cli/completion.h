#pragma once
#include <string>
#include <vector>

#include "cli/options.h"

namespace tandem::cli {

/// Shells that completion scripts are written for.
const std::vector<std::string>& shell_names();

/// A script that completes flags, recipe keys, values of both, and names of recipes and models.
std::string completion_script(const ToolInfo& info, const std::string& shell);

/// The manual page of a tool, in roff: its flags and its recipe keys.
std::string man_page(const ToolInfo& info);

}  // namespace tandem::cli
