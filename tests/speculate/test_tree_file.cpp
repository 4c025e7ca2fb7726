#include <doctest/doctest.h>

#include <sstream>

#include "error_text.h"
#include "speculate/tree/tree_drawing.h"
#include "speculate/tree/tree_file.h"
#include "temporary_folder.h"
#include "tree_testing.h"

using namespace tandem;
using namespace tandem::speculate;
using test::input_error_text;
using test::vector_of;
using Ints = std::vector<int>;

namespace {

const Ints kShape = {3, 2, 0, 1, 0, 1, 0, 0};

/// The map of kShape as the reference program and UMbreLLa keep it.
io::Json growmap() {
  const TokenTree t = tree_of_children(kShape, "");
  const auto bits = ancestor_bits(t);
  io::Json map = {{"size", 8}, {"depth", t.depth}};
  for (size_t l = 0; l + 1 < t.level_begin.size(); ++l) {
    io::Json roots = io::Json::array(), branches = io::Json::array();
    for (int v = t.level_begin[l]; v < t.level_begin[l + 1]; ++v) {
      roots.push_back(v);
      branches.push_back(t.n_children[static_cast<size_t>(v)]);
    }
    map["roots"].push_back(roots);
    map["branches"].push_back(branches);
  }
  for (size_t v = 0; v < 8; ++v) {
    io::Json successors = io::Json::array(), row = io::Json::array();
    for (int k = 0; k < t.n_children[v]; ++k) successors.push_back(t.first_child[v] + k);
    for (size_t j = 0; j < 8; ++j) row.push_back(static_cast<int>(bits[v] >> j & 1));
    map["Successors"].push_back(successors);
    map["mask"].push_back(row);
  }
  return map;
}

std::string error_of(const io::Json& json) {
  return input_error_text([&] { parse_tree(json.dump(), "t.json"); });
}

size_t count(const std::string& text, const std::string& word) {
  size_t n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

/// True if every element of an XML text is closed in order.
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.ends_with('/')) continue;
    if (!tag.starts_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    }
  }
  return open.empty();
}

}  // namespace

