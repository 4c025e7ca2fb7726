#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::recipe {

/// Where a value was written: a file with line and column, or a command-line setting.
struct Origin {
  std::shared_ptr<const std::string> name;  // a path, or such as "--set #2"
  std::filesystem::path folder;             // relative paths of the value start here
  int line = 0, column = 0;                 // 1-based; 0 = `name` has no lines

  std::string text() const;
};

/// One YAML value that knows where it was written, also after merging.
struct Node {
  enum class Kind : uint8_t { null, scalar, list, map };
  struct Entry;

  Kind kind = Kind::null;
  bool quoted = false;  // scalar in quotes: always a string
  std::string scalar;
  std::vector<Node> items;     // list
  std::vector<Entry> entries;  // map, in the order written
  Origin origin;

  const Node* find(std::string_view key) const;
  Node* find(std::string_view key);
  /// The value at a dotted path, or null.
  const Node* find_path(std::string_view dotted) const;
  /// What it is, for messages: "'text'", "a list", "a map", "null".
  std::string described() const;
};

struct Node::Entry {
  std::string key;
  Origin origin;
  Node value;
  bool optional = false;  // left out where the section's kind has no such key
};

Node scalar_node(std::string text, Origin origin, bool quoted = false);

/// Parses one YAML document, the plain subset that recipes use. Nodes get lines and columns if the
/// origin has a line.
/// errors   kind recipe with position: syntax, invalid UTF-8, duplicate key, key that is not a
///          plain scalar, tag, anchor, alias, several documents, nesting deeper than 32
Node parse_yaml(const std::string& text, const Origin& origin);

/// Reads and parses a file ("-": standard input) of at most 1 MiB.
/// errors   kind recipe: missing, unreadable, too large, and those of parse_yaml
Node parse_yaml_file(const std::filesystem::path& path);

/// Lays `over` onto `base`: maps merge by key, everything else replaces. A map whose
/// key `kind` is changed by `over` keeps its other keys as optional ones.
void merge(Node& base, Node over);

/// {a: {b: value}} for the dotted key "a.b".
Node nest(std::string_view dotted_key, Node value);

}  // namespace tandem::recipe
