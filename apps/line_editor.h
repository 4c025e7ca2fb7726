#pragma once
#include <memory>
#include <string>

#include "cli/line_reader.h"

/// Reads lines that can be edited and recalled, by libedit; prompts go to standard error.
/// tool     whose settings in ~/.editrc are used
std::unique_ptr<tandem::cli::LineReader> line_editor(const std::string& tool);
