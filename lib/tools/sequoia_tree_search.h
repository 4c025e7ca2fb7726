#pragma once
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/context.h"
#include "speculate/plan/proposals.h"
#include "speculate/tree/timing.h"
#include "speculate/tree/tree_choice.h"

namespace tandem::tools {

/// The rule that trees are searched for by replay; block is traversal of chains.
enum class ReplayRule : uint8_t { traversal, sequoia };
constexpr std::array<std::string_view, 2> enum_names(ReplayRule) {
  return {"traversal", "sequoia"};
}

/// Section `replay`: recorded rounds in place of an acceptance vector.
struct ReplaySection {
  std::filesystem::path path;
  ReplayRule rule = ReplayRule::traversal;

  template <class V>
  void fields(V& v) {
    v("path", path, recipe::optional_input(),
      "recorded speculation steps of a large tree (tree-rounds/1) to search for the best subtrees, "
      "starting from accept.path. Empty = search by accept.path only");
    v("rule", rule, "acceptance rule that the trees are optimized for");
  }
};

/// Section `tree`: which trees to search.
struct TreeSection {
  static constexpr int kMostNodes = 4096;
  std::vector<int> sizes;
  std::optional<int> max_levels, max_branch;
  speculate::TreeAlgorithm algorithm = speculate::TreeAlgorithm::automatic;

  template <class V>
  void fields(V& v) {
    v("sizes", sizes, recipe::between(1, kMostNodes).unit("nodes"),
      "tree sizes, including the root. Empty = sizes of the timing table, up to 4096");
    v("max_levels", max_levels, recipe::at_least(1),
      "maximum number of levels, including the root's, null = no limit");
    v("max_branch", max_branch, recipe::at_least(1),
      "maximum number of children per node, null = the vector's length");
    v("algorithm", algorithm,
      "search algorithm: greedy or dp (dynamic programming). auto = greedy where it is provably "
      "optimal, else dp");
  }
};

/// Section `timing`: what a round costs on the machine, from a file or in place.
struct TimingSection {
  std::filesystem::path path;
  recipe::TokenCount context{0};
  std::vector<int> sizes, draft_widths;
  std::vector<double> target_ms, draft_ms;
  std::optional<double> overhead_ms;
  bool skip_deepest = false;
  bool measure = false;
  std::vector<recipe::TokenCount> contexts = {{1024}};

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    v("path", path, recipe::optional_input(),
      "timing table (sequoia-timing/1), empty = the lists below");
    v("context", context, at_least(0).unit("tokens"),
      "context length to choose for, 0 = each length in the table");
    v("sizes", sizes, at_least(1).unit("tokens"),
      "token counts of a target forward, in increasing order from 1");
    v("target_ms", target_ms, at_least(0), "time of a target forward for each size");
    v("draft_widths", draft_widths, at_least(1).unit("tokens"),
      "token counts of a draft forward, optional if draft_ms is a single time");
    v("draft_ms", draft_ms, at_least(0),
      "time of a draft forward for each width, or one time for all widths");
    v("overhead_ms", overhead_ms, at_least(0),
      "remaining time of a speculation step, null = from the file, or 0");
    v("skip_deepest", skip_deepest,
      "no draft forward on the deepest level, as in an engine that skips it. Also set by the file");
    v("measure", measure,
      "timing of speculation steps of model.path with spec.draft, in place of a search");
    v("contexts", contexts, at_least(1).unit("tokens"), "context lengths for the timing");
  }
  void check(recipe::Problems& p) const;
  bool given() const { return !path.empty() || !sizes.empty(); }
  /// errors   those of read_timing and check_timing
  speculate::TimingTable table() const;
};

/// Section `output` of sequoia-tree-search.
struct TreeOutput {
  std::filesystem::path path, svg, dot;

  template <class V>
  void fields(V& v) {
    v("path", path,
      "file of the chosen tree (sequoia-tree/1), or of the timing table if one is measured. Empty "
      "= none");
    v("svg", svg, "SVG file with a drawing of the tree, empty = none");
    v("dot", dot, "Graphviz file of the tree, empty = none");
  }
  bool any() const { return !path.empty() || !svg.empty() || !dot.empty(); }
};

