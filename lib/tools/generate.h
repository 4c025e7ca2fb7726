#pragma once
#include "base/clock.h"
#include "cli/context.h"
#include "decode/generate_prompts.h"
#include "speculate/plan/generation.h"
#include "tools/speculation/fastest.h"

namespace tandem::tools {

/// A run that generates text: plain decoding, or speculation with any draft; one or many sequences,
/// or a chat at the terminal. Text that all sequences begin with is read once.
class Generate {
 public:
  /// Reads headers of the models, prompts, state and tree, and sizes the run.
  /// errors   kind usage: no prompt, or flags that do not go together; kind input: models, prompts,
  ///          state, tree, vocabularies that differ; kind recipe: run.context beyond the models'
  Generate(cli::Context& cx, const cli::PointName& point, const speculate::GenerateRecipe& recipe);

  int print_plan();
  int run();

 private:
  struct Way : speculate::Generation::Way {
    const TriedWay* fastest = nullptr;  // with spec.fastest
  };

  bool speculates() const { return pair_.speculates(); }
  /// Returns true if turns are read from the terminal.
  bool is_chat() const { return source_.chat && source_.empty(); }
  /// errors   kind usage: settings that a chat does not take
  void check_chat() const;
  void read_prompts();
  /// Decides how named adapters apply. One that all prompts name is merged.
  void place_adapters();
  /// Sizes the engines and plans their memory.
  void size();
  size_t n_saved() const { return saved_ ? saved_->tokens.size() : 0; }
  /// Returns the start of all sequences.
  decode::PrefixSource prefix() const;
  /// Tries the ways of spec.fastest.
  Way way(const decode::GenerateSpec& how, speculate::RoundOptions options);
  int print_plain_plan();
  int print_fastest_plan();
  void chat(decode::Engine& engine, decode::Decoder& decoder, const decode::GenerateSpec& how);

  cli::Context& cx_;
  const cli::PointName& point_;
  const speculate::GenerateRecipe& asked_;
  speculate::GenerateRecipe recipe_;  // with all drafts that spec.fastest tries
  Stopwatch load_;
  decode::PromptSource source_;
  speculate::Generation generation_;
  speculate::ModelPair& pair_;  // part of generation_
  recipe::Sampling sampling_;   // settled
  std::optional<decode::SavedState> saved_;
  std::optional<text::ChatTemplate> template_;  // for a chat
  decode::PromptSet prompts_;
  decode::AdapterUse adapters_ = decode::AdapterUse::none;
  decode::SequenceBounds bounds_;
  decode::SequenceRoom room_;   // of the texts
  std::vector<TriedWay> ways_;  // of spec.fastest
};

/// Adds what all programs that generate text have to the description of one: flags, formats.
cli::ToolInfo generator(cli::ToolInfo own);

/// A program whose recipes speculate by this draft unless they say otherwise.
template <speculate::DraftKind kDraft>
struct GenerateTool : Generate {
  struct Recipe : speculate::GenerateRecipe {
    Recipe() { spec.draft.kind = kDraft; }
  };
  GenerateTool(cli::Context& cx, const cli::Point<Recipe>& point)
      : Generate(cx, point, point.recipe) {}
};

}  // namespace tandem::tools
