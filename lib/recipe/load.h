#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/upgrade.h"

namespace tandem::recipe {

/// Schema version of this build; older recipes are accepted, newer ones refused.
inline constexpr int kSchemaVersion = 2;

/// Rewrites the old keys of a layer, given what lies below it.
using Upgrade = std::function<std::vector<Renaming>(Node& over, const Node& base)>;

/// A recipe file with its `base:` chain merged below it. The keys kind, version and base are
/// checked and removed. A base is a path relative to its file, or a name in one of the folders.
/// errors   kind recipe: what parse_yaml_file reports; wrong kind or version; a base that is
///          missing, part of a cycle, or deeper than 8 files (naming the chain). A file of this
///          version has an old key
/// upgrade  rewrites the old keys of each file, given what lies below it
Node load_recipe(const std::filesystem::path& path, std::string_view kind,
                 const std::vector<std::filesystem::path>& folders = {},
                 const Upgrade& upgrade = {});

/// A recipe in one of the folders: its name, as "pig/tiny-16m", and its file.
struct NamedRecipe {
  std::string name;
  std::filesystem::path file;
};

/// All recipes of the folders, by name; of several with one name that of the first folder.
std::vector<NamedRecipe> named_recipes(const std::vector<std::filesystem::path>& folders);

/// The file that `name` means: a path as it is, else `name` or `name.yaml` in one of the folders.
/// errors   kind recipe: not found, with names that may be meant, and where it looked
std::filesystem::path find_recipe(const std::string& name,
                                  const std::vector<std::filesystem::path>& folders);

/// Merges one setting `KEY=VALUE` (value in YAML syntax); `label` such as "--set #2" is its origin.
/// errors   kind usage without '='; kind recipe for a value that is not YAML
void apply_setting(Node& tree, const std::string& setting, const std::string& label);

/// A value taken literally, as flags give it; `label` such as "--model" is its origin.
Node literal_node(std::string value, const std::string& label);

}  // namespace tandem::recipe
