#pragma once
#include <optional>

#include "base/clock.h"
#include "cli/context.h"
#include "decode/fit/hosted.h"
#include "decode/fit/sizing.h"
#include "decode/generate.h"
#include "decode/generate_prompts.h"
#include "decode/prompts.h"
#include "decode/state.h"
#include "recipe/sections.h"

namespace tandem::tools {

struct GenerateRecipe {
  recipe::Model model;
  recipe::ServingRun run;
  recipe::Sampling sampling;
  recipe::Chat chat;
  recipe::Cache cache;
  recipe::Output output;

  template <class V>
  void fields(V& v) {
    v("model", model, "model");
    v("run", run, "device, threads, seed, sizes");
    v("sampling", sampling, "sampling and stop conditions");
    v("chat", chat, "chat template");
    v("cache", cache, "KV cache and attention policy");
    v("output", output, "file of results");
  }
  void check(recipe::Problems& p) const {
    if (output.state == "-") p.field("output.state", "output.state: expected a file, found -");
    if (!output.state.empty() && output.state == output.path)
      p.field("output.state", "output.state: expected another file than output.path");
  }
};

/// A run of pig-generate, with the tool's own flags: what all sequences share is read once, then
/// every sequence is generated.
class PigGenerate {
 public:
  using Recipe = GenerateRecipe;

  /// Reads model headers, prompts and state, and sizes the run.
  /// errors   kind usage: no prompt, or flags that do not go together; kind input: model, prompts or
  ///          state; kind recipe: run.context beyond the model's
  PigGenerate(cli::Context& cx, const cli::Point<Recipe>& point);

  int print_plan();
  int run();

 private:
  /// Returns true if turns are read from the terminal.
  bool is_chat() const { return source_.chat && source_.empty(); }
  /// errors   kind usage: settings that a chat does not take
  void check_chat() const;
  /// Sizes the engine and plans its memory.
  void size(decode::SequenceBounds bounds);
  int run_chat();
  size_t n_saved() const { return saved_ ? saved_->tokens.size() : 0; }
  /// What named adapters become, of which all prompts may name the same one: it is merged then.
  void place_adapters();
  /// What all sequences begin with.
  decode::PrefixSource prefix() const;

  cli::Context& cx_;
  const cli::Point<Recipe>& point_;
  const GenerateRecipe& recipe_;
  Stopwatch load_;
  decode::PromptSource source_;
  decode::EngineSizer sizer_;
  decode::ModelFiles files_;
  recipe::Sampling sampling_;  // settled
  std::optional<decode::SavedState> saved_;
  std::optional<text::ChatTemplate> template_;  // of a chat
  decode::PromptSet prompts_;
  decode::AdapterUse adapters_ = decode::AdapterUse::none;
  decode::EngineSpec spec_;
  decode::GenerateSpec how_;
  std::optional<machine::HostedPlan> hosted_;  // of keys in host memory
  MemoryPlan plan_;
};

}  // namespace tandem::tools
