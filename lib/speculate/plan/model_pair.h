#pragma once
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "decode/fit/hosted.h"
#include "decode/fit/rank_plan.h"
#include "decode/fit/sizing.h"
#include "decode/run_context.h"
#include "speculate/draft/draft_kind.h"
#include "speculate/round/rounds.h"

// What all tools share that run a model together with a small one.
namespace tandem::speculate {

/// A section of a draft: the model that proposes, and how it reads.
struct DraftSection {
  std::string_view key = "spec.draft";  // of the section, for errors
  recipe::ModelName path;
  recipe::WeightType weights = recipe::WeightType::automatic;
  recipe::Cache cache;
  recipe::Sparse sparse;
  int longest = 3;

  /// The fields of a tagged draft.
  /// with_cache  kinds that have a cache
  template <class V>
  void tagged_fields(V& v, std::string_view with_cache) {
    using recipe::of_kind;
    v("path", path, recipe::optional_input().of("model"),
      "draft model, with the tokenizer of model.path");
    v("weights", weights, of_kind("model|self"),
      "weights of the draft: int8, int4 or fp8, quantized at load time. With kind self, the "
      "draft is then a quantized copy of the target. auto = as in the file");
    v("cache", cache, of_kind(with_cache), "KV cache and attention policy of the draft");
    v("sparse", sparse, of_kind("self"), "FFN neurons that the draft computes");
    v("longest", longest, recipe::between(1, 64).unit("tokens").of("ngram"),
      "longest n-gram to match");
  }
  void check(recipe::Problems& p) const;
  /// True for a draft that is the target with quantised weights.
  bool copies_target() const { return path.value.empty() && recipe::is_quantized(weights); }
};

/// Section `spec` of a tool that measures a target with one other model.
struct PairSection {
  struct Other : DraftSection {
    DraftKind kind = DraftKind::model;
    bool reads_own = false;  // set by tools whose draft may also be the target under another policy

    template <class V>
    void fields(V& v) {
      v("kind", kind,
        reads_own ? "draft: model (path), or self: the target under cache and sparse, or a "
                    "quantized copy of it (weights)"
                  : "draft: model (path), or self with weights (a quantized copy of the target)");
      tagged_fields(v, "model|self");
    }
    void check(recipe::Problems& p) const;
  };
  Other draft;

  template <class V>
  void fields(V& v) {
    v("draft", draft, "draft model");
  }
  /// For tools and settings that need one.
  void require_draft(recipe::Problems& p) const {
    if (draft.kind == DraftKind::model && draft.path.value.empty())
      p.field("spec.draft.path", "spec.draft.path: expected the draft model, found none");
  }
};

/// The sections of such a tool; it adds its own.
struct PairRecipe {
  recipe::Model model;
  PairSection spec;
  recipe::RankedRun run;
  recipe::Sampling sampling;
  recipe::Chat chat;
  recipe::Output output;

  template <class V>
  void fields(V& v) {
    v("model", model, "target model");
    v("spec", spec, "the draft");
    v("run", run, "device, threads, seed, sizes");
    v("sampling", sampling, "sampling and stop conditions");
    v("chat", chat, "chat template");
    v("output", output, "file of results");
  }
};

/// What plans tell of a tree, as JSON.
nlohmann::ordered_json tree_facts(const TokenTree& tree);

/// Refuses a draft's policy that cannot read trees of drafted tokens.
/// where    the key that errors name
/// what     reads so, with a space after it; empty where `where` says it
/// chains_alone  no tree has branches: any policy reads it
/// errors   kind recipe
void check_reads_trees(const std::string& where, const std::string& what,
                       const recipe::Cache& cache, bool chains_alone = false);

/// The engines and policies that a draft needs in addition to the target's own policy.
struct EngineUse {
  const DraftSection* own = nullptr;    // the target under a second policy, or with some neurons
  const DraftSection* model = nullptr;  // a second model, or a copy of the target
  bool nested = false;                  // own verifies in inner steps, for model or a lookup
  bool tries = false;                   // each draft by itself, for spec.fastest
  bool speculates = true;
};

/// The engines that a run has loaded for it.
struct DraftReaders {
  Reader target;
  std::optional<Reader> own, model;

