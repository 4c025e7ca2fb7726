#include "recipe/upgrade.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "recipe/fields.h"

namespace tandem::recipe {
namespace {

constexpr std::string_view kSpeculationBench = "bench|draft-acceptance";
constexpr RenamedKey kRenamed[] = {
    {"spec.most_gamma", "spec.max_gamma"},
    {"spec.rounds", "spec.inner_steps", kSpeculationBench},
    {"spec.verify_within", "spec.inner_verify", kSpeculationBench},
    {"spec.draft.rounds", "spec.draft.inner_steps"},
    {"spec.draft.verify", "spec.draft.inner_verify"},
    {"spec.draft.sparse.weigh", "spec.draft.sparse.weighted"},
    {"bench.drafts.sparse.weigh", "bench.drafts.sparse.weighted"},
    {"bench.rounds", "bench.speculate", "draft-acceptance"},
    {"bench.predict", "bench.predict", "", "beside", "also"},
    {"bench.hardware.round", "bench.hardware.step"},
    {"bench.hardware.reduction", "bench.hardware.all_reduce"},
    {"eval.policies.sparse.weigh", "eval.policies.sparse.weighted"},
    {"eval.channels", "eval.neurons"},
    {"eval.own", "eval.custom"},
    {"eval.sets.own", "eval.sets.custom"},
    {"eval.sets.template", "eval.sets.template", "", "own", "custom"},
    {"eval.from", "eval.after"},
    {"eval.gap", "eval.max_difference"},
    {"data.own", "data.custom"},
    {"data.template", "data.template", "", "own", "custom"},
    {"train.keep", "train.keep_checkpoints"},
    {"output.dtype", "output.weights"},
};

/// Calls `take(map, entry, rest)` for every entry at a dotted key, and for keys below it that are
/// spelled with dots. `rest` is the part of the key that the entry spells.
void each_at(Node& node, std::string_view key,
             const std::function<void(Node&, Node::Entry&, std::string_view)>& take) {
  for (Node& item : node.items) each_at(item, key, take);
  for (Node::Entry& entry : node.entries) {
    if (entry.key == key || entry.key.starts_with(std::string(key) + "."))
      take(node, entry, key);
    else if (key.starts_with(entry.key + "."))
      each_at(entry.value, key.substr(entry.key.size() + 1), take);
  }
}

void rename_value(Node& value, const RenamedKey& row, std::vector<Renaming>& renamed) {
  for (Node& item : value.items) rename_value(item, row, renamed);
  if (value.kind != Node::Kind::scalar || value.scalar != row.value) return;
  value.scalar = row.present;
  const std::string key = std::string(row.old) + "=", old(row.value), now(row.present);
  renamed.push_back({key + old, key + now, value.origin, old, now});
}

void rename(Node& tree, const RenamedKey& row, std::vector<Renaming>& renamed) {
  each_at(tree, row.old, [&](Node& map, Node::Entry& entry, std::string_view rest) {
    if (!row.value.empty()) return rename_value(entry.value, row, renamed);
    const std::string below = entry.key.substr(rest.size()), word = entry.key;
    const std::string now = std::string(row.now.substr(row.old.size() - rest.size())) + below;
    if (map.find(now) != nullptr)
      throw recipe_error(entry.origin.text(), "{}{} is the older name of {}{}", row.old, below,
                         row.now, below)
          .hint("set only one of them");
    entry.key = now;
    renamed.push_back(
        {std::string(row.old) + below, std::string(row.now) + below, entry.origin, word, now});
  });
}

void add_units(const Field& section, Node& tree) {
  for (const Field& field : section.fields) {
    Node* node = tree.find(field.name);
    if (node == nullptr) continue;
    if (field.is_section()) {
      add_units(field, *node);
    } else if (const std::string type = field.value->type(); node->kind == Node::Kind::scalar) {
      if (type == "time") node->scalar += "s";
      if (type == "bytes") node->scalar += "B";
    }
  }
}

}  // namespace

std::span<const RenamedKey> renamed_keys() { return kRenamed; }

std::vector<Renaming> upgrade_keys(Node& tree, std::string_view kind) {
  std::vector<Renaming> renamed;
  for (const RenamedKey& row : kRenamed) {
    const std::string kinds = "|" + std::string(row.kinds) + "|";
    if (!row.kinds.empty() && kinds.find("|" + std::string(kind) + "|") == std::string::npos)
      continue;
    rename(tree, row, renamed);
    if (Node* sweep = tree.find("sweep")) rename(*sweep, row, renamed);
  }
  return renamed;
}

std::string rewrite_words(const std::string& text, std::span<const Renaming> renamed) {
  std::vector<Renaming> sorted(renamed.begin(), renamed.end());
  // From the end of a line on, so that columns before a change stay.
  std::ranges::sort(sorted, std::greater(), [](const Renaming& r) { return r.origin.column; });
  std::istringstream lines(text);
  std::string line, written;
  for (int number = 1; std::getline(lines, line); ++number) {
    for (const Renaming& r : sorted)
      if (r.origin.line == number && !r.word.empty())
        if (const size_t at = line.find(r.word, static_cast<size_t>(r.origin.column) - 1);
            at != std::string::npos)
          line.replace(at, r.word.size(), r.present);
    written += line + "\n";
  }
  return written;
}

Node node_of(const nlohmann::json& json, const Origin& origin) {
  Node node;
  node.origin = origin;
  if (json.is_object()) {
    node.kind = Node::Kind::map;
    for (const auto& [key, value] : json.items())
      node.entries.push_back({key, origin, node_of(value, origin)});
  } else if (json.is_array()) {
    node.kind = Node::Kind::list;
    for (const auto& item : json) node.items.push_back(node_of(item, origin));
  } else if (!json.is_null()) {
    // Words that stand for numbers (never, none) have no quotes.
    node = scalar_node(json.is_string() ? json.get<std::string>() : json.dump(), origin);
  }
  return node;
}

void read_recorded(Field& root, Node tree) {
  add_units(root, tree);
  read_fields(root, tree, {}, Completeness::partial);
}

}  // namespace tandem::recipe
