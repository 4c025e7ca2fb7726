#include "speculate/tree/tree_file.h"

#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "recipe/scalar.h"

namespace tandem::speculate {
namespace {

constexpr const char* kTreeFormat = "sequoia-tree/1";
constexpr size_t kMostTreeBytes = size_t{64} << 20;  // a mask of 4096 nodes in plain JSON
// Far beyond trees that pay: checking the mask of a map of that size takes 32 MiB.
constexpr int kMostNodes = 1 << 14;

std::vector<int> ints_of(const io::Json& list, const std::string& name, const std::string& where) {
  if (!list.is_array())
    throw input_error(where, "{}: expected an array of integers, found {}", name,
                      io::describe(list));
  std::vector<int> numbers;
  for (const io::Json& item : list)
    numbers.push_back(static_cast<int>(
        io::as_int(item, fmt::format("{}[{}]", name, numbers.size()), where, -1, kMostNodes)));
  return numbers;
}

TokenTree tree_of(const std::vector<int>& n_children, const std::string& where) {
  if (n_children.size() > kMostNodes)
    throw input_error(where, "has {} nodes, expected at most {}", n_children.size(), kMostNodes);
  return tree_of_children(n_children, where);
}

/// A member that repeats what the shape says.
void check_same(const std::vector<int>& found, const std::vector<int>& expected,
                const std::string& name, const std::string& where) {
  if (found.size() != expected.size())
    throw input_error(where, "{} has {} entries, but the tree shape needs {}", name, found.size(),
                      expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i] != expected[i])
      throw input_error(where, "{}[{}] is {}, but the tree shape needs {}", name, i, found[i],
                        expected[i])
          .hint("number the nodes level by level, with the children of a node together");
}

void check_same(std::optional<int64_t> found, int expected, const std::string& name,
                const std::string& where) {
  if (found && *found != expected)
    throw input_error(where, "{} is {}, but the tree shape needs {}", name, *found, expected);
}

std::vector<int> child_positions(const TokenTree& tree) {
  std::vector<int> list = tree.child_index;
  for (size_t v = 1; v < list.size(); ++v) ++list[v];
  return list;
}

TreeAlgorithm algorithm_named(const std::string& name, const std::string& where) {
  for (const auto algorithm : {TreeAlgorithm::greedy, TreeAlgorithm::dp})
    if (name == recipe::yaml_text(algorithm)) return algorithm;
  throw input_error(where, "algorithm: expected greedy or dp, found {}", io::quote(name));
}

RoundCost cost_of(const io::Json& json, const std::string& where) {
  RoundCost cost;
  cost.target_ms = io::get_double(json, "t_ms", where);
  cost.overhead_ms = io::get_double(json, "overhead_ms", where);
  cost.ms_per_token = io::get_double(json, "x_ms_per_token", where);
  for (const io::Json& item : io::get_array(json, "draft_ms_per_level", where)) {
    if (!item.is_number())
      throw input_error(where, "draft_ms_per_level: expected numbers, found {}",
                        io::describe(item));
    cost.draft_ms.push_back(item.get<double>());
  }
  return cost;
}

TreeFile from_ours(const io::Json& json, const std::string& where) {
  TreeFile file;
  file.tree =
      tree_of(ints_of(io::get_array(json, "branch_counts", where), "branch_counts", where), where);
  const TokenTree& tree = file.tree;
  check_same(io::find_int(json, "size", where), tree.size(), "size", where);
  check_same(io::find_int(json, "levels", where), tree.levels(), "levels", where);
  const auto check_list = [&](const char* key, const std::vector<int>& expected) {
    if (const io::Json* list = io::find_array(json, key, where))
      check_same(ints_of(*list, key, where), expected, key, where);
  };
  check_list("widths", tree.widths());
  check_list("parents", tree.parent);
  check_list("child_positions", child_positions(tree));
  file.expected_tokens = io::find_double(json, "expected_tokens", where).value_or(0);
  if (const auto name = io::find_string(json, "algorithm", where))
    file.algorithm = algorithm_named(*name, where);
  if (const io::Json* vector = io::find_object(json, "vector", where)) {
    file.vector_file = io::find_string(*vector, "file", where).value_or("");
    file.method = io::find_string(*vector, "method", where).value_or("");
    file.vector_sha256 = io::find_string(*vector, "sha256", where).value_or("");
  }
  if (const io::Json* replay = io::find_object(json, "replay", where))
    file.replay = {.file = io::find_string(*replay, "file", where).value_or(""),
                   .rule = io::find_string(*replay, "rule", where).value_or(""),
                   .sha256 = io::find_string(*replay, "sha256", where).value_or("")};
  if (const io::Json* cost = io::find_object(json, "cost", where))
    file.cost = cost_of(*cost, where);
  return file;
}

/// The maps of the reference program: everything follows from `branches`, one list a level.
TreeFile from_growmap(const io::Json& json, const std::string& where) {
  std::vector<int> n_children, roots;
  for (const io::Json& level : io::get_array(json, "branches", where)) {
    const auto counts =
        ints_of(level, fmt::format("branches at node {}", n_children.size()), where);
    n_children.insert(n_children.end(), counts.begin(), counts.end());
  }
  TreeFile file;
  const TokenTree& tree = file.tree = tree_of(n_children, where);
  check_same(io::get_int(json, "size", where), tree.size(), "size", where);
  check_same(ints_of(io::get_array(json, "depth", where), "depth", where), tree.depth, "depth",
             where);
  const io::Json& levels = io::get_array(json, "roots", where);
  check_same(static_cast<int64_t>(levels.size()), tree.levels(), "number of levels in roots",
             where);
  for (size_t l = 0, v = 0; l < levels.size(); ++l) {
    roots = ints_of(levels[l], fmt::format("roots[{}]", l), where);
    for (const int root : roots)
      if (root != static_cast<int>(v++))
        throw input_error(where, "roots[{}] names node {}, expected {}", l, root, v - 1)
            .hint("number the nodes level by level: other orders are not supported");
    check_same(static_cast<int64_t>(v), tree.level_begin[l + 1], fmt::format("end of roots[{}]", l),
               where);
  }
  const io::Json &successors = io::get_array(json, "Successors", where),
                 &mask = io::get_array(json, "mask", where);
  const size_t size = tree.parent.size();
  if (successors.size() != size || mask.size() != size)
    throw input_error(where, "Successors and mask have {} and {} rows, but there are {} nodes",
                      successors.size(), mask.size(), size);
  const auto bits = ancestor_bits(tree);
  for (size_t v = 0; v < size; ++v) {
    std::vector<int> children, row(size);
    for (int k = 0; k < tree.n_children[v]; ++k) children.push_back(tree.first_child[v] + k);
    for (size_t j = 0; j < size; ++j)
      row[j] = static_cast<int>(bits[v * ((size + 63) / 64) + j / 64] >> (j % 64) & 1);
    const std::string name = fmt::format("Successors[{}]", v);
    check_same(ints_of(successors[v], name, where), children, name, where);
    const std::string mask_name = fmt::format("mask[{}]", v);
    check_same(ints_of(mask[v], mask_name, where), row, mask_name, where);
  }
  return file;
}

}  // namespace

