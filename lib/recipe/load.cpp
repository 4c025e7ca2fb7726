#include "recipe/load.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "io/quote.h"
#include "recipe/problems.h"
#include "recipe/units.h"

namespace tandem::recipe {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxChain = 8;
constexpr int kMaxFiles = 256;  // lists of bases that name others multiply

/// The files that are being read, each the base of the one before it.
struct Chain {
  const std::vector<fs::path>& folders;  // of named recipes
  const Upgrade& upgrade;
  std::vector<fs::path> files = {};
  int n_read = 0;  // also those that are no longer among them
};

Origin setting_origin(const std::string& label) {
  return {std::make_shared<const std::string>(label), {}, 0, 0};
}

/// Removes a key from a map and returns its value, null if absent.
Node take(Node& map, std::string_view key) {
  const auto entry = std::ranges::find(map.entries, key, &Node::Entry::key);
  if (entry == map.entries.end()) return {};
  Node value = std::move(entry->value);
  map.entries.erase(entry);
  return value;
}

void check_kind(const Node& node, std::string_view kind) {
  if (node.kind == Node::Kind::null || (node.kind == Node::Kind::scalar && node.scalar == kind))
    return;
  throw recipe_error(node.origin.text(), "expected a recipe of kind '{}', found {}", kind,
                     node.described())
      .hint("give the recipe to the tool it was written for");
}

int64_t version_of(const Node& node) {
  if (node.kind == Node::Kind::null) return 1;
  int64_t version = 0;
  const bool plain = node.kind == Node::Kind::scalar && !node.quoted;
  if (!plain || !parse_units(node.scalar, version).empty() || version < 1)
    throw recipe_error(node.origin.text(), "version: expected an integer of at least 1, found {}",
                       node.described());
  if (version > kSchemaVersion)
    throw recipe_error(node.origin.text(),
                       "recipe version {} is newer than this build, which reads up to {}", version,
                       kSchemaVersion)
        .hint("update tandem");
  return version;
}

/// errors   an old key in a file that says that it has none
void refuse(const std::vector<Renaming>& renamed) {
  std::vector<Error> problems;
  for (const Renaming& r : renamed)
    problems.push_back(
        recipe_error(r.origin.text(), "expected keys of recipe version {}, found {}",
                     kSchemaVersion, io::quote(r.old))
            .hint(fmt::format("write {}, or remove version and run --upgrade-recipe FILE", r.now)));
  if (!problems.empty()) throw InvalidRecipe(std::move(problems));
}

std::string chain_text(const Chain& chain, const fs::path& last) {
  std::string text;
  for (const fs::path& file : chain.files) text += file.string() + " -> ";
  return text + last.string();
}

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code failed;
  return fs::equivalent(a, b, failed) && !failed;
}

/// Devices and pipes (`-r <(...)`) count as files; folders do not.
bool is_usable(const fs::path& path) {
  std::error_code failed;
  return fs::exists(path, failed) && !fs::is_directory(path, failed);
}

/// The recipe of that name in the first folder that has one, else nothing.
fs::path find_named(const std::string& name, const std::vector<fs::path>& folders) {
  if (fs::path(name).is_absolute()) return {};
  for (const fs::path& folder : folders)
    for (const fs::path& candidate : {folder / name, folder / (name + ".yaml")})
      if (is_usable(candidate)) return candidate;
  return {};
}

Node load_chain(const fs::path& path, std::string_view kind, Chain& chain);

/// One base of the last file in the chain.
Node load_base(const Node& base, std::string_view kind, Chain& chain) {
  const std::string where = base.origin.text();
  if (base.kind != Node::Kind::scalar)
    throw recipe_error(where, "base: expected a path or a list of paths, found {}",
                       base.described());
  fs::path path = (base.origin.folder / base.scalar).lexically_normal();
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) {
    const fs::path named = find_named(base.scalar, chain.folders);
    if (named.empty())
      throw recipe_error(where, "base '{}' not found (chain: {})", base.scalar,
                         chain_text(chain, path))
          .hint("give a path relative to the file that names it, or a recipe's name as for -r");
    path = named;
  }
  for (const fs::path& file : chain.files)
    if (same_file(file, path))
      throw recipe_error(where, "base: the files form a cycle (chain: {})",
                         chain_text(chain, path));
  if (chain.files.size() == kMaxChain)
    throw recipe_error(where, "base: the chain has more than {} files (chain: {})", kMaxChain,
                       chain_text(chain, path));
  if (chain.n_read == kMaxFiles)
    throw recipe_error(where, "base: one recipe reads more than {} files (chain: {})", kMaxFiles,
                       chain_text(chain, path))
        .hint("a base is read again each time a recipe names it: name each once");
  return load_chain(path, kind, chain);
}

