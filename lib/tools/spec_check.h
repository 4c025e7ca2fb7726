#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/context.h"
#include "eval/lossless_verdicts.h"
#include "io/table.h"
#include "speculate/plan/proposals.h"

namespace tandem::tools {

/// Section `eval` of spec-check.
struct LosslessSection {
  int n_prompts = 50, texts = 3000;
  std::optional<int> text_tokens;
  std::vector<double> temperatures;
  double significance = 1e-4;
  // Logits of large models reach 16 to 32, where numbers in bf16 lie 0.125 apart.
  double max_difference = 0.25;

  template <class V>
  void fields(V& v) {
    using recipe::between;
    v("n_prompts", n_prompts, between(1, 100000),
      "number of built-in prompts, used if no prompt is given");
    v("temperatures", temperatures, recipe::above(0),
      "softmax temperatures of sampled texts. Empty = sampling.temperature, or 0.6 and 1 if that "
      "is 0");
    v("texts", texts, between(100, 10000000),
      "number of sampled texts per temperature, with and without speculation, over all prompts. "
      "Each prompt gets at least 40, so surplus prompts are left out");
    v("text_tokens", text_tokens, between(2, 256).unit("tokens"),
      "length of a sampled text, null = twice the tokens of the longest speculation step, 16 to "
      "32");
    v("significance", significance, recipe::above(0).up_to(1),
      "largest probability that a lossless run fails any of the tests of sampled texts");
    v("max_difference", max_difference, recipe::at_least(0),
      "largest difference between logits whose order may change by rounding. Not used in f32, "
      "where no order may change");
  }
  std::vector<double> temperatures_of(const recipe::Sampling& sampling) const;
  /// longest   tokens of a speculation step
  int length_of_texts(int longest) const {
    return text_tokens.value_or(std::clamp(2 * longest, 16, 32));
  }
  /// How many of `n_given` prompts sampled texts continue.
  size_t prompts_sampled(size_t n_given) const;
};

/// What sequoia-generate reads, and how it is checked.
struct SpecCheckRecipe : speculate::GenerateRecipe {
  LosslessSection eval;

  SpecCheckRecipe() { spec.draft.kind = speculate::DraftKind::model; }

  template <class V>
  void fields(V& v) {
    speculate::GenerateRecipe::fields(v);
    v("eval", eval, "texts to compare");
  }
  void check(recipe::Problems& p) const;
  /// Tokens of a speculation step, at most.
  /// of   shape of the proposals, of nested drafts in inner steps
  int longest_step(const speculate::TokenTree& of) const {
    return spec.nests() ? 1 + spec.nested().most(of.levels()) : of.levels();
  }
};

/// Key and value of a setting that spec-check lowers.
using Lowered = std::vector<std::pair<std::string, std::string>>;

/// Lowers the budgets of a policy, so that it leaves out tokens of short prompts.
/// section   prefix of its keys in `lowered`
/// result    the shortest prompt that the policy leaves enough tokens out of
int lower_budgets(recipe::Cache& cache, const std::string& section, Lowered& lowered);

/// A run of spec-check: texts of the target alone against those of speculation, by the same
/// engines.
class SpecCheck {
 public:
  using Recipe = SpecCheckRecipe;

  /// errors   as Generate; prompts are built in where none is named
  SpecCheck(cli::Context& cx, const cli::Point<Recipe>& point);

  int print_plan();
  /// The exit status: 0 if all checks pass and every level was tested, else 7.
  int run();

 private:
  using Verdict = eval::Verdict;

  /// A recipe whose built-in prompts are longer than what policies read of them.
  SpecCheckRecipe lowered_budgets(SpecCheckRecipe recipe);
  bool has_prompts(const recipe::Chat& chat) const;
  void note_lowered();
  int text_tokens() const { return recipe_.eval.length_of_texts(recipe_.longest_step(tree_)); }
  /// Those that sampled texts go on from.
  std::span<const eval::Ids> sampled_prompts() const;
  decode::GenerateSpec how(double temperature, int max_tokens) const;
  void check_greedy(decode::Engine& target, speculate::Rounds& speculation);
  /// By match: texts of one seed.
  void check_matched(decode::Engine& target, speculate::Rounds& speculation);
  /// Sampled texts follow the distribution of the target's; all prompts go into one test.
  void check_distributions(decode::Engine& target, speculate::Rounds& speculation);
  /// proved, differs or inconclusive.
  std::string_view status() const;
  void write(const speculate::RoundStats& rounds);
  std::string text(io::TableFormat format) const;
  nlohmann::ordered_json json(const speculate::RoundStats& rounds) const;

  cli::Context& cx_;
  const cli::Point<Recipe>& point_;
  Lowered lowered_;
  int shortest_prompt_ = eval::kShortestPrompt;  // built in
  SpecCheckRecipe recipe_;
  speculate::ModelPair pair_;
  recipe::Sampling sampling_;  // settled
  speculate::TokenTree tree_;
  decode::PromptSet prompts_;
  std::string target_name_;
  model::ModelConfig config_;
  int batch_ = 1;
  int longest_ = 0;     // tokens of a text
  bool exact_;          // in f32, where greedy texts do not turn on rounding
  bool rows_are_pure_;  // in f32 on the CPU, where a row's bits do not depend on other rows
  // On the CPU, of steps and of those within them:
  eval::LevelTests tests_, tests_within_;
  std::vector<Verdict> verdicts_;
  std::vector<eval::GreedyDifference> differences_;
  std::optional<eval::Inconclusive> inconclusive_;
  nlohmann::ordered_json levels_;  // counts of sampled texts
};

}  // namespace tandem::tools
