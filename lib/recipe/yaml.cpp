// YAML text to located nodes, through yaml-cpp's event interface: its node graph would hide
// duplicate keys, tags and aliases.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "io/quote.h"
#include "io/text_file.h"
#include "recipe/node.h"

namespace tandem::recipe {
namespace {

constexpr size_t kMaxDepth = 32;   // recipes need 4; bounds every later recursion
constexpr size_t kMaxKeys = 1024;  // a map; bounds the search for duplicates
constexpr size_t kMaxBytes = size_t{1} << 20;

/// A place within the source; sources without lines (command-line settings) are one place.
Origin located(Origin origin, int line, int column) {
  if (origin.line > 0) origin.line = line, origin.column = column;
  return origin;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(Origin origin) : origin_(std::move(origin)) { root_.origin = origin_; }

  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(Node::Kind::null, mark, "", anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw recipe_error(at(mark).text(), "aliases are not supported")
        .hint("write the value out, or use base: to share settings");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // yaml-cpp gives plain scalars the tag "?", quoted and block scalars "!".
    if (tag == "!" && expecting_key() && add_key(mark, anchor, value)) return;
    if (tag == "!") {
      Node& node = add(Node::Kind::scalar, mark, "", anchor);
      node.scalar = value;
      node.quoted = true;
      return;
    }
    reject_tag(mark, tag);
    if (expecting_key() && add_key(mark, anchor, value)) return;
    add(Node::Kind::scalar, mark, tag, anchor).scalar = value;
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(add(Node::Kind::list, mark, tag, anchor));
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(add(Node::Kind::map, mark, tag, anchor));
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  Origin at(const YAML::Mark& mark) const {
    return located(origin_, mark.line + 1, mark.column + 1);
  }

  bool expecting_key() const {
    return !open_.empty() && open_.back()->kind == Node::Kind::map && !key_pending_;
  }

  bool add_key(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& key) {
    reject_anchor(mark, anchor);
    for (const Node::Entry& entry : open_.back()->entries)
      if (entry.key == key)
        throw recipe_error(at(mark).text(), "duplicate key {}", io::quote(key))
            .hint("first set at " + entry.origin.text());
    if (open_.back()->entries.size() == kMaxKeys)
      throw recipe_error(at(mark).text(), "a map has more than {} keys", kMaxKeys);
    open_.back()->entries.push_back({key, at(mark), {}});
    key_pending_ = true;
    return true;
  }

  Node& add(Node::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    reject_tag(mark, tag);
    reject_anchor(mark, anchor);
    if (expecting_key())
      throw recipe_error(at(mark).text(), "expected a plain word as a key")
          .hint("is a bracket, brace or quote left open?");
    Node* node = &root_;
    if (!open_.empty() && open_.back()->kind == Node::Kind::map) {
      node = &open_.back()->entries.back().value;
      key_pending_ = false;
    } else if (!open_.empty()) {
      node = &open_.back()->items.emplace_back();
    }
    node->kind = kind;
    node->origin = at(mark);
    return *node;
  }

  /// Pointers in open_ stay valid: a parent's vector only grows after its last child was closed.
  void open(Node& node) {
    if (open_.size() == kMaxDepth)
      throw recipe_error(node.origin.text(), "nested deeper than {} levels", kMaxDepth);
    open_.push_back(&node);
  }

  void reject_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!")
      throw recipe_error(at(mark).text(), "tags such as {} are not supported", io::quote(tag))
          .hint("remove the tag; types come from the key");
  }
  void reject_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor)
      throw recipe_error(at(mark).text(), "anchors are not supported")
          .hint("write the value out, or use base: to share settings");
  }

  Origin origin_;
  Node root_;
  std::vector<Node*> open_;
  bool key_pending_ = false;
};

/// yaml-cpp replaces malformed bytes silently; a recipe with them is refused instead.
void require_utf8(const std::string& text, const Origin& origin) {
  int line = 1, column = 1;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t n = io::utf8_length(rest);
    if (n == 0 || rest[0] == '\0')
      throw recipe_error(located(origin, line, column).text(), "byte 0x{:02x} is not UTF-8 text",
                         static_cast<unsigned char>(rest[0]))
          .hint("save the file as UTF-8 text");
    rest[0] == '\n' ? (++line, column = 1) : ++column;
    rest.remove_prefix(n);
  }
}

/// A tab in the indentation of one of the first lines is what the parser could not read.
void refuse_tab(const std::string& text, int n_lines, const Origin& origin) {
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; number <= n_lines && std::getline(lines, line); ++number) {
    const size_t tab = line.find_first_not_of(' ');
    if (tab != std::string::npos && line[tab] == '\t')
      throw recipe_error(located(origin, number, static_cast<int>(tab) + 1).text(),
                         "not valid YAML: a tab in the indentation")
          .hint("indent with spaces");
  }
}

}  // namespace

Node parse_yaml(const std::string& text, const Origin& origin) {
  require_utf8(text, origin);
  TreeBuilder builder(origin);
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    parser.HandleNextDocument(builder);
    if (parser) {
      // What follows is a second document, or only its empty shell ("...").
      TreeBuilder second(origin);
      if (parser.HandleNextDocument(second))
        throw recipe_error(second.take().origin.text(), "expected one YAML document, found several")
            .hint("keep one document, or combine files with base: or several -r");
    }
  } catch (const YAML::ParserException& e) {
    refuse_tab(text, e.mark.is_null() ? 0 : e.mark.line + 1, origin);
    const Origin where =
        e.mark.is_null() ? origin : located(origin, e.mark.line + 1, e.mark.column + 1);
    // The library's message may repeat a piece of the input: only the part left inside quotes is
    // safe.
    const bool plain =
        std::all_of(e.msg.begin(), e.msg.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
    throw recipe_error(where.text(), "not valid YAML: {}", plain ? e.msg : io::quote(e.msg));
  }
  return builder.take();
}

Node parse_yaml_file(const std::filesystem::path& path) {
  Origin origin{std::make_shared<const std::string>(path == "-" ? "<stdin>" : path.string()),
                path == "-" ? std::filesystem::path{} : path.parent_path(), 1, 1};
  std::string text;
  try {
    text = io::read_text_file(path, kMaxBytes);
  } catch (const Error& e) {
    throw Error(ErrorKind::recipe, *origin.name, e.message()).hint(e.hint_text());
  }
  return parse_yaml(text, origin);
}

}  // namespace tandem::recipe
