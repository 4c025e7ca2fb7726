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
  DraftKeys keys;
  int budget;
  double context, alpha;
};
// MagicDec's project page (streaming) and tables 2 and 6 (snapkv).
constexpr std::array kPriors = {
    Prior{DraftKeys::streaming, 512, 4000, .84},  Prior{DraftKeys::streaming, 512, 8000, .83},
    Prior{DraftKeys::streaming, 512, 16000, .82}, Prior{DraftKeys::streaming, 512, 32000, .81},
    Prior{DraftKeys::streaming, 512, 64000, .79}, Prior{DraftKeys::streaming, 512, 100000, .79},
    Prior{DraftKeys::snapkv, 2049, 32000, .89},   Prior{DraftKeys::snapkv, 4097, 64000, .913},
    Prior{DraftKeys::snapkv, 4097, 100000, .895},
};
constexpr double kNearestContext = 1.5;  // a prior is used up to this factor from its context

const Prior* nearest_prior(const NamedDraft& draft, double context) {
  const Prior* nearest = nullptr;
  double least = std::log(kNearestContext);
  for (const Prior& p : kPriors) {
    const double away = std::abs(std::log(context / p.context));
    // Budgets of the reference program are one more than a multiple of 128.
    if (p.keys != draft.keys || std::abs(draft.budget.value - p.budget) > 1 || away > least)
      continue;
    nearest = &p;
    least = away;
  }
  return nearest;
}

}  // namespace

bool NamedDraft::bounded() const {
  return proposes_by_model() && !policy && keys != DraftKeys::full;
}

KeyChoice NamedDraft::choice() const {
  return {.keys = keys, .budget = static_cast<double>(budget.value), .page = page};
}

recipe::Cache NamedDraft::cache(int64_t context) const {
  if (policy) return *policy;
  const auto kind_name = enum_names(keys)[static_cast<size_t>(keys)];
  const std::string where = "bench.drafts, '" + name + "'";
  std::string text = fmt::format("kind: {}\nsinks: {}\n", kind_name, sinks.value);
  const double share = std::min(
      1.0, static_cast<double>(budget.value) / static_cast<double>(std::max<int64_t>(1, context)));
  const std::string again = refresh.value > 0 ? std::to_string(refresh.value) : "never";
  switch (keys) {
    case DraftKeys::streaming:
      text += fmt::format("recent: {}\n", budget.value - sinks.value);
      break;
    case DraftKeys::quest:
      text += fmt::format("recent: {}\ndense_layers: []\nquest: {{page: {}, ratio: {}}}\n",
                          window.value, page, share);
      break;
    case DraftKeys::topk:
      text +=
          fmt::format("recent: {}\ndense_layers: []\ntopk: {{ratio: {}}}\n", window.value, share);
      break;
    case DraftKeys::full:
      break;
    case DraftKeys::snapkv:
      text += fmt::format("snapkv: {{budget: {}, window: {}, scale: {}, refresh: {}}}\n",
                          budget.value, window.value, recipe::yaml_text(scale), again);
      break;
    case DraftKeys::retrieval:
      text += fmt::format("retrieval: {{budget: {}, chunk: {}, rebuild: {}}}\n", budget.value, page,
                          again);
      break;
    default:
      text +=
          fmt::format("{}: {{budget: {}, window: {}}}\n", kind_name, budget.value, window.value);
  }
  recipe::Cache cache;
  recipe::Field fields = recipe::fields_of(cache);
  recipe::read_fields(
      fields, recipe::parse_yaml(text, {std::make_shared<const std::string>(where), {}, 0, 0}));
  return cache;
}

namespace {

/// A nested draft is measured with the two that it is made of.
void check_nested(const NamedDraft& nested, const std::vector<NamedDraft>& drafts,
                  recipe::Problems& p) {
  const auto is_there = [&](const std::string& name, DraftKind kind) {
    return std::ranges::any_of(
        drafts, [&](const NamedDraft& d) { return d.name == name && d.kind == kind; });
  };
  if (!is_there(nested.self, DraftKind::self))
    p.field("drafts",
            "bench.drafts: '{}' is nested: expected a draft of kind self as self, found '{}'",
            nested.name, nested.self);
  const bool looks_up = is_there(nested.small, DraftKind::ngram);
  if (!looks_up && !is_there(nested.small, DraftKind::model))
    p.field("drafts",
            "bench.drafts: '{}' is nested: expected a draft of kind model or ngram as small, found "
            "'{}'",
            nested.name, nested.small);
  if (looks_up && !nested.tree.empty())
    p.field("drafts",
            "bench.drafts: '{}' has a tree, but '{}' is prompt lookup; leave tree out, or name a "
            "draft of kind model as small",
            nested.name, nested.small);
}

}  // namespace

