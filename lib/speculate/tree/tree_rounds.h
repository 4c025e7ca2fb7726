#pragma once
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "kernels/tree/chances_ref.h"
#include "ops/sampling.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// The run that rounds were recorded in.
struct RecordedRun {
  std::string target, draft;                          // names
  std::string target_fingerprint, draft_fingerprint;  // of configurations and weight headers
  std::string verify;                                 // the rule by which the texts went on
  ops::SampleRule sampling;
  int64_t seed = 0;
};

/// Rounds of one large tree, recorded as what the rules of verification make of each drawn node:
/// enough to replay them on every part of the tree that keeps the first children of each node it
/// has, exactly in expectation over the coins, without distributions and without models.
struct TreeRounds {
  RecordedRun run;
  TokenTree tree;
  std::vector<int32_t> text;  // [rounds] whose round it is
  // By node, then by round:
  std::vector<std::vector<double>> reach, rest, take, draft;  // of NodeChances

  size_t size() const { return text.size(); }
  /// Appends a round.
  /// chances  of every node
  void add(int32_t of_text, std::span<const NodeChances> chances);
  /// Those of some texts.
  TreeRounds of_texts(const std::function<bool(int32_t text)>& wanted) const;
};

/// No round yet.
TreeRounds empty_rounds(const TokenTree& tree, const RecordedRun& run);

/// Writes tree-rounds/1: a safetensors file with the run in its metadata, branch_counts [nodes] as
/// in sequoia-tree/1, text [rounds], and reach, rest, take, draft [nodes, rounds] in f32.
/// existing   as AtomicFile takes it
/// errors   kind input: cannot be written; the name is taken
void write_tree_rounds(const std::filesystem::path& path, const TreeRounds& rounds,
                       io::Existing existing = io::Existing::replaced);

/// errors   kind input: not such a file, a member missing or of another shape, no round, numbers
///          that are no probabilities
TreeRounds parse_tree_rounds(const io::Safetensors& file);
TreeRounds read_tree_rounds(const std::filesystem::path& path);

/// Refuses rounds that were drawn from other distributions than a run's.
/// where    the file
/// errors   kind input: another model or sampling; an empty fingerprint of `run` is not compared
void check_same_run(const RecordedRun& recorded, const RecordedRun& run, const std::string& where);

}  // namespace tandem::speculate
