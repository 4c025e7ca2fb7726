#include "recipe/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "io/quote.h"

namespace tandem::recipe {
namespace {

/// The item of a list at a number from 0, or null.
const Node* item_at(const Node& list, std::string_view number) {
  size_t i = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), i);
  const bool is_there =
      error == std::errc() && end == number.data() + number.size() && i < list.items.size();
  return is_there ? &list.items[i] : nullptr;
}

}  // namespace

std::string Origin::text() const {
  if (!name) return {};
  return line > 0 ? fmt::format("{}:{}:{}", *name, line, column) : *name;
}

const Node* Node::find(std::string_view key) const {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

Node* Node::find(std::string_view key) { return const_cast<Node*>(std::as_const(*this).find(key)); }

const Node* Node::find_path(std::string_view dotted) const {
  const Node* node = this;
  while (node != nullptr && !dotted.empty()) {
    const size_t dot = dotted.find('.');
    const std::string_view part = dotted.substr(0, dot);
    node = node->kind == Kind::list ? item_at(*node, part) : node->find(part);
    dotted = dot == std::string_view::npos ? std::string_view{} : dotted.substr(dot + 1);
  }
  return node;
}

std::string Node::described() const {
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::scalar:
      return (quoted ? "the string " : "") + io::quote(scalar);
    case Kind::list:
      return "a list";
    case Kind::map:
      return "a map";
  }
  return "?";
}

Node scalar_node(std::string text, Origin origin, bool quoted) {
  Node node;
  node.kind = Node::Kind::scalar;
  node.scalar = std::move(text);
  node.quoted = quoted;
  node.origin = std::move(origin);
  return node;
}

void merge(Node& base, Node over) {
  if (base.kind != Node::Kind::map || over.kind != Node::Kind::map) {
    base = std::move(over);
    return;
  }
  const Node *kind = over.find("kind"), *before = base.find("kind");
  if (kind != nullptr && (before == nullptr || kind->scalar != before->scalar))
    for (Node::Entry& entry : base.entries) entry.optional = true;
  for (Node::Entry& entry : over.entries) {
    const auto old = std::ranges::find(base.entries, entry.key, &Node::Entry::key);
    if (old == base.entries.end()) {
      base.entries.push_back(std::move(entry));
      continue;
    }
    old->optional = entry.optional;
    merge(old->value, std::move(entry.value));
  }
}

Node nest(std::string_view dotted_key, Node value) {
  const Origin origin = value.origin;
  while (true) {
    const size_t dot = dotted_key.rfind('.');
    Node map;
    map.kind = Node::Kind::map;
    map.origin = origin;
    const auto key = dot == std::string_view::npos ? dotted_key : dotted_key.substr(dot + 1);
    map.entries.push_back({std::string(key), origin, std::move(value)});
    if (dot == std::string_view::npos) return map;
    dotted_key = dotted_key.substr(0, dot);
    value = std::move(map);
  }
}

}  // namespace tandem::recipe
