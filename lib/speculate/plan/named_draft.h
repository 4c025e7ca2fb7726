#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "speculate/draft/draft_kind.h"
#include "speculate/plan/draft_keys.h"
#include "speculate/plan/model_pair.h"

namespace tandem::speculate {

/// An item of bench.drafts: `{name: s512, kind: self, cache: {kind: streaming}, budget: 512}`.
struct NamedDraft : DraftSection {
  static constexpr std::string_view kItems = "drafts",
                                    kExample = "{name: snapkv, kind: self, cache: {kind: snapkv}}";
  std::string name;
  DraftKind kind = DraftKind::self;
  std::optional<recipe::TokenCount> budget;
  std::optional<double> alpha;
  std::filesystem::path timing;
  recipe::AutoPath tree;
  std::string self, small;

  NamedDraft() { key = "bench.drafts"; }
  template <class V>
  void fields(V& v) {
    v("kind", kind,
      "source of draft tokens: self (model.path under cache or with some FFN neurons), model "
      "(path), ngram (prompt lookup), nested (two other drafts) or none (plain decoding)");
    v("name", name, recipe::Limits{.required = true}, "name of the draft in tables");
    tagged_fields(v, "model|self");
    v("budget", budget, recipe::at_least(1).unit("tokens").of("model|self"),
      "KV budget per sequence at any context, in place of the sizes in cache. null = as in cache");
    v("alpha", alpha, recipe::above(0).up_to(1).of("model|self|ngram"),
      "acceptance rate of draft tokens, for calculations and bench.simulate. null = a published "
      "value");
    v("timing", timing, recipe::optional_input().of("model|self"),
      "timing table of this target and draft (sequoia-timing/1), empty = roofline estimates");
    v("tree", tree, recipe::optional_input().of("model|self|nested"),
      "token tree (sequoia-tree/1). auto = the best trees of accept.path for tree.sizes and "
      "tree.levels. Empty = linear drafts of spec.gamma");
    v("self", self, recipe::of_kind("nested"),
      "name of the draft of kind self that verifies in inner steps");
    v("small", small, recipe::of_kind("nested"),
      "name of the draft of kind model or ngram that drafts in inner steps");
  }

  bool proposes_by_model() const { return kind == DraftKind::self || kind == DraftKind::model; }
  /// True for a draft that reads the target's own cache.
  bool shares_cache() const { return kind == DraftKind::self && !copies_target(); }
  /// Returns the cache of a draft of kind self or model for sequences of that many tokens.
  recipe::Cache cache_at(int64_t context) const;
};

/// Refuses drafts of one name or without what their kind needs.
/// sweep    the key that sweeps their budgets, if it is set
void check_drafts(const std::vector<NamedDraft>& drafts, std::string_view sweep,
                  recipe::Problems& p);

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
