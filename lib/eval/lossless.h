#pragma once
#include <functional>
#include <span>
#include <vector>

#include "decode/generate.h"
#include "eval/chi_square.h"
#include "speculate/round/rounds.h"

// Whether texts made by speculation are those of the target alone.
namespace tandem::eval {

using Ids = std::vector<int32_t>;

/// A place where the greedy text of speculation takes another token than the target alone takes
/// after the same tokens.
struct GreedyDifference {
  int text = 0, position = 0;  // tokens of the text before it, the prompt left out
  int32_t expected = 0;        // the target's best token when it reads them again
  int32_t found = 0;
  double gap = 0;  // natural log units: by how much `found` is below `expected` then
};

struct GreedyCheck {
  int texts = 0, texts_equal = 0;
  int64_t tokens = 0;  // of speculation
  double max_gap = 0;  // of all tokens of texts that differ
  std::vector<GreedyDifference> differences;
};

/// Called with the texts done so far; returning false interrupts.
using TextProgress = std::function<bool(int64_t done)>;

/// Greedy texts of both. Where two differ, the target reads the text of speculation again token by
/// token, and each token that is not the best there is reported with its gap: rounding may decide
/// between tokens of nearly equal logits, and forwards of other shapes round otherwise.
/// target   with room for a text of every prompt at a time, or for several
/// how      temperature 0
/// errors   kind interrupted, numeric
/// source   Sequoia's reference compares nothing; a re-scored reference stands in for byte equality
GreedyCheck check_greedy(decode::Engine& target, decode::Decoder& speculation,
                         std::span<const Ids> prompts, const decode::GenerateSpec& how,
                         const TextProgress& progress = {});

/// One comparison of outcomes: tokens `first` .. `first + n - 1` of a text, from 0.
struct DistributionTest {
  int first = 0, n = 1;
  TwoSampleTest test;
};

struct DistributionCheck {
  int64_t texts = 0;  // of each of both
  int prompts = 0;
  std::vector<DistributionTest> tests;

  /// Adds the check of texts of the same length after another prompt. Outcomes are compared prompt
  /// by prompt, so texts that follow the distribution of another prompt are detected too.
  void add(const DistributionCheck& other);
  double worst_p() const;
};

/// Sampled texts of both that go on from one prompt, with independent seeds: the distributions of
/// every token and of every two neighbours are compared, which also detects random numbers that
/// rounds share. The first token of a text comes from the prompt, without speculation, and is only
/// compared as a neighbour.
/// prompt   tokens that `prefix_slot` of the target's cache holds
/// how      max_tokens of each text, and the seed of one of both; the other takes the next
DistributionCheck check_distribution(decode::Engine& target, decode::Decoder& speculation,
                                     std::span<const int32_t> prompt, int prefix_slot, int texts,
                                     const decode::GenerateSpec& how,
                                     const TextProgress& progress = {});

/// Sampled texts after several prompts.
struct SampledTexts {
  std::span<const Ids> prompts = {};
  int texts = 0;  // after each prompt
  std::vector<double> temperatures = {};
  /// max_tokens of each text, and the first seed.
  std::function<decode::GenerateSpec(double temperature)> how = {};
  /// True if the prompt's index serves all texts that go on from it.
  std::function<bool(const Ids& prompt)> adopts = [](const Ids&) { return false; };
};

/// check_distribution after every prompt.
/// result   [temperatures]
std::vector<DistributionCheck> check_distributions(decode::Engine& target,
                                                   speculate::Rounds& speculation,
                                                   const SampledTexts& sampled,
                                                   const TextProgress& progress = {});

/// Texts of both with the same seed: by match, speculation must give the very tokens of plain
/// sampling.
/// result   texts that are equal
int count_equal(decode::Engine& target, decode::Decoder& speculation, std::span<const Ids> prompts,
                const decode::GenerateSpec& how, const TextProgress& progress = {});

inline constexpr int kShortestPrompt = 8;

/// Different prompts for both checks: beginnings of generated prose, up to 39 tokens longer than
/// `shortest`; random ids for a model without tokenizer.
std::vector<Ids> varied_prompts(const decode::ModelFiles& files, int n, uint64_t seed,
                                int shortest = kShortestPrompt);

}  // namespace tandem::eval
