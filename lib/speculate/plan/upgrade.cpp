#include "speculate/plan/upgrade.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"

namespace tandem::speculate {
namespace {

using recipe::Node;

struct Renamed {
  std::string_view old, now;
  bool ignored;  // by kinds without such a key
};
constexpr Renamed kRenamed[] = {
    {"draft.path", "spec.draft.path", false},
    {"draft.weights", "spec.draft.weights", false},
    {"draft.cache", "spec.draft.cache", true},
    {"draft.sparse", "spec.draft.sparse", false},
    {"draft2.path", "spec.draft.inner.path", false},
    {"draft2.cache", "spec.draft.inner.cache", true},
    {"spec.within", "spec.draft.inner.kind", false},
    {"spec.gamma1", "spec.draft.gamma1", true},
    {"spec.gamma2", "spec.draft.gamma2", true},
    {"spec.rounds", "spec.draft.inner_steps", true},
    {"spec.alpha1", "spec.draft.alpha1", true},
    {"spec.alpha2", "spec.draft.alpha2", true},
    {"spec.verify_within", "spec.draft.inner_verify", true},
    {"spec.ngram", "spec.draft.longest", true},
    {"spec.gamma", "spec.shape.gamma", true},
    {"spec.width", "spec.shape.width", false},
    {"tree.path", "spec.shape.path", false},
    {"tree.accept", "spec.shape.accept", true},
    {"tree.replay", "spec.shape.replay", true},
    {"tree.timing", "spec.shape.timing", true},
    {"tree.max_nodes", "spec.shape.max_nodes", true},
    {"tree.max_levels", "spec.shape.max_levels", true},
};

/// Removes a value of a section and returns it; a section that is then empty goes, too.
std::optional<Node> take(Node& tree, std::string_view key) {
  const size_t dot = key.find('.');
  const auto section = std::ranges::find(tree.entries, key.substr(0, dot), &Node::Entry::key);
  if (section == tree.entries.end()) return {};
  std::vector<Node::Entry>& entries = section->value.entries;
  const auto entry = std::ranges::find(entries, key.substr(dot + 1), &Node::Entry::key);
  if (entry == entries.end()) return {};
  Node value = std::move(entry->value);
  entries.erase(entry);
  if (entries.empty()) tree.entries.erase(section);
  for (Node::Entry& inner : value.entries)
    if (inner.key == "weigh") inner.key = "weighted";
  return value;
}

void put(Node& tree, std::string_view key, Node value, bool optional = false) {
  Node nested = nest(key, std::move(value));
  Node* map = &nested;
  while (map->entries.front().key != key.substr(key.rfind('.') + 1))
    map = &map->entries.front().value;
  map->entries.front().optional = optional;
  merge(tree, std::move(nested));
}

/// errors   kind recipe: a recipe has a key under both names
void refuse_both(const Node& tree, std::string_view old, std::string_view now, const Node& value) {
  if (tree.find_path(now) != nullptr)
    throw recipe_error(value.origin.text(), "{} is the older name of {}", old, now)
        .hint("set only one of them");
}

/// `section: word` becomes `section: {kind: word}`.
void spell_out(Node& tree, std::string_view section) {
  Node* spec = tree.find("spec");
  Node* value = spec != nullptr ? spec->find(section) : nullptr;
  if (value == nullptr || value->kind != Node::Kind::scalar) return;
  Node word = std::move(*value);
  *value = recipe::nest("kind", std::move(word));
}

std::string kind_of(const Node& over, const Node& base, const std::string& section) {
  for (const Node* tree : {&over, &base})
    if (const Node* kind = tree->find_path(section + ".kind")) return kind->scalar;
  return {};
}

/// The shape that the path of a tree stood for.
std::string_view shape_of(const Node& path) {
  if (path.kind == Node::Kind::null || path.scalar.empty()) return "chain";
  return path.scalar == "auto" && !path.quoted ? "auto" : "tree";
}

/// Removes a value of a map and returns it, unless it is absent or null.
std::optional<Node> take_own(Node& map, std::string_view key) {
  const auto entry = std::ranges::find(map.entries, key, &Node::Entry::key);
  if (entry == map.entries.end()) return {};
  Node value = std::move(entry->value);
  map.entries.erase(entry);
  return value.kind == Node::Kind::null ? std::nullopt : std::optional(std::move(value));
}

/// Rewrites an item of bench.drafts that names its policy by `keys`, or not at all.
void upgrade_draft(Node& item, std::vector<recipe::Renaming>& renamed) {
  const Node* kind_node = item.find("kind");
  const std::string kind = kind_node != nullptr ? kind_node->scalar : "self";
  const bool has_policy = kind == "self" || kind == "model";
  constexpr std::pair<std::string_view, std::string_view> kOld[] = {
      {"keys", "cache.kind"},          {"sinks", "cache.sinks"},
      {"window", "cache.recent"},      {"refresh", "cache.snapkv.refresh"},
      {"scale", "cache.snapkv.scale"}, {"page", "cache.retrieval.chunk"}};
  const Node *cache = item.find("cache"), *weights = item.find("weights");
  const bool has_cache = cache != nullptr && cache->kind != Node::Kind::null;
  const auto rename = [&](std::string old, std::string now) {
    renamed.push_back({std::move(old), std::move(now), item.origin});
  };
  const size_t before = renamed.size();
  for (const auto& [old, now] : kOld)
    if (item.find(old) != nullptr)
      rename("bench.drafts." + std::string(old), "bench.drafts." + std::string(now));
  const size_t n_old = renamed.size() - before;
  // A record of version 1 has all keys: those of the policy did not count next to a cache.
  if (has_cache && n_old > 0 && n_old < std::size(kOld))
    throw recipe_error(item.origin.text(), "{} is the older name of {}, and cache is set, too",
                       renamed.back().old, renamed.back().now)
        .hint("set only one of them");
  const bool is_copy = kind == "self" && weights != nullptr;
  const bool lacks_policy = has_policy && !has_cache && n_old == 0 && !is_copy;
  if (lacks_policy) {
    const Node *name = item.find("name"), *budget = item.find("budget");
    rename(fmt::format("draft '{}' without cache", name != nullptr ? name->scalar : ""),
           fmt::format("cache: {{kind: streaming}}, budget: {}",
                       budget != nullptr ? budget->scalar : "512"));
  }
  const auto longest = take_own(item, "ngram");
  if (longest) rename("bench.drafts.ngram", "bench.drafts.longest");
  if (renamed.size() == before) return;
  for (Node::Entry& entry : item.entries)
    entry.optional = entry.key != "name" && entry.key != "kind";
  if (longest) put(item, "longest", *longest, true);
  const auto keys = take_own(item, "keys"), sinks = take_own(item, "sinks"),
             window = take_own(item, "window"), refresh = take_own(item, "refresh"),
             scale = take_own(item, "scale"), page = take_own(item, "page");
  if (n_old == 0 && !lacks_policy) return;
  const auto budget = take_own(item, "budget");
  if (!has_policy || has_cache) return;
  const std::string policy = keys ? keys->scalar : "streaming";
  const auto set = [&](const std::string& key, const std::optional<Node>& value,
                       const char* otherwise = nullptr) {
    if (value)
      put(item, key, *value);
    else if (otherwise != nullptr)
      put(item, key, recipe::parse_yaml(otherwise, item.origin));
  };
  set("cache.kind", keys, "streaming");
  if (policy == "full") return;
  set("budget", budget, "512");
  set("cache.sinks", sinks);
  const bool refreshes = refresh && refresh->scalar != "0";
  if (policy == "quest" || policy == "topk") {
    set("cache.recent", window, "32");
    set("cache.dense_layers", {}, "[]");
  } else if (policy == "snapkv" || policy == "verified") {
    set("cache." + policy + ".window", window);
  }
  if (policy == "quest") set("cache.quest.page", page);
  if (policy == "snapkv") set("cache.snapkv.scale", scale);
  if (policy == "snapkv" && refreshes) set("cache.snapkv.refresh", refresh);
  if (policy == "retrieval") set("cache.retrieval.chunk", page, "16");
  if (policy == "retrieval" && refreshes) set("cache.retrieval.rebuild", refresh);
}

}  // namespace

std::vector<recipe::Renaming> upgrade_drafts(Node& over, const Node& /*base*/) {
  std::vector<recipe::Renaming> renamed;
  Node* bench = over.find("bench");
  Node* drafts = bench != nullptr ? bench->find("drafts") : nullptr;
  if (drafts == nullptr) return renamed;
  for (Node& item : drafts->items)
    if (item.kind == Node::Kind::map) upgrade_draft(item, renamed);
  return renamed;
}

std::vector<recipe::Renaming> upgrade_pair(Node& over, const Node& base) {
  std::vector<recipe::Renaming> renamed = upgrade_drafts(over, base);
  spell_out(over, "draft");
  for (const Renamed& row : kRenamed)
    if (row.old.starts_with("draft."))
      if (std::optional<Node> value = take(over, row.old)) {
        const Node* sparse = value->find("kind");
        refuse_both(over, row.old, row.now, *value);
        renamed.push_back({std::string(row.old), std::string(row.now), value->origin});
        put(over, row.now, std::move(*value),
            row.old == "draft.sparse" && (sparse == nullptr || sparse->scalar == "none"));
      }
  return renamed;
}

std::vector<recipe::Renaming> upgrade_spec(Node& over, const Node& base) {
  std::vector<recipe::Renaming> renamed;
  const bool names_tree = over.find_path("tree.path") != nullptr;
  spell_out(over, "draft");
  spell_out(over, "shape");
  for (const Renamed& row : kRenamed) {
    std::optional<Node> value = take(over, row.old);
    if (!value) continue;
    std::string_view now = row.now;
    const recipe::Origin origin = value->origin;
    const auto set_kind = [&](const char* section, std::string_view kind) {
      put(over, std::string(section) + ".kind", recipe::scalar_node(std::string(kind), origin));
    };
    const std::string draft = kind_of(over, base, "spec.draft");
    if (row.old == "draft.path" && (draft.empty() || draft == "model"))
      set_kind("spec.draft", "model");
    if (row.old == "spec.ngram" && draft == "nested") now = "spec.draft.inner.longest";
    bool moves = true;
    if (row.old == "tree.path") {
      const std::string_view shape = shape_of(*value);
      set_kind("spec.shape", shape);
      moves = shape == "tree";
    } else if (row.old == "spec.width") {
      moves = value->scalar != "1";
      const std::string shape = kind_of(over, base, "spec.shape");
      if (moves || shape == "beams" || shape == "chain")
        set_kind("spec.shape", moves ? "beams" : "chain");
    }
    renamed.push_back({std::string(row.old), std::string(moves ? now : "spec.shape.kind"), origin});
    // An empty path names nothing, for any kind.
    const bool is_empty = value->scalar.empty() && value->items.empty() && value->entries.empty();
    if (!moves) continue;
    refuse_both(over, row.old, now, *value);
    put(over, now, std::move(*value), row.ignored || is_empty);
  }
  // Prompt lookup proposes chains: a tree that was named for other drafts is of no use to it.
  const Node* kind = over.find_path("spec.draft.kind");
  if (kind != nullptr && kind->scalar == "ngram" &&
      (names_tree || over.find_path("spec.shape.kind") == nullptr))
    put(over, "spec.shape.kind", recipe::scalar_node("chain", kind->origin));
  return renamed;
}

}  // namespace tandem::speculate
