#pragma once
#include <string>

#include "recipe/node.h"

namespace tandem::recipe {

/// A node on one line: "{key: value, list: [1, 2]}".
std::string flow_text(const Node& node);

/// The text of a recipe file whose changed sections are replaced, where the first of them stood.
/// Other lines and their comments stay.
/// before, after  the keys of the file as they are, and as they shall be
/// errors         kind recipe: several sections share a line
std::string rewrite_sections(const std::string& text, const Node& before, const Node& after);

/// The text with `version: N` of this build, in a line after the kind if it had none.
std::string with_version(const std::string& text);

}  // namespace tandem::recipe
