#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "recipe/cache_section.h"
#include "recipe/fields.h"
#include "recipe/sparse_section.h"
#include "speculate/plan/draft_keys.h"
#include "tools/speculation/draft_kind.h"

namespace tandem::tools {

/// An item of bench.drafts: `{name: s512, kind: self, keys: streaming, budget: 512}`.
struct NamedDraft {
  static constexpr std::string_view kItems = "drafts",
                                    kExample = "{name: s512, kind: self, keys: streaming}";
  std::string name;
  DraftKind kind = DraftKind::self;
  recipe::ModelName path;
  speculate::DraftKeys keys = speculate::DraftKeys::streaming;
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
    v("name", name, recipe::Limits{.required = true}, "what tables call it");
    v("kind", kind,
      "self: model.path under keys; model: path; nested: rounds within a round, in which small "
      "proposes and self verifies; ngram: prompt lookup; none: plain decoding");
    v("path", path, "kind model: the model that proposes");
    v("keys", keys, "what a draft step of self or model reads");
    v("budget", budget, at_least(1).unit("tokens"), "read of each sequence, unless keys is full");
    v("sinks", sinks, at_least(0).unit("tokens"), "of the budget: the first tokens");
    v("window", window, at_least(1).unit("tokens"), "of the budget: the last tokens, at least");
    v("refresh", refresh, at_least(0).unit("tokens"),
      "keys snapkv and retrieval: chosen again after as many new tokens; 0 = never");
    v("scale", scale, "keys snapkv: scores of the choice divided by sqrt(head_dim), or not");
    v("page", page, at_least(1).unit("tokens"), "keys quest and retrieval: chosen as one");
    v("ngram", ngram, recipe::between(1, 64).unit("tokens"),
      "kind ngram: tokens that must agree, at most");
    v("alpha", alpha, recipe::above(0).up_to(1),
      "probability that a drafted token is accepted, for predictions and bench.simulate; null = a "
      "published prior");
    v("timing", timing, recipe::optional_input(),
      "times of this target and draft (sequoia-timing/1); empty = by the roofline");
    v("tree", tree, recipe::optional_input(),
      "what it proposes: a tree (sequoia-tree/1); auto = the best trees of accept.path for "
      "tree.sizes "
      "and tree.levels; empty = chains of spec.gamma");
    v("cache", policy,
      "what a draft step reads, in place of keys and its sizes: {kind: hybrid, ...}, any policy "
      "that "
      "reads trees; null = as keys says");
    v("sparse", sparse, "kind self: which FFN channels a draft step reads");
    v("self", self, "kind nested: name of the draft of kind self as which rounds within verify");
    v("small", small, "kind nested: name of the draft of kind model or ngram that proposes there");
  }

  bool proposes_by_model() const { return kind == DraftKind::self || kind == DraftKind::model; }
  /// Whether it reads a chosen part of the text.
  bool bounded() const;
  speculate::KeyChoice choice() const;
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

}  // namespace tandem::tools
