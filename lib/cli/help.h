#pragma once
#include <string>

#include "cli/options.h"

namespace tandem::cli {

/// The full help of a tool, at most 100 columns wide.
std::string help_text(const ToolInfo& info);

/// What a bare call prints: purpose, two examples, main flags, where to read on.
std::string short_help_text(const ToolInfo& info);

/// One line; with `report` the environment for bug reports: build, CPU, instruction set, threads.
std::string version_text(const ToolInfo& info, bool report);

}  // namespace tandem::cli
