#include "tools/magicdec/named_draft.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "recipe/fields_of.h"
#include "recipe/value_of.h"

namespace tandem::tools {
namespace {

using speculate::DraftKeys;

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
  return (kind == DraftSource::self || kind == DraftSource::model) && keys != DraftKeys::full;
}

speculate::KeyChoice NamedDraft::choice() const {
  return {.keys = keys, .budget = static_cast<double>(budget.value), .page = page};
}

std::string read_item(const recipe::Node& node, const recipe::Folders& models, NamedDraft& out) {
  if (node.kind != recipe::Node::Kind::map)
    return "expected drafts such as {name: s512, kind: self, keys: streaming}, found " +
           node.described();
  NamedDraft read;
  recipe::Field fields = recipe::fields_of(read);
  recipe::read_fields(fields, node, models);
  out = std::move(read);
  return {};
}

std::string yaml_text(const NamedDraft& draft) {
  NamedDraft copy = draft;
  return recipe::flow_text(recipe::fields_of(copy));
}

std::string type_name(const NamedDraft&) { return "drafts"; }

nlohmann::json json_of(const NamedDraft& draft) {
  NamedDraft copy = draft;
  return recipe::to_json(recipe::fields_of(copy));
}

AssumedAlpha assumed_alpha(const NamedDraft& draft, double context) {
  if (draft.alpha) return {*draft.alpha, "given"};
  if (draft.kind == DraftSource::self) {
    if (speculate::keys_read(draft.choice(), context) >= context)
      return {1, "prior: the draft reads all that the target reads"};
    if (const Prior* p = nearest_prior(draft, context))
      return {p->alpha,
              fmt::format("prior: Llama-3.1-8B, PG-19, {:.0f} tokens (MagicDec)", p->context)};
  }
  throw recipe_error("bench.drafts", "no acceptance is known for '{}' at {:.0f} tokens", draft.name,
                     context)
      .hint("give it: {name: " + draft.name + ", alpha: 0.8, ...}");
}

}  // namespace tandem::tools

template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::vector<tandem::tools::NamedDraft>&);
