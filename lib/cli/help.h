#pragma once
#include <string>

#include "cli/options.h"

namespace tandem::cli {

/// Appends words at `column`, breaking lines before `width`; the first line starts at `used`.
void append_wrapped(std::string& out, size_t width, size_t used, size_t column,
                    std::string_view text);

// Lines fit `columns`, but for a single word that does not.

/// The full help of a tool.
std::string help_text(const ToolInfo& info, size_t columns);

/// What a bare call prints: purpose, two examples, main flags, where to read on.
std::string short_help_text(const ToolInfo& info, size_t columns);

/// Two lines a recipe key, the second its meaning. With a section name only that section's keys.
/// errors   all three: kind usage: no such section
std::string recipe_help_text(const ToolInfo& info, std::string_view section, size_t columns);
/// One line a key, its cells separated by tabs.
std::string recipe_help_lines(const ToolInfo& info, std::string_view section);
/// An array of objects, one a key.
std::string recipe_help_json(const ToolInfo& info, std::string_view section);

/// One line; with `report` the environment for bug reports: build, CPU, instruction set, threads.
std::string version_text(const ToolInfo& info, bool report);

}  // namespace tandem::cli
