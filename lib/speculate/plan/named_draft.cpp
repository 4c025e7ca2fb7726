#include "speculate/plan/named_draft.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "recipe/fields_of.h"
#include "recipe/scalar.h"
#include "recipe/value_of.h"

namespace tandem::speculate {
namespace {

/// Acceptance that was published for self-drafts of Llama-3.1-8B on PG-19.
struct Prior {
  recipe::CacheKind keys;
  int budget;
  double context, alpha;
};
// MagicDec's project page (streaming) and tables 2 and 6 (snapkv).
constexpr std::array kPriors = {
    Prior{recipe::CacheKind::streaming, 512, 4000, .84},
    Prior{recipe::CacheKind::streaming, 512, 8000, .83},
    Prior{recipe::CacheKind::streaming, 512, 16000, .82},
    Prior{recipe::CacheKind::streaming, 512, 32000, .81},
    Prior{recipe::CacheKind::streaming, 512, 64000, .79},
    Prior{recipe::CacheKind::streaming, 512, 100000, .79},
    Prior{recipe::CacheKind::snapkv, 2049, 32000, .89},
    Prior{recipe::CacheKind::snapkv, 4097, 64000, .913},
    Prior{recipe::CacheKind::snapkv, 4097, 100000, .895},
};
constexpr double kNearestContext = 1.5;  // a prior is used up to this factor from its context

const Prior* nearest_prior(const KeyChoice& choice, double context) {
  const Prior* nearest = nullptr;
  double least = std::log(kNearestContext);
  for (const Prior& p : kPriors) {
    const double away = std::abs(std::log(context / p.context));
    // Budgets of the reference program are one more than a multiple of 128.
    if (p.keys != choice.keys || std::abs(choice.budget - p.budget) > 1 || away > least) continue;
    nearest = &p;
    least = away;
  }
  return nearest;
}

}  // namespace

recipe::Cache NamedDraft::cache_at(int64_t context) const {
  recipe::Cache sized = cache;
  if (!budget) return sized;
  const std::string kind_name = recipe::yaml_text(cache.kind);
  std::string text;
  switch (cache.kind) {
    case recipe::CacheKind::streaming:
      text = fmt::format("recent: {}", budget->value - cache.sinks.value);
      break;
    case recipe::CacheKind::quest:
    case recipe::CacheKind::topk:
      text = fmt::format("{}: {{ratio: {}}}", kind_name,
                         std::min(1.0, static_cast<double>(budget->value) /
                                           static_cast<double>(std::max<int64_t>(1, context))));
      break;
    default:
      text = fmt::format("{}: {{budget: {}}}", kind_name, budget->value);
  }
  const auto where = std::make_shared<const std::string>("bench.drafts, '" + name + "'");
  recipe::Field fields = recipe::fields_of(sized);
  recipe::read_fields(fields, recipe::parse_yaml(text, {where, {}, 0, 0}));
  return sized;
}

namespace {

/// A nested draft is measured with the two that it is made of.
void check_nested(const NamedDraft& nested, const std::vector<NamedDraft>& drafts,
                  recipe::Problems& p) {
  const auto named = [&](const std::string& name) {
    const auto found = std::ranges::find(drafts, name, &NamedDraft::name);
    return found != drafts.end() ? &*found : nullptr;
  };
  const NamedDraft *self = named(nested.self), *small = named(nested.small);
  const auto found = [](const NamedDraft* d, const std::string& name) {
    return name.empty()   ? std::string("none")
           : d == nullptr ? fmt::format("'{}', which is not in the list", name)
                          : fmt::format("'{}' of kind {}", name, recipe::yaml_text(d->kind));
  };
  if (self == nullptr || !self->shares_cache())
    p.field("drafts",
            "bench.drafts: '{}' is nested: expected a draft of kind self, without weights, as "
            "self, found {}",
            nested.name, found(self, nested.self));
  const bool looks_up = small != nullptr && small->kind == DraftKind::ngram;
  if (!looks_up && (small == nullptr || small->kind != DraftKind::model))
    p.field("drafts",
            "bench.drafts: '{}' is nested: expected a draft of kind model or ngram as small, found "
            "{}",
            nested.name, found(small, nested.small));
  if (looks_up && !nested.tree.empty())
    p.field("drafts",
            "bench.drafts: '{}' has a tree, but '{}' is prompt lookup; leave tree out, or name a "
            "draft of kind model as small",
            nested.name, nested.small);
}

/// Budgets exist for policies that read a number of tokens.
void check_budget(const NamedDraft& draft, recipe::Problems& p) {
  const recipe::Cache& c = draft.cache;
  const auto choice = key_choice(c, 1);
  if (!choice || c.kind == recipe::CacheKind::full) {
    p.field(
        "drafts",
        "bench.drafts: '{}' has a budget, which cache.kind {} does not support; leave it out, or "
        "choose streaming, snapkv, quest, topk, retrieval or verified",
        draft.name, recipe::yaml_text(c.kind));
    return;
  }
  const bool has_recent = c.kind == recipe::CacheKind::quest || c.kind == recipe::CacheKind::topk;
  const bool has_sinks = has_recent || c.kind == recipe::CacheKind::streaming;
  const int64_t least = has_sinks ? c.sinks.value + (has_recent ? c.recent.value : 0) : 0;
  if (draft.budget->value <= least)
    p.field("drafts",
            "bench.drafts: '{}' has a budget of {} tokens, expected more than the {} tokens that "
            "are always read",
            draft.name, draft.budget->value, least);
  else if (!has_sinks)
    try {
      (void)draft.cache_at(1);
    } catch (const Error& e) {
      p.field("drafts", "{}", e.what());
    }
}

}  // namespace

void check_drafts(const std::vector<NamedDraft>& drafts, std::string_view sweep,
                  recipe::Problems& p) {
  if (!sweep.empty() &&
      std::ranges::none_of(drafts, [](const NamedDraft& d) { return d.budget.has_value(); }))
    p.field(sweep, "bench.{}: sets the budget of drafts that have one, but none has; add budget",
            sweep);
  if (drafts.empty()) p.field("drafts", "bench.drafts: expected at least one, found none");
  std::set<std::string> names;
  for (const NamedDraft& d : drafts) {
    if (!names.insert(d.name).second)
      p.field("drafts", "bench.drafts uses the name '{}' twice", d.name);
    if (d.kind == DraftKind::model && d.path.value.empty())
      p.field("drafts",
              "bench.drafts: '{}' is of kind model, which needs path; set it to the model's folder",
              d.name);
    if (d.budget) check_budget(d, p);
    if (d.kind == DraftKind::nested) check_nested(d, drafts, p);
    if (d.kind == DraftKind::automatic)
      p.field(
          "drafts",
          "bench.drafts: '{}' is of kind auto, which only generation supports; list the kinds to "
          "compare",
          d.name);
  }
}

nlohmann::ordered_json draft_json(const NamedDraft& draft) {
  nlohmann::ordered_json j = {{"name", draft.name}, {"kind", recipe::yaml_text(draft.kind)}};
  const recipe::Cache& cache = draft.cache;
  const bool is_named = draft.budget || cache.kind == recipe::CacheKind::full;
  if (draft.proposes_by_model())
    j[is_named ? "keys" : "cache"] =
        is_named ? nlohmann::json(recipe::yaml_text(cache.kind)) : recipe::json_of(cache);
  if (recipe::is_quantized(draft.weights)) j["weights"] = recipe::yaml_text(draft.weights);
  if (draft.sparse.any()) {
    recipe::Sparse sparse = draft.sparse;
    j["sparse"] = recipe::to_json(recipe::fields_of(sparse));
  }
  if (draft.kind == DraftKind::nested) j["self"] = draft.self, j["small"] = draft.small;
  if (draft.budget) {
    j["budget_tokens"] = draft.budget->value;
    if (cache.kind == recipe::CacheKind::snapkv) {
      j["scale"] = recipe::yaml_text(cache.snapkv.scale);
      j["refresh"] = recipe::json_of(cache.snapkv.refresh);
    }
    if (cache.kind == recipe::CacheKind::retrieval) {
      j["chunk"] = cache.retrieval.chunk;
      j["refresh"] = recipe::json_of(cache.retrieval.rebuild);
    }
  }
  if (!draft.tree.empty())
    j["tree"] = draft.tree.automatic ? "auto" : draft.tree.path.filename().string();
  return j;
}

AssumedAlpha assumed_alpha(const NamedDraft& draft, double context) {
  if (draft.alpha) return {*draft.alpha, "given"};
  const auto choice = key_choice(draft.cache_at(static_cast<int64_t>(context)), context);
  if (draft.shares_cache() && choice && !draft.sparse.any()) {
    if (keys_read(*choice, context) >= context)
      return {1, "prior: the draft reads as much as the target"};
    if (const Prior* p = nearest_prior(*choice, context))
      return {p->alpha,
              fmt::format("prior: Llama-3.1-8B, PG-19, {:.0f} tokens (MagicDec)", p->context)};
  }
  throw recipe_error("bench.drafts", "the acceptance rate of '{}' at {:.0f} tokens is not known",
                     draft.name, context)
      .hint("set it: {name: " + draft.name + ", alpha: 0.8, ...}");
}

}  // namespace tandem::speculate

template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::vector<tandem::speculate::NamedDraft>&);
