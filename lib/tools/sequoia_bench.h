#pragma once
#include <filesystem>
#include <optional>
#include <vector>

#include "bench/roofline.h"
#include "decode/generate.h"
#include "speculate/tree/tree_table.h"
#include "tools/results/bench_results.h"
#include "tools/sequoia_tree_search.h"
#include "tools/speculation/model_pair.h"

namespace tandem::tools {

/// Section `tree` of sequoia-bench: a grid, of each of whose points the best tree is measured.
struct TreeGrid {
  std::vector<int> sizes = {128}, levels = {10};
  std::optional<int> max_branch;

  template <class V>
  void fields(V& v) {
    v("sizes", sizes, recipe::between(2, kv::kMaxTreeRows).unit("nodes"), "the root counts");
    v("levels", levels, recipe::at_least(2), "at most, the root's counts");
    v("max_branch", max_branch, recipe::at_least(1),
      "children of a node; null = the vector's length");
  }
};

/// Section `bench`: the texts to measure, and how long.
struct SequoiaBenchSection {
  int new_tokens = 128, texts = 3;
  bool simulate = true, predict = true;

  template <class V>
  void fields(V& v) {
    v("new_tokens", new_tokens, recipe::between(2, 1 << 20).unit("tokens"), "of a text");
    v("texts", texts, recipe::between(1, 10000), "of a point, after one that is not measured");
    v("simulate", simulate,
      "draw accepted paths from the vector, for models whose own acceptance says nothing");
    v("predict", predict, "time forwards too, and price every tree by them");
  }
};

/// Section `spec` of sequoia-bench.
struct VerifySection {
  speculate::VerifyChoice verify = speculate::VerifyChoice::automatic;

  template <class V>
  void fields(V& v) {
    v("verify", verify, "the rule that accepts drafted tokens; auto as sequoia-generate");
  }
};

struct SequoiaBenchRecipe {
  recipe::Model model;
  DraftSection draft;
  VerifySection spec;
  AcceptSection accept;
  TreeGrid tree;
  SequoiaBenchSection bench;
  recipe::Run run;
  recipe::Sampling sampling;
  BenchOutput output;

  SequoiaBenchRecipe() {
    run.context = {128};
    run.batch = 1;
  }
  template <class V>
  void fields(V& v) {
    v("model", model, "the model whose text it is");
    v("draft", draft, "the model that proposes");
    v("spec", spec, "how its tokens are verified");
    v("accept", accept, "the acceptance vector that trees are the best for");
    v("tree", tree, "sizes and levels of trees");
    v("bench", bench, "the texts to measure, and how long");
    v("run", run, "device, threads, seed; context: tokens of the prompts");
    v("sampling", sampling, "how tokens are drawn");
    v("output", output, "where records go");
  }
  void check(recipe::Problems& p) const;
};

/// A run of sequoia-bench: rounds of every tree of a grid against plain decoding by the same
/// engine, on prompts of random tokens.
class SequoiaBench {
 public:
  using Recipe = SequoiaBenchRecipe;

  /// errors   kind input: models, vector; kind recipe: sizes beyond the models'
  SequoiaBench(cli::Context& cx, const cli::Point<Recipe>& point);

  int print_plan();
  /// The exit status is BenchResults::finish's.
  int run();

 private:
  /// Sums over all texts of one way to decode, and of their rounds where it has some.
  struct Measured {
    std::vector<double> step_ms;  // mean of a text's steps or rounds
    double seconds = 0, steps = 0, tokens = 0;
    double rounds = 0, emitted = 0;  // of sequences
    double draft_s = 0, target_s = 0, verify_s = 0, host_s = 0;
  };

  /// Length of text that forwards are timed at: halfway through the new tokens.
  int timed_context() const { return context_ + recipe_.bench.new_tokens / 2; }
  /// rounds   null: plain decoding
  Measured measure(decode::Engine& target, speculate::Rounds* rounds);
  /// What all trees are compared with.
  struct Baseline {
    Measured plain;
    std::optional<speculate::TimingTable> times;
    bench::Ceilings limits;  // where layers are streamed
  };
  /// A tree of the grid and what it cost.
  struct Figures;

  Baseline measure_baseline(const ModelPair::Engines& engines);
  Figures figures_of(const ModelPair::Engines& engines, const speculate::TokenTree& tree,
                     const Baseline& baseline);
  bench::Record record_of(const ModelPair::Engines& engines, const Figures& f,
                          const Baseline& baseline) const;

  cli::Context& cx_;
  const cli::Point<Recipe>& point_;
  const SequoiaBenchRecipe& recipe_;
  speculate::AcceptanceVector acceptance_;
  ModelPair pair_;
  int context_ = 0;
  speculate::TreeTable trees_;
  std::vector<decode::Request> requests_;
};

}  // namespace tandem::tools
