#pragma once
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/node.h"

namespace tandem::recipe {

struct Field;

/// A key of version 1 with the name that it has now, in the same section; or a value of a key.
struct RenamedKey {
  std::string_view old, now;                  // dotted, through items of lists
  std::string_view kinds = {};                // recipe kinds, as "bench|eval"; empty = all
  std::string_view value = {}, present = {};  // old and present value, if the key keeps its name
};
std::span<const RenamedKey> renamed_keys();

/// An old spelling that a recipe has.
struct Renaming {
  std::string old, now;
  Origin origin = {};
  std::string word = {}, present = {};  // text at the origin, old and new; empty = more changes

  std::string text() const { return old + " -> " + now; }
};

/// Renames what renamed_keys() lists in a recipe of a kind, or in settings, also in section
/// `sweep`.
/// errors   kind recipe: a section has an old key and its present one
std::vector<Renaming> upgrade_keys(Node& tree, std::string_view kind);

/// The text of a file in which renamings with a `word` are done.
std::string rewrite_words(const std::string& text, std::span<const Renaming> renamed);

/// A recipe, or a section of one, as records have it.
Node node_of(const nlohmann::json& json, const Origin& origin);

/// read_fields for such a recipe, whose keys are present ones: it may lack any, and its times and
/// sizes are plain numbers.
void read_recorded(Field& root, Node tree);

}  // namespace tandem::recipe
