#pragma once
#include <vector>

#include "cli/context.h"
#include "speculate/tree/shape_search.h"
#include "tools/sequoia_tree_search.h"

namespace tandem::tools {

/// sequoia-tree-search --replay, one point of a sweep: searches the parts of a recorded tree that
/// give most by a rule, and prints and writes them.
class ReplaySearch {
 public:
  /// errors   kind input: the record, the acceptance vector or the timing table, a record of
  ///          another run than model.path's; kind recipe: sizes beyond the recorded tree's
  ReplaySearch(cli::Context& cx, const cli::Point<TreeSearchRecipe>& point);

  /// --dry-run: what would be searched.
  void print_plan();
  void run();

 private:
  struct Chosen {
    int context = 0;
    speculate::ShapeSearch::Choice choice;
    double plain_ms = 0;
  };

  void check_run() const;
  /// Sequoia's tree of a size by the acceptance vector, where there is one.
  std::optional<speculate::SubShape> start_of(int size) const;
  speculate::TreeFile tree_to_write() const;
  void write_files();
  void print_json();
  void print_tables();
  void print_record();
  speculate::TokenTree tree_of(const speculate::SubShape& shape) const {
    return speculate::tree_of(shape, rounds_.tree);
  }

  cli::Context& cx_;
  const cli::Point<TreeSearchRecipe>& point_;
  const TreeSearchRecipe& recipe_;
  std::string where_;
  speculate::TreeRounds rounds_;
  speculate::ShapeSearch search_;
  speculate::ShapeSearch::Bounds bounds_;
  std::optional<speculate::AcceptanceVector> acceptance_;
  std::vector<speculate::StepCost> buckets_;
  std::vector<int> sizes_;
  std::vector<speculate::FoundShape> found_;
  std::vector<Chosen> chosen_;
};

}  // namespace tandem::tools
