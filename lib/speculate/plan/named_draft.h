#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "recipe/cache_section.h"
#include "recipe/fields.h"
#include "recipe/sections.h"
#include "recipe/sparse_section.h"
#include "speculate/draft/draft_kind.h"
#include "speculate/plan/draft_keys.h"

namespace tandem::speculate {

/// An item of bench.drafts: `{name: s512, kind: self, keys: streaming, budget: 512}`.
struct NamedDraft {
  static constexpr std::string_view kItems = "drafts",
                                    kExample = "{name: s512, kind: self, keys: streaming}";
  std::string name;
  DraftKind kind = DraftKind::self;
  recipe::ModelName path;
  recipe::WeightType weights = recipe::WeightType::automatic;
  DraftKeys keys = DraftKeys::streaming;
  recipe::TokenCount budget{512}, sinks{4}, window{32}, refresh{0};
  recipe::SnapScale scale = recipe::SnapScale::on;
  int page = 16, ngram = 3;
  std::optional<double> alpha;
  std::filesystem::path timing;
  recipe::AutoPath tree;
  std::optional<recipe::Cache> policy;
  recipe::Sparse sparse;
  std::string self, small;

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    v("name", name, recipe::Limits{.required = true}, "name of the draft in tables");
    v("kind", kind,
      "source of draft tokens: self (model.path under keys), model (path), ngram (prompt lookup), "
      "nested (small drafts for self), or none (plain decoding)");
    v("path", path, "draft model, only with kind: model");
    v("weights", weights,
      "weights of the draft model, quantized at load time: int8, int4 or fp8. auto = as stored. "
      "Only with kind: model, whose path may be the target's");
    v("keys", keys, "attention policy of a draft step, only with kind: self or model");
    v("budget", budget, at_least(1).unit("tokens"),
      "KV budget per sequence, not used with keys: full");
    v("sinks", sinks, at_least(0).unit("tokens"),
      "attention sinks: first tokens, part of the budget");
    v("window", window, at_least(1).unit("tokens"),
      "minimum number of most recent tokens, part of the budget");
    v("refresh", refresh, at_least(0).unit("tokens"),
      "new tokens after which tokens are selected again, 0 = never. Only with keys: snapkv or "
      "retrieval");
    v("scale", scale,
      "scaling of the selection scores by 1 / sqrt(head_dim), only with keys: snapkv");
    v("page", page, at_least(1).unit("tokens"),
      "page or chunk size, only with keys: quest or retrieval");
    v("ngram", ngram, recipe::between(1, 64).unit("tokens"),
      "longest n-gram to match, only with kind: ngram");
    v("alpha", alpha, recipe::above(0).up_to(1),
      "acceptance rate of draft tokens, for calculations and bench.simulate. null = a published "
      "value");
    v("timing", timing, recipe::optional_input(),
      "timing table of this target and draft (sequoia-timing/1), empty = roofline estimates");
    v("tree", tree, recipe::optional_input(),
      "token tree (sequoia-tree/1). auto = the best trees of accept.path for tree.sizes and "
      "tree.levels. Empty = linear drafts of spec.gamma");
    v("cache", policy,
      "attention policy in place of keys and its sizes: {kind: hybrid, ...}. Policies without "
      "token trees are not supported. null = as in keys");
    v("sparse", sparse, "FFN neurons that a draft step computes, only with kind: self");
    v("self", self,
      "name of the draft of kind self that verifies in inner steps, only with kind: nested");
    v("small", small,
      "name of the draft of kind model or ngram that drafts in inner steps, only with kind: "
      "nested");
  }

  bool proposes_by_model() const { return kind == DraftKind::self || kind == DraftKind::model; }
  /// Whether it reads a chosen part of the text.
  bool bounded() const;
  KeyChoice choice() const;
  /// How a draft of kind self or model reads sequences of that many tokens, as cache.kind has it.
  recipe::Cache cache(int64_t context) const;
};

/// Refuses drafts of one name or without what their kind needs.
void check_drafts(const std::vector<NamedDraft>& drafts, recipe::Problems& p);

/// What records say of it.
nlohmann::ordered_json draft_json(const NamedDraft& draft);

/// Acceptance that a prediction starts from. Never a measurement of this run.
struct AssumedAlpha {
  double value = 0;
  std::string source;  // "given", or where the prior was published
};

/// The draft's alpha, else a prior: 1 for a draft that reads all that the target reads; the paper's
/// for the same keys, budget and nearly the same context.
/// errors   kind recipe: there is none
AssumedAlpha assumed_alpha(const NamedDraft& draft, double context);

}  // namespace tandem::speculate
