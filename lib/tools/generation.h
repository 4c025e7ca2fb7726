#pragma once
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "cli/context.h"
#include "cli/device.h"
#include "decode/generate.h"
#include "decode/prompts.h"
#include "decode/state.h"
#include "recipe/sections.h"
#include "tools/generate_output.h"
#include "tools/shared_prefix.h"

namespace tandem::tools {

struct GenerateRecipe {
  recipe::Model model;
  recipe::Run run;
  recipe::Sampling sampling;
  recipe::Chat chat;
  recipe::Cache cache;
  recipe::Output output;

  template <class V>
  void fields(V& v) {
    v("model", model, "the model");
    v("run", run, "device, threads, seed, sizes");
    v("sampling", sampling, "how tokens are drawn and when text ends");
    v("chat", chat, "how prompts are written in the chat template");
    v("cache", cache, "what attention reads");
    v("output", output, "where results go");
  }
  void check(recipe::Problems& p) const {
    if (output.state == "-") p.field("output.state", "output.state: a state is a file, not -");
    if (!output.state.empty() && output.state == output.path)
      p.field("output.state", "output.state: output.path names the same file");
  }
};

/// A run of pig-generate, with the tool's own flags: what all sequences share is read once, then
/// every sequence is generated.
class Generation {
 public:
  /// Reads model headers, prompts and state, and sizes the run.
  /// errors   kind usage: no prompt, or flags that do not go together; kind input: model, prompts
  ///          or state; kind recipe: run.context beyond the model's
  Generation(cli::Context& cx, const cli::Point<GenerateRecipe>& point);

  /// Plan for --dry-run.
  /// errors   kind memory, after the plan is out: it does not fit
  void print_plan();
  void run();

 private:
  decode::EngineSpec engine_spec() const;
  /// Tokens that are read before any sequence starts.
  std::span<const int32_t> fresh_prefix() const;
  /// Those of a saved state included.
  size_t prefix_tokens() const { return n_saved() + fresh_prefix().size(); }
  /// Whether policies index the prefix once, for all sequences that follow it.
  bool indexes_prefix() const;
  /// A saved state, then the common start of the prompts.
  SharedPrefix read_prefix(decode::Engine& engine, decode::GenerateReport& report);
  /// Reads prompts that nothing shall follow.
  void read_all(decode::Engine& engine, std::span<const decode::Request> requests,
                decode::GenerateReport& report);
  size_t n_saved() const { return saved_ ? saved_->tokens.size() : 0; }

  cli::Context& cx_;
  const cli::Point<GenerateRecipe>& point_;
  const GenerateRecipe& recipe_;
  Stopwatch load_;
  decode::ModelFiles files_;
  std::optional<decode::SavedState> saved_;
  decode::PromptSet prompts_;
  cli::Placement place_;
  decode::EngineSpec spec_;
};

}  // namespace tandem::tools
