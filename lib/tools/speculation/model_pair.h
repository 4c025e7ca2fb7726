#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "cli/context.h"
#include "cli/device.h"
#include "decode/engine.h"
#include "decode/prompts.h"
#include "recipe/sections.h"
#include "speculate/round/rounds.h"

// What all tools share that run a model together with a small one.
namespace tandem::tools {

/// Section `draft`: the small model.
struct DraftSection {
  recipe::ModelName path;

  template <class V>
  void fields(V& v) {
    v("path", path, recipe::optional_input(),
      "model that proposes tokens, with the tokenizer of model.path");
  }
  /// For tools and settings that need one.
  void require(recipe::Problems& p) const {
    if (path.value.empty())
      p.field("draft.path", "draft.path: name the model that proposes tokens");
  }
};

/// The sections of such a tool; it adds its own.
struct PairRecipe {
  recipe::Model model;
  DraftSection draft;
  recipe::Run run;
  recipe::Sampling sampling;
  recipe::Chat chat;
  recipe::Output output;

  template <class V>
  void fields(V& v) {
    v("model", model, "the model whose text it is");
    v("draft", draft, "the model that proposes");
    v("run", run, "device, threads, seed, sizes");
    v("sampling", sampling, "how tokens are drawn and when text ends");
    v("chat", chat, "how prompts are written in the chat template");
    v("output", output, "where results go");
  }
};

/// The texts that a run holds at once.
struct TextRoom {
  int batch = 1;
  bool prefix = false;  // one sequence more, which holds what all begin with
  int64_t longest = 0;  // tokens of one text
  int64_t total = 0;    // of all, what they begin with counted once

  int sequences() const { return batch + (prefix ? 1 : 0); }
};

/// Room for prompts with so many new tokens each, `batch` at a time; for texts of `context` tokens
/// without a prompt.
/// context    tokens that a text may have
/// least_new  tokens that must fit behind every prompt
/// errors     kind input: a prompt beyond the context
TextRoom room_for(const decode::PromptSet& prompts, int64_t context, int max_tokens, int batch,
                  int least_new = 0);

/// What plans tell of a tree, as JSON.
nlohmann::ordered_json tree_facts(const speculate::TokenTree& tree);

/// A target and, where a model proposes, its draft: their headers, and how their engines are sized.
class ModelPair {
 public:
  /// draft    empty: the target is alone
  /// dry_run  it is planned, perhaps for a GPU that is not here
  /// errors   kind input: a model, vocabularies that differ; kind device
  ModelPair(const recipe::Model& model, const recipe::Run& run, const std::string& draft,
            bool dry_run);

  Device device() const { return place_.device; }
  /// Of the target, until it is loaded.
  const decode::ModelFiles& target() const { return target_; }
  bool has_draft() const { return draft_.has_value(); }
  const decode::ModelFiles& draft() const { return *draft_; }
  /// The target alone is loaded; to be sized anew.
  void leave_draft() { draft_.reset(); }
  /// Tokens that a text of both may have.
  /// errors   kind recipe: run.context beyond the models'
  int64_t context() const;

  /// What each engine needs beyond the texts themselves.
  void size(const TextRoom& texts, const speculate::RoundNeeds& target,
            const speculate::RoundNeeds& draft = {});
  /// Keeps layers of the target in host memory, as model.offload says.
  /// plan     of the whole run, as this pair stands
  /// errors   as layers_to_stream
  void stream_layers(const std::function<MemoryPlan()>& plan);
  const decode::EngineSpec& target_spec() const { return target_spec_; }
  const decode::EngineSpec& draft_spec() const { return draft_spec_; }

  /// Of both engines; the draft's items are named "draft ...".
  MemoryPlan plan() const;
  /// For --dry-run: the models, what else the tool tells, the memory by device.
  /// lines    of the tool, for people
  /// facts    the same for --format json
  /// errors   kind memory, after the plan is out: it does not fit
  void print_plan(cli::Context& cx, const MemoryPlan& plan, const std::string& lines,
                  const nlohmann::ordered_json& facts) const;

  struct Engines {
    std::unique_ptr<decode::Engine> target, draft;  // draft null without one
  };
  /// Loads both, once.
  /// plan     everything that the run will hold
  /// errors   kind memory, input, interrupted
  Engines load(cli::Context& cx, const MemoryPlan& plan);

 private:
  const recipe::Model& model_;
  const recipe::Run& run_;
  cli::Placement place_;
  decode::ModelFiles target_;
  std::optional<decode::ModelFiles> draft_;
  decode::EngineSpec target_spec_, draft_spec_;
};

}  // namespace tandem::tools
