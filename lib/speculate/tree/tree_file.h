#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "speculate/plan/step_cost.h"
#include "speculate/tree/token_tree.h"
#include "speculate/tree/tree_table.h"

namespace tandem::speculate {

/// The recorded rounds that a tree was searched by.
struct TreeOrigin {
  std::string file, rule, sha256;  // rule: of verification
};

/// A tree and where it comes from.
struct TreeFile {
  TokenTree tree;
  double expected_tokens = 0;                          // under the acceptance vector
  TreeAlgorithm algorithm = TreeAlgorithm::automatic;  // automatic: not known
  std::string vector_file, method, vector_sha256;      // of the acceptance vector
  std::optional<RoundCost> cost;                       // none: the tree was asked for by size
  std::optional<TreeOrigin> replay;                    // in place of the vector
};

/// The tree as sequoia-tree/1, one JSON object. branch_counts, the number of children of each node
/// breadth first, is the complete shape; a reader needs it, `format`, and `vector.method` or
/// `replay.rule` to know which verification the tree is for. Beside it, to be read by people and
/// scripts and checked on reading: size, levels, widths, parents (-1 for the root), child_positions
/// (from 1, as papers count; 0 for the root), expected_tokens, algorithm (greedy or dp), vector
/// {file, method, sha256} or replay {file, rule, sha256}, and cost {t_ms, draft_ms_per_level [of
/// each call], overhead_ms, x_ms_per_token} if it was chosen by times.
std::string tree_json(const TreeFile& file);

/// Reads sequoia-tree/1, or the maps of UMbreLLa and of the reference program as JSON (members
/// roots, branches, Successors, mask, depth, size; expected_tokens and the vector stay unknown).
/// errors   kind input at `where`: another format, a shape that is no tree, a member that
///          contradicts the shape, a map whose nodes are not numbered breadth first
TreeFile parse_tree(std::string_view text, const std::string& where);
TreeFile read_tree(const std::filesystem::path& path);

}  // namespace tandem::speculate