/// Section `model` of a tool that only times one.
struct TimedModel : recipe::Model {
  template <class V>
  void fields(V& v) {
    v("path", path, recipe::optional_input(),
      "target model: the model to time with timing.measure, or the model that replay.path must "
      "have recorded");
    v("compute", compute, "data type of weights and activations");
    v("adapters", adapters, adapters_text());
  }
};

struct TreeSearchRecipe {
  speculate::AcceptSection accept;
  ReplaySection replay;
  TreeSection tree;
  TimingSection timing;
  TimedModel model;
  speculate::PairSection spec;
  recipe::RankedRun run;
  recipe::Sampling sampling;
  TreeOutput output;

  template <class V>
  void fields(V& v) {
    v("accept", accept, "acceptance by child position");
    v("replay", replay, "recorded speculation steps for the search");
    v("tree", tree, "sizes and limits of trees");
    v("timing", timing, "forward times of target and draft, for the choice of a size");
    v("model", model, "target model to time");
    v("spec", spec, "draft model to time");
    v("run", run, "device, threads, seed and sizes of the timed speculation steps");
    v("sampling", sampling, "sampling in the timed speculation steps");
    v("output", output, "file of the tree");
  }
  void check(recipe::Problems& p) const;
  /// Steps to choose a tree for; none without times.
  /// errors   those of TimingSection::table; kind recipe: a context that it lacks, or several of
  ///          them and an output file
  std::vector<speculate::StepCost> steps() const;
};

/// One point of a sweep: reads what it needs, then prints and writes trees.
class TreeSearch {
 public:
  /// errors   kind input: the acceptance vector or the timing table; kind recipe: sizes beyond the
  ///          measured ones; kind usage: an output file that exists
  TreeSearch(cli::Context& cx, const cli::Point<TreeSearchRecipe>& point);

  /// --dry-run: what would be searched, and its memory.
  void print_plan();
  void run();

 private:
  struct Found {
    int size = 1;
    std::optional<double> expected;  // nullopt: there is no such tree
    std::optional<speculate::TokenTree> tree;
  };
  struct Chosen {
    int context = 0;
    speculate::TreeChoice choice;
    speculate::TokenTree tree;
  };

  int max_size() const;
  /// Children of a node at most.
  size_t max_branch() const;
  speculate::TreeFile tree_to_write() const;
  void write_files();
  void print_json();
  void print_tables();
  /// The search timed: the table for every bound of levels and the tree of the greatest size.
  void print_record();
  speculate::TreeTable table_of(int min_levels) const;

  cli::Context& cx_;
  const cli::Point<TreeSearchRecipe>& point_;
  const TreeSearchRecipe& recipe_;
  speculate::AcceptanceVector acceptance_;    // cut to max_branch
  std::vector<speculate::StepCost> buckets_;  // those to choose for
  std::vector<int> sizes_;
  int max_levels_;
  std::optional<speculate::TreeTable> table_;
  std::vector<Found> found_;
  std::vector<Chosen> chosen_;
};

/// sequoia-tree-search --measure: times rounds of model.path with spec.draft on this machine, trees
/// up to the largest of tree.sizes (128 nodes without), and writes a timing table to output.path.
/// With --dry-run prints the memory plan.
/// errors   kind input: models; kind recipe: contexts beyond the models'; kind memory, interrupted
int measure_timing(cli::Context& cx, const TreeSearchRecipe& recipe);

/// A run of sequoia-tree-search: searches at every point of a sweep, or with timing.measure times
/// rounds.
class SequoiaTreeSearch {
 public:
  using Recipe = TreeSearchRecipe;

  SequoiaTreeSearch(cli::Context& cx, const std::vector<cli::Point<Recipe>>& points)
      : cx_(cx), points_(points) {}

  int print_plan() { return run(); }  // each point, or the timing, prints its own
  /// A point that fails does not end a sweep: it is reported on standard error and recorded. The
  /// exit status: 0, 8 if only some points failed, else that of the last error.
  int run();

 private:
  cli::Context& cx_;
  const std::vector<cli::Point<Recipe>>& points_;
};

}  // namespace tandem::tools
