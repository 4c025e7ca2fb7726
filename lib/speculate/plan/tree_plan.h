#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "decode/generate.h"
#include "decode/run_context.h"
#include "speculate/measure/timed_rounds.h"
#include "speculate/plan/proposals.h"
#include "speculate/tree/shape_search.h"
#include "speculate/tree/tree_choice.h"

namespace tandem::speculate {

/// What to time in order to choose a tree for texts of `context` tokens.
RoundTimesSpec timed_rounds(const Shape& shape, const decode::SamplerSpec& sampler, int batch,
                            int context);

/// Measures them now, and shows progress.
TimingTable measure_times(const decode::RunContext& cx, Reader target, Reader draft,
                          const RoundTimesSpec& spec);

/// What times of a pair that is not loaded yet depend on, for timing_json.
nlohmann::ordered_json times_context(const ModelPair& pair, const RoundTimesSpec& spec);

/// Times of a pair's rounds on this machine, kept in the cache folder: measured once for these
/// models, number types, threads, device, sampling and sizes.
class KeptTimes {
 public:
  /// pair     not loaded yet
  /// of       of a pair with several kinds of rounds: which; empty: it has one
  KeptTimes(const ModelPair& pair, const RoundTimesSpec& spec, const std::string& of = {});
  /// errors   kind input: the file is damaged
  std::optional<TimingTable> read(const decode::RunContext& cx) const;
  /// Where the folder cannot be written they are measured again next time.
  void write(const decode::RunContext& cx, const TimingTable& table) const;

 private:
  nlohmann::ordered_json about_;
  std::filesystem::path file_;  // empty: there is no cache folder
};

/// Tokens that measure_times needs beyond the longest text.
inline constexpr int kTimingTokens = kTimedTokens;

/// Holds the acceptance by rank of the child that a prompt gave.
struct MeasuredAcceptance {
  AcceptanceVector vector = {};
  int64_t rounds = 0;
  double seconds = 0;
};

/// Generates the beginning of a text by rounds of one level of children, and counts the accepted
/// ones. The random numbers are not the run's: the chosen tree is independent of those that draw
/// the text, whose distribution thus stays the target's.
/// how      of the whole text
/// errors   kind interrupted, memory, numeric
MeasuredAcceptance measure_acceptance(const decode::RunContext& cx, const GenerateRecipe& recipe,
                                      const ModelPair::Engines& engines,
                                      std::span<const int32_t> prompt, decode::GenerateSpec how,
                                      int batch);

/// How a run speculates.
struct TreePlan {
  TokenTree tree;
  /// The tree with the cost of a token; null without times, or without acceptance and recorded
  /// rounds.
  std::optional<PricedTree> predicted;
  double plain_ms = 0;  // and without
  std::optional<MeasuredAcceptance> measured;

  bool pays() const { return !predicted || predicted->cost.ms_per_token < plain_ms; }
  /// For the record's group `spec`; null without a prediction.
  nlohmann::ordered_json json() const;
};

/// The rounds of spec.shape.replay, if any.
/// pair     with its headers read
/// errors   kind input: no record, or one of another run
std::optional<TreeRounds> recorded_rounds(const Shape& section, const ModelPair& pair,
                                          const ops::SampleRule& sampling);

/// Predicts the tokens a round of a tree: by recorded rounds, else by measured acceptance, else by
/// the vector of spec.shape.accept.
struct TreeEvidence {
  const std::optional<TreeRounds>& rounds;
  VerifyChoice verify;
  std::optional<MeasuredAcceptance> measured = {};
};

/// Chooses the tree for this machine, or asks whether the given one pays.
/// given    none: it is chosen
/// times    of `timed`, or spec.shape.timing's
/// context  tokens of the texts
/// errors   kind input, recipe: vector, record or timing table
TreePlan plan_tree(const decode::RunContext& cx, const Shape& section, const TreeEvidence& evidence,
                   const std::optional<TokenTree>& given, const TimingTable& times,
                   const RoundTimesSpec& timed, int context);

}  // namespace tandem::speculate
