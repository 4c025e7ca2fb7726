#pragma once
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "cli/context.h"
#include "cli/device.h"
#include "decode/generate.h"
#include "decode/prompts.h"
#include "recipe/sections.h"
#include "spec/token_tree.h"

namespace tandem::cli {

/// Section `draft`: the small model.
struct DraftSection {
  recipe::ModelName path;

  template <class V>
  void fields(V& v) {
    v("path", path, recipe::optional_input(),
      "model that proposes tokens, with the vocabulary of model.path");
  }
  /// For tools and settings that need one.
  void require(recipe::Problems& p) const {
    if (path.value.empty()) p.field("draft.path", "draft.path: name the model that proposes tokens");
  }
};

/// What proposes tokens.
enum class DraftKind : uint8_t { model, ngram };
constexpr std::array<std::string_view, 2> enum_names(DraftKind) { return {"model", "ngram"}; }

/// Section `spec`.
struct SpecSection {
  DraftKind draft = DraftKind::model;
  int gamma = 8, ngram = 3;

  template <class V>
  void fields(V& v) {
    v("draft", draft, "model: draft.path grows tree.path; ngram: what followed the last words before");
    v("gamma", gamma, recipe::between(1, 256).unit("tokens"), "of an ngram's proposal, at most");
    v("ngram", ngram, recipe::between(1, 64).unit("tokens"), "that must agree for one, at most");
  }
};

/// Section `tree`: the shape of the proposals.
struct DraftTreeSection {
  std::filesystem::path path;

  template <class V>
  void fields(V& v) {
    v("path", path, recipe::optional_input(),
      "tree of draft tokens (sequoia-tree/1, or a map as JSON)");
  }
};

struct SequoiaRecipe {
  recipe::Model model;
  SpecSection spec;
  DraftSection draft;
  DraftTreeSection tree;
  recipe::Run run;
  recipe::Sampling sampling;
  recipe::Output output;

  template <class V>
  void fields(V& v) {
    v("model", model, "the model whose text it is");
    v("spec", spec, "what proposes tokens");
    v("draft", draft, "the model that proposes");
    v("tree", tree, "the shape of the proposals");
    v("run", run, "device, threads, seed, sizes");
    v("sampling", sampling, "how tokens are drawn and when text ends");
    v("output", output, "where results go");
  }
  void check(recipe::Problems& p) const;
};

/// A run of sequoia-generate: text of one model, several tokens a step with the help of a small one.
class SpeculativeGeneration {
 public:
  /// Reads headers of both models, prompts and tree, and sizes the run.
  /// errors   kind usage: no prompt; kind input: models, prompts, tree, vocabularies that differ; kind
  ///          recipe: run.context beyond the models'
  SpeculativeGeneration(Context& cx, const Point<SequoiaRecipe>& point);

  /// Plan for --dry-run. errors  kind memory, after the plan is out: it does not fit
  void print_plan();
  void run();

 private:
  void size_engines();
  MemoryPlan plan() const;

  Context& cx_;
  const SequoiaRecipe& recipe_;
  Stopwatch load_;
  Device device_;
  decode::ModelFiles target_files_;
  std::optional<decode::ModelFiles> draft_files_;
  decode::PromptSet prompts_;
  spec::TokenTree tree_;
  decode::EngineSpec target_, draft_;
};

}  // namespace tandem::cli