Node load_chain(const fs::path& path, std::string_view kind, Chain& chain) {
  ++chain.n_read;
  Node file = parse_yaml_file(path);
  if (file.kind == Node::Kind::null) file.kind = Node::Kind::map;
  if (file.kind != Node::Kind::map)
    throw recipe_error(file.origin.text(), "expected a map of sections, found {}",
                       file.described());
  check_kind(take(file, "kind"), kind);
  const int64_t version = version_of(take(file, "version"));
  const Node base = take(file, "base");

  chain.files.push_back(path);
  Node tree;
  tree.kind = Node::Kind::map;
  tree.origin = file.origin;
  if (base.kind == Node::Kind::list)
    for (const Node& item : base.items) merge(tree, load_base(item, kind, chain));
  else if (base.kind != Node::Kind::null)
    merge(tree, load_base(base, kind, chain));
  chain.files.pop_back();
  const auto renamed = chain.upgrade ? chain.upgrade(file, tree) : std::vector<Renaming>();
  if (version == kSchemaVersion) refuse(renamed);
  merge(tree, std::move(file));
  return tree;
}

}  // namespace

Node load_recipe(const fs::path& path, std::string_view kind, const std::vector<fs::path>& folders,
                 const Upgrade& upgrade) {
  Chain chain{folders, upgrade};
  return load_chain(path, kind, chain);
}

std::vector<NamedRecipe> named_recipes(const std::vector<fs::path>& folders) {
  constexpr int kDeepest = 3;
  std::map<std::string, fs::path> files;
  std::error_code failed;
  for (const fs::path& folder : folders) {
    fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied,
                                           failed);
    for (; entry != fs::recursive_directory_iterator(); entry.increment(failed)) {
      if (entry.depth() >= kDeepest) entry.disable_recursion_pending();
      if (entry->path().extension() == ".yaml" && is_usable(entry->path()))
        files.emplace(entry->path().lexically_relative(folder).replace_extension().string(),
                      entry->path());
    }
  }
  std::vector<NamedRecipe> recipes;
  for (auto& [name, file] : files) recipes.push_back({name, std::move(file)});
  return recipes;
}

fs::path find_recipe(const std::string& name, const std::vector<fs::path>& folders) {
  if (name == "-" || is_usable(name)) return name;
  if (is_usable(name + ".yaml")) return name + ".yaml";
  if (fs::path found = find_named(name, folders); !found.empty()) return found;
  std::string looked = "looked in the working directory";
  for (const fs::path& folder : folders) looked += ", " + folder.string();
  std::vector<std::string> names, meant;
  for (const NamedRecipe& recipe : named_recipes(folders)) {
    names.push_back(recipe.name);
    if (recipe.name.ends_with("/" + name)) meant.push_back(recipe.name);
  }
  const std::string near = meant.empty()
                               ? did_you_mean(name, {names.begin(), names.end()})
                               : fmt::format("did you mean '{}'?", fmt::join(meant, "' or '"));
  throw recipe_error("--recipe", "recipe '{}' not found", name)
      .hint(near.empty() ? looked : near + "  " + looked);
}

void apply_setting(Node& tree, const std::string& setting, const std::string& label) {
  const size_t equals = setting.find('=');
  if (equals == 0 || equals == std::string::npos)
    throw usage_error(label, "expected KEY=VALUE, found '{}'", setting)
        .hint("for example --set run.seed=1");
  Node value = parse_yaml(setting.substr(equals + 1), setting_origin(label));
  merge(tree, nest(setting.substr(0, equals), std::move(value)));
}

Node literal_node(std::string value, const std::string& label) {
  return scalar_node(std::move(value), setting_origin(label));
}

}  // namespace tandem::recipe
