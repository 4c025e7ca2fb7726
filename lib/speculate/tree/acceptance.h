#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::speculate {

/// Positional acceptance: the probability that, once a node is accepted, its k-th child is the
/// child that is accepted next. Such events exclude each other, so a row sums to at most 1.
/// source   Sequoia, definition 3.1
struct AcceptanceVector {
  /// rows[d][k]: child k, from 0, of a node at depth d, root 0. One row holds for all depths; of
  /// several the last also holds for all deeper nodes. Rows may differ in length; none is empty.
  std::vector<std::vector<double>> rows;
  std::string method;  // verification that it was measured with: "sequoia", "topk-greedy", ...
  std::string file, sha256;  // where it was read from; empty for one made in memory

  const std::vector<double>& row(int depth) const;
  /// The same for trees of at most max_branch children a node.
  AcceptanceVector first_children(int max_branch) const;
  /// True if no row ever rises: best-first search is then optimal.
  bool non_increasing() const;
};

/// What a bare list of numbers holds, which it does not say itself. The reference program's
/// test_accept.py writes `padded_residual`, its fast_test.py `padded`.
enum class VectorLayout : uint8_t {
  plain,            // p_1 .. p_W
  padded,           // 0, p_1 .. p_W
  padded_residual,  // 0, p_1 .. p_W, probability that no child is accepted
};
constexpr std::array<std::string_view, 3> enum_names(VectorLayout) {
  return {"plain", "padded", "padded_residual"};
}

/// Reads an acceptance-vector/1: an object with `format`, `method` and `p` = [p_1, ..], or `rows` =
/// [[..], ..] by depth in its stead; other members tell where it comes from and are not needed.
/// Or records (tandem.result/1), of which one has such an object as acceptance.vector. With a
/// layout: a bare JSON array of numbers.
/// errors   kind input at `where`: not such a file; a layout for a file that has its own, or none
///          for an array; numbers that are no probabilities (NaN, negative, above 1), a row that is
///          empty or sums to more than 1 + 1e-6, an array that contradicts its layout
AcceptanceVector parse_acceptance(std::string_view text, const std::string& where,
                                  std::optional<VectorLayout> layout = {});
AcceptanceVector read_acceptance(const std::filesystem::path& path,
                                 std::optional<VectorLayout> layout = {});

}  // namespace tandem::speculate