void check_drafts(const std::vector<NamedDraft>& drafts, recipe::Problems& p) {
  if (drafts.empty()) p.field("drafts", "bench.drafts: expected at least one, found none");
  std::set<std::string> names;
  for (const NamedDraft& d : drafts) {
    if (!names.insert(d.name).second)
      p.field("drafts", "bench.drafts uses the name '{}' twice", d.name);
    if (d.kind == DraftKind::model && d.path.value.empty())
      p.field("drafts",
              "bench.drafts: '{}' is of kind model, which needs path; set it to the model's folder",
              d.name);
    if (d.weights != recipe::WeightType::automatic && d.kind != DraftKind::model)
      p.field("drafts", "bench.drafts: '{}' has weights, which need kind model; leave weights out",
              d.name);
    else if (d.weights != recipe::WeightType::automatic && !recipe::is_quantized(d.weights))
      p.field("drafts", "bench.drafts: '{}' has weights {}, expected int8, int4 or fp8", d.name,
              recipe::yaml_text(d.weights));
    if (d.policy && d.policy->is_hosted())
      p.field("drafts",
              "bench.drafts: '{}' has cache.place host, which is not supported for drafts; leave "
              "it out",
              d.name);
    if (d.bounded() && d.budget.value <= d.sinks.value + d.window.value)
      p.field("drafts",
              "bench.drafts: '{}' has a budget of {} tokens, expected more than its {} sinks and "
              "window of {}",
              d.name, d.budget.value, d.sinks.value, d.window.value);
    if (d.sparse.any() && d.kind != DraftKind::self)
      p.field("drafts", "bench.drafts: '{}' has sparse, which needs kind self; leave sparse out",
              d.name);
    if (d.kind == DraftKind::nested) check_nested(d, drafts, p);
    if (d.kind == DraftKind::automatic)
      p.field("drafts",
              "bench.drafts: '{}' is of kind auto, which only triforce-generate supports; list the "
              "kinds to compare",
              d.name);
    if (!d.tree.empty() && !d.proposes_by_model() && d.kind != DraftKind::nested)
      p.field("drafts",
              "bench.drafts: '{}' has a tree, which needs kind model or self; change the kind, or "
              "leave tree out",
              d.name);
  }
}

nlohmann::ordered_json draft_json(const NamedDraft& draft) {
  nlohmann::ordered_json j = {{"name", draft.name}, {"kind", recipe::yaml_text(draft.kind)}};
  if (draft.policy)
    j["cache"] = recipe::json_of(*draft.policy);
  else if (draft.proposes_by_model())
    j["keys"] = recipe::yaml_text(draft.keys);
  if (recipe::is_quantized(draft.weights)) j["weights"] = recipe::yaml_text(draft.weights);
  if (draft.sparse.any()) {
    recipe::Sparse sparse = draft.sparse;
    j["sparse"] = recipe::to_json(recipe::fields_of(sparse));
  }
  if (draft.kind == DraftKind::nested) j["self"] = draft.self, j["small"] = draft.small;
  if (draft.bounded()) j["budget_tokens"] = draft.budget.value;
  if (draft.bounded() && draft.keys == DraftKeys::snapkv)
    j["scale"] = recipe::yaml_text(draft.scale);
  if (draft.bounded() && draft.keys == DraftKeys::retrieval) j["chunk"] = draft.page;
  if (draft.bounded() && (draft.keys == DraftKeys::snapkv || draft.keys == DraftKeys::retrieval)) {
    j["refresh"] = draft.refresh.value > 0 ? nlohmann::ordered_json(draft.refresh.value) : "never";
  }
  if (!draft.tree.empty())
    j["tree"] = draft.tree.automatic ? "auto" : draft.tree.path.filename().string();
  return j;
}

AssumedAlpha assumed_alpha(const NamedDraft& draft, double context) {
  if (draft.alpha) return {*draft.alpha, "given"};
  if (draft.kind == DraftKind::self && !draft.policy && !draft.sparse.any()) {
    if (keys_read(draft.choice(), context) >= context)
      return {1, "prior: the draft reads as much as the target"};
    if (const Prior* p = nearest_prior(draft, context))
      return {p->alpha,
              fmt::format("prior: Llama-3.1-8B, PG-19, {:.0f} tokens (MagicDec)", p->context)};
  }
  throw recipe_error("bench.drafts", "the acceptance rate of '{}' at {:.0f} tokens is not known",
                     draft.name, context)
      .hint("set it: {name: " + draft.name + ", alpha: 0.8, ...}");
}

}  // namespace tandem::speculate

template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::optional<tandem::recipe::Cache>&);
template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::vector<tandem::speculate::NamedDraft>&);
