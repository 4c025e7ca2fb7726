#pragma once
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "recipe/auto_counts.h"
#include "recipe/sections.h"
#include "speculate/round/floor_keys.h"
#include "speculate/round/verify_choice.h"
#include "tools/results/bench_results.h"
#include "tools/speculation_bench/hardware.h"
#include "tools/speculation_bench/ways.h"

namespace tandem::tools {

/// Whether rounds are predicted: not at all, next to measured ones, or without any.
enum class PredictMode : uint8_t { no, also, only };
constexpr std::array<std::string_view, 3> enum_names(PredictMode) {
  return {"no", "beside", "only"};
}

/// Section `spec`: drafted tokens of chains.
struct ChainSection {
  recipe::AutoCounts gamma;
  int most_gamma = 16;
  std::vector<int> gamma1 = {1}, gamma2 = {6}, rounds = {4};
  speculate::VerifyChoice verify = speculate::VerifyChoice::automatic,
                          verify_within = speculate::VerifyChoice::automatic;
  speculate::FloorKeys floors;

  template <class V>
  void fields(V& v) {
    v("gamma", gamma,
      "drafted tokens of a round, or a list such as [2, 4, auto]; auto = as many as pay, 0 where "
      "none do: each round chooses by times and acceptance so far; an ngram's at most");
    v("most_gamma", most_gamma, recipe::between(1, 256), "that auto chooses");
    v("gamma1", gamma1, recipe::between(1, 256).unit("tokens"),
      "nested drafts without a tree: drafted tokens of a round within, or a list");
    v("gamma2", gamma2, recipe::between(1, 256).unit("tokens"),
      "nested drafts: tokens with which no round within lengthens a chain, or a list");
    v("rounds", rounds, recipe::between(1, 64), "nested drafts: rounds within a round, or a list");
    v("verify", verify, "the rule that accepts drafted tokens; auto as sequoia-generate");
    floors.fields(v);
    v("verify_within", verify_within, "nested drafts: the rule of the rounds within");
  }
};

/// Section `bench`: the drafts to compare.
struct ComparisonSection {
  std::vector<NamedDraft> drafts;
  PredictMode predict = PredictMode::also;
  std::optional<recipe::TokenCount> budget;
  double speedup = 1;
  int new_tokens = 96, batches = 3, warm_ups = 1;
  bool random_kv = false;
  std::optional<bool> simulate;
  HardwareSection hardware;

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    v("drafts", drafts, recipe::Limits{.required = true},
      "list of {name: NAME, kind: ..., ...} compared with plain decoding");
    v("predict", predict,
      "whether times and gains are calculated: no, next to measured ones (forwards over trees are "
      "timed for it), or nothing else");
    v("budget", budget, at_least(1).unit("tokens"),
      "in place of that of every draft that reads a part; for sweeps; null = their own");
    v("speedup", speedup, recipe::above(0),
      "wanted: for the least acceptance and the critical context");
    v("new_tokens", new_tokens, recipe::between(2, 1 << 20).unit("tokens"), "of a sequence");
    v("batches", batches, recipe::between(1, 10000), "of prompts that are measured");
    v("warm_ups", warm_ups, recipe::between(0, 100), "runs of each way that are not counted");
    v("random_kv", random_kv,
      "random keys and values in place of the prompts': no time for their prefill");
    v("simulate", simulate,
      "draw accepted tokens by each draft's alpha, of trees by accept.path; null = for a model "
      "with "
      "random weights");
    v("hardware", hardware, "the machine that is predicted for");
  }
  void check(recipe::Problems& p) const;
  /// The drafts under the budget that a sweep sets.
  std::vector<NamedDraft> budgeted() const;
};

struct SpeculationBenchRecipe {
  recipe::Model model;
  recipe::Cache cache;
  ChainSection spec;
  ComparisonSection bench;
  recipe::Data data;
  recipe::RankedRun run;
  recipe::Sampling sampling;
  BenchOutput output;
  AcceptSection accept;
  TreeGrid tree;

  SpeculationBenchRecipe() {
    run.context = {32768};
    run.batch = 1;
  }
  template <class V>
  void fields(V& v) {
    v("model", model, "the model whose text it is");
    v("cache", cache, "what it reads of the text, with and without drafts");
    v("spec", spec, "drafted tokens of a round");
    v("bench", bench, "the drafts to compare, and the machine to predict for");
    v("data", data, "text whose windows are the prompts");
    v("run", run, "device, threads, seed, batch; context: tokens of each sequence");
    v("sampling", sampling, "how tokens are drawn");
    v("accept", accept, "the acceptance vector that trees are the best for");
    v("tree", tree, "sizes and levels of the trees of drafts with tree: auto");
    v("output", output, "where records go");
  }
  void check(recipe::Problems& p) const;
  /// The most drafted tokens that rounds may choose.
  int most_gamma() const;

 private:
  void check_trees(recipe::Problems& p) const;
  void check_measurement(recipe::Problems& p) const;
};

}  // namespace tandem::tools