std::string tree_json(const TreeFile& file) {
  const TokenTree& tree = file.tree;
  nlohmann::ordered_json json = {{"format", kTreeFormat},
                                 {"size", tree.size()},
                                 {"levels", tree.levels()},
                                 {"widths", tree.widths()},
                                 {"branch_counts", tree.n_children},
                                 {"parents", tree.parent},
                                 {"child_positions", child_positions(tree)},
                                 {"expected_tokens", file.expected_tokens}};
  if (file.algorithm != TreeAlgorithm::automatic)
    json["algorithm"] = enum_names(file.algorithm)[static_cast<size_t>(file.algorithm)];
  if (file.replay)
    json["replay"] = {
        {"file", file.replay->file}, {"rule", file.replay->rule}, {"sha256", file.replay->sha256}};
  else
    json["vector"] = {
        {"file", file.vector_file}, {"method", file.method}, {"sha256", file.vector_sha256}};
  if (file.cost)
    json["cost"] = {{"t_ms", file.cost->target_ms},
                    {"draft_ms_per_level", file.cost->draft_ms},
                    {"overhead_ms", file.cost->overhead_ms},
                    {"x_ms_per_token", file.cost->ms_per_token}};
  return json.dump() + '\n';
}

TreeFile parse_tree(std::string_view text, const std::string& where) {
  const io::Json json = io::parse_json(text, where);
  if (!json.contains("format") && json.contains("branches") && json.contains("Successors"))
    return from_growmap(json, where);
  io::check_format(json, kTreeFormat, where);
  return from_ours(json, where);
}

TreeFile read_tree(const std::filesystem::path& path) {
  return parse_tree(io::read_file(path, kMostTreeBytes), path.string());
}

}  // namespace tandem::speculate