  /// The model that drafts: the target under its second policy if there is no other.
  Reader drafter() const { return model ? *model : *own; }
};

/// A target and, where a model proposes, its draft: their headers, and how their engines are sized.
class ModelPair {
 public:
  /// cx       as EngineSizer
  /// cache    how the target reads
  /// errors   kind input: a model, vocabularies that differ; kind device; kind recipe: a cache or
  ///          draft.cache that cannot read trees
  ModelPair(const recipe::Model& model, const recipe::Run& run, const EngineUse& use,
            const decode::RunContext& cx, const recipe::Cache& cache = {});

  Device device() const { return sizer_.device(); }
  const decode::Placement& place() const { return sizer_.place(); }
  /// Of weights and activations.
  DType compute() const { return sizer_.compute(); }
  bool speculates() const { return speculates_; }
  /// How the target reads, and the draft; of a nested proposer the small model, if there is one.
  const recipe::Cache& cache() const { return cache_; }
  const recipe::Cache& draft_cache() const { return draft_cache_; }
  /// The second reading of a target that has one.
  const recipe::Cache& self_cache() const { return self_cache_; }
  const recipe::Sparse& self_sparse() const { return self_sparse_; }
  /// Of the target, until it is loaded.
  const decode::ModelFiles& target() const { return target_; }
  decode::ModelFiles& target() { return target_; }
  /// True if a model drafts, the target or another.
  bool has_draft() const { return has_own_ || draft_; }
  /// The name of what drafts: a model's, "self" or "ngram".
  std::string draft_name() const;
  const decode::ModelFiles& draft() const { return draft_ ? *draft_ : target_; }
  /// The target alone is loaded; to be sized anew.
  void leave_draft();
  /// Tokens that a text of both may have.
  /// errors   kind recipe: run.context beyond the models'
  int64_t context() const;

  /// Sizes both engines and plans the run; model.offload says which of the target's layers stay in
  /// host memory.
  /// target, draft  what each engine needs beyond the sequences themselves
  /// draft_copies   of each sequence that the draft's engine holds
  /// add            adds to the plan what the run holds besides the engines, which are sized by then
  /// errors         as savings_of
  void size(decode::SequenceRoom room, const RoundNeeds& target, const RoundNeeds& draft = {},
            const std::function<void(MemoryPlan&)>& add = {}, int draft_copies = 1);
  /// Sizes the target for plain decoding, and decides who attends keys in host memory.
  /// settle   sets what else the engine's spec holds
  /// errors   as size
  void size_plain(const decode::SequenceRoom& room,
                  const std::function<void(decode::EngineSpec&)>& settle);
  /// Keys in host memory of plain decoding; null without such.
  const machine::HostedPlan* hosted() const { return hosted_ ? &*hosted_ : nullptr; }
  const decode::EngineSpec& target_spec() const { return target_spec_; }
  /// Of the whole run; items of the draft's engine are named "draft ...".
  const MemoryPlan& plan() const { return plan_; }

  decode::MemoryLimits limits() const { return sizer_.limits(); }
  /// Text of a plan: the models, the lines of a tool, the memory by device.
  std::string plan_text(const std::string& lines) const;
  /// JSON of the same, with the facts of a tool.
  nlohmann::ordered_json plan_json(const nlohmann::ordered_json& facts) const;

  struct Engines {
    std::unique_ptr<decode::Engine> target, draft;  // draft null if there is no other model
    kv::Reading self_reading = {.keys = 1};

    Reader drafter() const { return readers().drafter(); }
    /// The target under its second policy.
    Reader self() const { return {*target, self_reading}; }
    DraftReaders readers() const {
      return {.target = *target,
              .own = self(),
              .model = draft ? std::optional(Reader(*draft)) : std::nullopt};
    }
  };
  /// Loads both, once.
  /// errors   kind memory, input, interrupted
  Engines load(const decode::RunContext& run);

 private:
  decode::RankPlan rank_plan(const decode::MemoryLimits& limits) const;
  /// How the target reads as a draft: other keys, some of the channels, or both.
  kv::Reading self_reading() const;

  const recipe::Run& run_;
  std::string draft_key_;  // of the section that names the second model
  recipe::Cache cache_, self_cache_, draft_cache_;
  recipe::Sparse self_sparse_;
  bool has_own_, nests_, tries_, speculates_;
  decode::EngineSizer sizer_;
  decode::ModelFiles target_;
  std::optional<decode::ModelFiles> draft_;
  decode::EngineSpec target_spec_, draft_spec_;
  std::optional<machine::HostedPlan> hosted_;
  MemoryPlan plan_;
};

}  // namespace tandem::speculate