TEST_SUITE("speculate/tree file") {
  TEST_CASE("written and read") {
    TreeFile file;
    file.tree = tree_of_children(kShape, "");
    file.expected_tokens = 2.7321727756093846;
    file.algorithm = TreeAlgorithm::dp;
    file.vector_file = "accept.json";
    file.method = "sequoia";
    file.vector_sha256 = "ab";
    for (const bool priced : {false, true}) {
      if (priced)
        file.cost = RoundCost{
            .target_ms = 12, .draft_ms = {.5, .25}, .overhead_ms = .125, .ms_per_token = 4.7};
      const test::TemporaryFolder folder;
      const TreeFile back = read_tree(folder.write("t.json", tree_json(file)));
      CHECK(back.tree.n_children == kShape);
      CHECK(back.tree.parent == file.tree.parent);
      CHECK(back.expected_tokens == file.expected_tokens);
      CHECK(back.algorithm == TreeAlgorithm::dp);
      CHECK(back.vector_file == "accept.json");
      CHECK(back.method == "sequoia");
      CHECK(back.vector_sha256 == "ab");
      REQUIRE(back.cost.has_value() == priced);
      if (!priced) continue;
      CHECK(back.cost->target_ms == 12);
      CHECK(back.cost->draft_ms == std::vector<double>{.5, .25});
      CHECK(back.cost->overhead_ms == .125);
      CHECK(back.cost->ms_per_token == 4.7);
      CHECK(tree_json(back) == tree_json(file));
    }
    file.replay = {.file = "rounds.bin", .rule = "traversal", .sha256 = "cd"};
    const std::string text = tree_json(file);
    CHECK(text.find("\"vector\"") == std::string::npos);
    const TreeFile back = parse_tree(text, "t.json");
    REQUIRE(back.replay);
    CHECK(back.replay->rule == "traversal");
    CHECK(tree_json(back) == text);
  }

  TEST_CASE("the shape alone is a tree file; what contradicts it is refused") {
    const io::Json least = {{"format", "sequoia-tree/1"}, {"branch_counts", kShape}};
    CHECK(parse_tree(least.dump(), "t.json").tree.widths() == Ints{1, 3, 3, 1});
    CHECK(parse_tree(least.dump(), "t.json").algorithm == TreeAlgorithm::automatic);
    const auto with = [&](const char* key, const io::Json& value) {
      io::Json json = least;
      json[key] = value;
      return error_of(json);
    };
    CHECK(with("size", 9) == "t.json: size is 9, but the tree shape needs 8");
    CHECK(with("levels", 3) == "t.json: levels is 3, but the tree shape needs 4");
    CHECK(with("widths", Ints{1, 3, 4}) ==
          "t.json: widths has 3 entries, but the tree shape needs 4");
    CHECK(with("parents", Ints{-1, 0, 0, 0, 1, 1, 2, 5}) ==
          "t.json: parents[6] is 2, but the tree shape needs 3");
    CHECK(with("child_positions", Ints{0, 1, 2, 3, 1, 2, 1, 2}) ==
          "t.json: child_positions[7] is 2, but the tree shape needs 1");
    CHECK(with("algorithm", "magic") == "t.json: algorithm: expected greedy or dp, found 'magic'");
    CHECK(with("branch_counts", Ints{2, 0}) ==
          "t.json: node 0 has 2 children, but only 1 of 2 nodes are left");
    CHECK(with("format", "sequoia-tree/2") ==
          "t.json: expected format 'sequoia-tree/1', found 'sequoia-tree/2'");
    CHECK(error_of({{"size", 3}}).find("'format'") != std::string::npos);
    CHECK(error_of(io::Json::array()) ==
          "t.json: expected an object of format 'sequoia-tree/1', found an array of 0 items");
  }

  TEST_CASE("maps of UMbreLLa and of the reference") {
    const TreeFile file = parse_tree(growmap().dump(), "map.json");
    CHECK(file.tree.n_children == kShape);
    CHECK(file.method.empty());
    const auto with = [&](const char* key, const io::Json& value) {
      io::Json json = growmap();
      json[key] = value;
      return error_of(json);
    };
    CHECK(with("size", 7) == "t.json: size is 7, but the tree shape needs 8");
    CHECK(with("depth", Ints{0, 1, 1, 1, 2, 2, 2, 2}) ==
          "t.json: depth[7] is 2, but the tree shape needs 3");
    io::Json swapped = growmap();
    swapped["Successors"][0] = Ints{1, 3, 2};
    CHECK(error_of(swapped) == "t.json: Successors[0][1] is 3, but the tree shape needs 2");
    swapped = growmap();
    swapped["roots"][1] = Ints{1, 3, 2};
    CHECK(error_of(swapped) == "t.json: roots[1] names node 3, expected 2");
    swapped = growmap();
    swapped["mask"][5][4] = 1;
    CHECK(error_of(swapped) == "t.json: mask[5][4] is 1, but the tree shape needs 0");
    swapped = growmap();
    swapped["mask"].erase(7);
    CHECK(error_of(swapped) ==
          "t.json: Successors and mask have 8 and 7 rows, but there are 8 nodes");
  }

  TEST_CASE("a tree that UMbreLLa ships scores what its generator gave it") {
    // sequoia_tree-3x4: the best three nodes of each level under 0.65, 0.2, 0.1, 0.05.
    const AcceptanceVector v = vector_of({{.65, .2, .1, .05}});
    const TokenTree grid = tree_of_children(Ints{3, 2, 1, 0, 2, 1, 0, 2, 1, 0, 0, 0, 0}, "");
    CHECK(grid.widths() == Ints{1, 3, 3, 3, 3});
    CHECK(expected_tokens(grid, v) == doctest::Approx(3.36448).epsilon(2e-6));
    CHECK(*TreeTable(v, {13, 5, 5}).expected(13, 5) == doctest::Approx(3.40413).epsilon(2e-6));
    CHECK(*TreeTable(v, {13, 13, 13}).expected(13, 13) == doctest::Approx(3.45516).epsilon(2e-6));
  }

  TEST_CASE("drawings") {
    const AcceptanceVector v = vector_of({{.6, .2, .1}});
    const TokenTree small = tree_of_children(kShape, ""),
                    large = TreeTable(v, {200, 9, 9}).tree(200, 9);
    for (const TokenTree* tree : {&small, &large}) {
      const auto n = static_cast<size_t>(tree->size());
      const std::string svg = tree_svg(*tree, v), dot = tree_dot(*tree, v);
      CHECK(well_formed(svg));
      CHECK(svg.find("nan") == std::string::npos);
      CHECK(count(svg, "<circle ") == n);
      CHECK(count(svg, "<path ") == n - 1);
      CHECK(count(svg, "<text ") ==
            (n < 100 ? n + 1 : 1));  // a caption, and numbers where there is room
      CHECK(dot.starts_with("digraph tree {\n"));
      CHECK(dot.ends_with("}\n"));
      CHECK(count(dot, " -> ") == n - 1);
      CHECK(count(dot, "\n") == 2 * n + 3);
    }
    CHECK(tree_svg(small, v).find("<title>node 5, child 2, probability 0.12</title>") !=
          std::string::npos);
    CHECK(tree_dot(small, v).find("n1 -> n5 [label=\"2\"];") != std::string::npos);
    CHECK(well_formed(tree_svg(tree_of_children(Ints{0}, ""), v)));
  }
}
