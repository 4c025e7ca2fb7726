#pragma once
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/model_bench.h"
#include "bench/speculation/ways.h"
#include "recipe/auto_counts.h"
#include "recipe/sections.h"
#include "speculate/plan/hardware.h"
#include "speculate/round/floor_keys.h"
#include "speculate/round/verify_choice.h"
#include "tools/results/bench_results.h"

namespace tandem::tools {

/// Whether rounds are predicted: not at all, next to measured ones, or without any.
enum class PredictMode : uint8_t { no, also, only };
constexpr std::array<std::string_view, 3> enum_names(PredictMode) { return {"no", "also", "only"}; }

/// Section `spec`: drafted tokens of chains.
struct ChainSection {
  recipe::AutoCounts gamma;
  int max_gamma = 16;
  std::vector<int> gamma1 = {1}, gamma2 = {6}, inner_steps = {4};
  speculate::VerifyChoice verify = speculate::VerifyChoice::automatic,
                          inner_verify = speculate::VerifyChoice::automatic;
  speculate::FloorKeys floors;

  template <class V>
  void fields(V& v) {
    v("gamma", gamma,
      "draft tokens per speculation step, or a list such as [2, 4, auto]. An upper bound for "
      "ngram. auto = the fastest number at each step by measured times and acceptance, possibly 0");
    v("max_gamma", max_gamma, recipe::between(1, 256), "largest gamma that auto may choose");
    v("gamma1", gamma1, recipe::between(1, 256).unit("tokens"),
      "draft tokens per inner step, or a list, only for nested drafts without a tree");
    v("gamma2", gamma2, recipe::between(1, 256).unit("tokens"),
      "tokens from inner steps at which no further inner step starts, or a list, only for nested "
      "drafts");
    v("inner_steps", inner_steps, recipe::between(1, 64),
      "maximum number of inner steps per speculation step, or a list, only for nested drafts");
    v("verify", verify, "acceptance rule, auto = as in sequoia-generate");
    floors.fields(v);
    v("inner_verify", inner_verify, "acceptance rule of inner steps, only for nested drafts");
  }
};

/// Section `bench`: the phases of a model, and drafts to compare with plain decoding.
struct BenchSection : bench::ModelBench {
  std::vector<speculate::NamedDraft> drafts;
  std::filesystem::path prompts;
  PredictMode predict = PredictMode::also;
  std::optional<recipe::TokenCount> budget;
  double speedup = 1;
  int batches = 3, warm_ups = 1;
  std::optional<bool> simulate;
  speculate::HardwareSection hardware;

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    bench::ModelBench::fields(v);
    v("drafts", drafts,
      "drafts to compare with plain decoding, a list of {name: NAME, kind: ..., ...}");
    v("prompts", prompts, recipe::optional_input(),
      "prompts in place of windows of data.path: JSONL as for pig-generate --prompts, the first "
      "run.batch x bench.batches lines, each of at most run.context tokens. Sequences then also "
      "end at the model's end tokens");
    v("predict", predict,
      "calculation of times and speed-ups: no, only, or next to measured ones (the default), which "
      "also times forwards over trees");
    v("budget", budget, at_least(1).unit("tokens"),
      "KV budget of all drafts that set budget, for sweeps. null = as each draft sets it");
    v("speedup", speedup, recipe::above(0),
      "target speed-up for the smallest useful acceptance rate and the critical context");
    v("batches", batches, recipe::between(1, 10000), "number of measured batches of prompts");
    v("warm_ups", warm_ups, recipe::between(0, 100), "number of warm-up runs of each draft");
    v("simulate", simulate,
      "simulated acceptance, drawn by each draft's alpha, or by accept.path for trees. null = only "
      "for random weights");
    v("hardware", hardware, "machine of the calculation");
  }
  void check(recipe::Problems& p) const;
  /// Returns the new tokens of a sequence.
  int n_new() const { return static_cast<int>(new_tokens); }
  /// The drafts under the budget that a sweep sets.
  std::vector<speculate::NamedDraft> budgeted() const;
};

struct BenchRecipe {
  recipe::Model model;
  recipe::Cache cache;
  ChainSection spec;
  BenchSection bench;
  recipe::Data data;
  recipe::RankedRun run;
  recipe::Sampling sampling;
  BenchOutput output;
  speculate::AcceptSection accept;
  bench::TreeGrid tree;

  BenchRecipe() { run.batch = 1; }
  template <class V>
  void fields(V& v) {
    v("model", model, "target model");
    v("cache", cache, "KV cache and attention policy of the target, with or without drafts");
    v("spec", spec, "drafting and verification");
    v("bench", bench, "phases to measure, drafts to compare, and the machine of the calculation");
    v("data", data, "text whose windows are the prompts");
    v("run", run, "device, threads, seed, batch size and context length");
    v("sampling", sampling, "sampling");
    v("accept", accept, "acceptance vector that trees are optimized for");
    v("tree", tree, "sizes and levels of trees for drafts with tree: auto");
    v("output", output, "file of records");
  }
  void check(recipe::Problems& p) const;
  /// The most drafted tokens that rounds may choose.
  int most_gamma() const;

 private:
  void check_drafts(recipe::Problems& p) const;
  void check_trees(recipe::Problems& p) const;
  void check_measurement(recipe::Problems& p) const;
};

}  // namespace tandem::tools
