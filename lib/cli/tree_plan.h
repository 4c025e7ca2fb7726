#pragma once
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/round_times.h"
#include "cli/proposals.h"
#include "spec/tree/tree_choice.h"

namespace tandem::cli {

/// The times of a pair's rounds on this machine: measured once for these models, number types,
/// threads, device, sampling and sizes, and kept in the cache folder.
spec::TimingTable kept_times(Context& cx, const ModelPair::Engines& engines,
                             const bench::RoundTimesSpec& spec);

/// Measures them now, behind a progress line.
/// result   and what was measured, for timing_json
std::pair<spec::TimingTable, nlohmann::ordered_json> measured_times(
    Context& cx, const ModelPair::Engines& engines, const bench::RoundTimesSpec& spec);

/// Tokens that kept_times needs beyond the longest text.
inline constexpr int kTimingTokens = bench::kTimedTokens;

/// How a run speculates.
struct TreePlan {
  spec::TokenTree tree;
  /// What a token costs with the tree, where tree.accept and times tell.
  std::optional<spec::PricedTree> predicted;
  double plain_ms = 0;  // and without

  bool pays() const { return !predicted || predicted->cost.ms_per_token < plain_ms; }
  /// For the record's group `spec`; null without a prediction.
  nlohmann::ordered_json json() const;
};

/// Chooses the tree for this machine, or asks whether the given one pays.
/// context  tokens of the texts
/// errors   kind input, recipe: vector or timing table
TreePlan plan_tree(Context& cx, const SequoiaRecipe& recipe, const spec::TokenTree& given,
                   const ModelPair::Engines& engines, const decode::SamplerSpec& sampler, int batch,
                   int context);

}  // namespace tandem::cli
