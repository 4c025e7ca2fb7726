#include "speculate/plan/proposals.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kv/policy.h"
#include "model/spec/roles.h"
#include "model/spec/work.h"
#include "recipe/fields_of.h"
#include "speculate/draft/lookup_index.h"
#include "speculate/tree/tree_file.h"

namespace tandem::speculate {

void GenerateRecipe::check(recipe::Problems& p) const {
  if (output.state == "-") p.field("output.state", "output.state: expected a file, found -");
  if (!output.state.empty() && output.state == output.path)
    p.field("output.state", "output.state: expected another file than output.path");
  if (spec.draft == DraftKind::none && !spec.fastest)
    return refuse_drafts(*this, "spec.draft is none; set it, or", p);
  check_speculation(p);
}

void GenerateRecipe::check_speculation(recipe::Problems& p) const {
  if (spec.fastest) check_fastest(p);
  if (!model.state.empty() && (spec.fastest || tree.measures_acceptance()))
    p.field("model.state",
            "model.state: spec.fastest and tree.path auto measure on a full prompt; leave "
            "model.state out, or choose the draft and the tree");
  if (spec.draft == DraftKind::model && draft.path.value.empty() && !spec.fastest) {
    draft.require(p);
    p.hint(
        "set -s draft.path=SMALL_MODEL; without a second model, set -s spec.draft=ngram, or -s "
        "spec.draft=self -s draft.cache.kind=snapkv");
  }
  if (draft.weights != recipe::WeightType::automatic && spec.draft != DraftKind::self &&
      spec.draft != DraftKind::model)
    p.field("draft.weights", "draft.weights: needs spec.draft self or model, found {}",
            recipe::yaml_text(spec.draft));
  if (draft2.weights != recipe::WeightType::automatic)
    p.field("draft2.weights", "draft2.weights: is not supported; leave it out");
  const bool is_nested = spec.nests();
  check_within(p);
  check_beams(p);
  if (is_nested && tree.path.automatic)
    p.field("tree.path",
            "tree.path: auto needs spec.draft model or self, found nested; name a tree for the "
            "inner steps, or leave it out");
  constexpr int kMostGamma = 256;
  if (spec.gamma.values.size() + (spec.gamma.has_auto ? 1 : 0) > 1)
    p.field(
        "spec.gamma",
        "spec.gamma: expected one number or auto, found several; magicdec-bench compares several");
  else if (!spec.gamma.automatic() && spec.gamma.values.front() > kMostGamma)
    p.field("spec.gamma", "spec.gamma: {} is out of range, expected 1 .. {} tokens or auto",
            spec.gamma.values.front(), kMostGamma);
  if (spec.draft == DraftKind::self && !draft.path.value.empty())
    p.field("draft.path",
            "draft.path: spec.draft is self, which drafts with model.path; leave draft.path out, "
            "or set spec.draft=model");
  if (is_nested && !draft.path.value.empty())
    p.field("draft.path",
            "draft.path: spec.draft is {}, which takes its small model from draft2.path; leave "
            "draft.path out",
            recipe::yaml_text(spec.draft));
  check_rule_within(spec.verify_within, p);
  const bool draws = spec.draft != DraftKind::ngram;
  if (!draws && weighs_draws(spec.verify))
    p.field("spec.verify",
            "spec.verify: this rule needs sampled draft tokens, but prompt lookup does not sample; "
            "set match, auto or a rule with a floor");
  if (draws && spec.verify == VerifyChoice::block && tree.path.automatic)
    p.field("spec.verify",
            "spec.verify: block needs a linear draft; set tree.path to empty and leave tree.replay "
            "out, or set traversal");
  if (draws && spec.gamma.automatic() && !tree.path.empty())
    p.field("spec.gamma",
            "spec.gamma: auto needs a linear draft, but tree.path names a tree; set tree.path to "
            "empty, or leave spec.gamma out");
  if (chooses_gamma() && !(tree.accept.empty() && tree.replay.empty()))
    p.field("spec.gamma",
            "spec.gamma: auto does not use tree.accept or tree.replay; leave both out, or set "
            "tree.path=auto");
  if (!tree.accept.empty() && !tree.replay.empty())
    p.field("tree.replay",
            "tree.replay: cannot be combined with tree.accept; leave one of them out");
  if (!tree.replay.empty() && !draws)
    p.field("tree.replay",
            "tree.replay: prompt lookup does not propose trees; leave tree.replay out");
  else if (!tree.replay.empty() && (spec.verify == VerifyChoice::match || is_lossy(spec.verify)))
    p.field("tree.replay",
            "tree.replay: needs an acceptance rule for sampled tokens, found match or a lossy "
            "rule; set spec.verify=auto, or leave tree.replay out");
  if (output.top_logprobs > 0)
    p.field("output.top_logprobs",
            "output.top_logprobs: is not supported with speculation; leave it out, or set "
            "spec.draft=none");
}

void GenerateRecipe::refuse_drafts(const GenerateRecipe& own, const char* why,
                                   recipe::Problems& p) {
  GenerateRecipe set = own, defaults;
  const recipe::Field fields = recipe::fields_of(set), other = recipe::fields_of(defaults);
  const std::vector<recipe::Key> keys = recipe::keys_of(fields), values = recipe::keys_of(other);
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string section = keys[i].name.substr(0, keys[i].name.find('.'));
    if (section != "spec" && section != "draft" && section != "draft2" && section != "tree")
      continue;
    if (keys[i].field->value->yaml() != values[i].field->value->yaml())
      p.field(keys[i].name, "{0}: {1} leave {0} out", keys[i].name, why);
  }
}

void GenerateRecipe::check_within(recipe::Problems& p) const {
  if (!spec.nests() && spec.within != WithinKind::model)
    p.field("spec.within",
            "spec.within: needs hierarchical speculation; set spec.draft=nested, or "
            "spec.draft=ngram for prompt lookup only");
  if (spec.within == WithinKind::model && spec.nests() == draft2.path.value.empty())
    p.field("draft2.path",
            "draft2.path: is the small model for spec.draft nested or auto; set both or neither");
  if (spec.within == WithinKind::model) return;
  if (!draft2.path.value.empty())
    p.field("draft2.path",
            "draft2.path: spec.within is ngram, which needs no small model; leave draft2.path out, "
            "or set spec.within=model");
  if (spec.draft == DraftKind::automatic)
    p.field(
        "spec.within",
        "spec.within: spec.draft auto needs a model; set spec.within=model, or spec.draft=nested");
  if (!tree.path.empty() || !tree.accept.empty() || !tree.replay.empty())
    p.field("tree.path",
            "tree.path: spec.within is ngram, which does not propose trees; leave tree.path, "
            "tree.accept and tree.replay out");
  if (weighs_draws(spec.verify_within))
    p.field("spec.verify_within",
            "spec.verify_within: this rule needs sampled draft tokens, but prompt lookup does not "
            "sample; set match or auto");
}

void GenerateRecipe::check_beams(recipe::Problems& p) const {
  if (spec.width == 1) return;
  if (spec.draft != DraftKind::model && spec.draft != DraftKind::self)
    p.field("spec.width",
            "spec.width: beams need spec.draft self or model, found {}; set one of them, or "
            "spec.width=1",
            recipe::yaml_text(spec.draft));
  if (const double t = sampling.temperature.value_or(0); t > 0)
    p.field("spec.width",
            "spec.width: {} beams do not support sampling, but sampling.temperature is {}; set "
            "sampling.temperature=0 or spec.width=1",
            spec.width, t);
  if (weighs_draws(spec.verify))
    p.field("spec.verify",
            "spec.verify: {} needs sampled draft tokens, but beams do not sample; set match, auto, "
            "a rule with a floor, or spec.width=1",
            recipe::yaml_text(spec.verify));
  if (!tree.path.empty() || !tree.accept.empty() || !tree.replay.empty())
    p.field("tree.path",
            "tree.path: spec.width defines the tree, {} beams of spec.gamma; leave tree.path, "
            "tree.accept and tree.replay out, or set spec.width=1",
            spec.width);
  if (spec.gamma.automatic())
    p.field("spec.gamma",
            "spec.gamma: auto does not support spec.width {}; set a number, or spec.width=1",
            spec.width);
  else if (const int nodes = 1 + spec.width * spec.gamma.values.front(); nodes > kv::kMaxTreeRows)
    p.field("spec.width",
            "spec.width: {} beams of {} tokens make {} nodes with the root, but at most {} are "
            "supported; lower spec.width or spec.gamma",
            spec.width, spec.gamma.values.front(), nodes, kv::kMaxTreeRows);
}

void GenerateRecipe::check_fastest(recipe::Problems& p) const {
  GenerateRecipe own = *this;
  own.spec.fastest = false;
  own.draft.path = {};
  own.tree.path = {};
  if (spec.draft == DraftKind::model) own.spec.draft = DraftKind::none;  // a program's default
  refuse_drafts(own, "spec.fastest chooses it;", p);
  if (tree.path.automatic || (!tree.path.empty() && draft.path.value.empty()))
    p.field("tree.path",
            "tree.path: spec.fastest needs a file and a draft.path for its tree; set both, or "
            "leave tree.path out");
}

int most_nodes(const DraftTreeSection& tree, int batch) {
  return std::max(2, tree.max_nodes / batch);
}

Proposer proposer_of(const GenerateRecipe& recipe) {
  const SpecSection& spec = recipe.spec;
  if (spec.fastest) return Proposer::any;
  switch (spec.draft) {
    case DraftKind::model:
      return Proposer::other_model;
    case DraftKind::self:
      return recipe.draft.copies_target() ? Proposer::other_model : Proposer::target;
    case DraftKind::nested:
    case DraftKind::automatic:
      return spec.looks_up_within() ? Proposer::nested_lookup : Proposer::nested;
    case DraftKind::none:
      return Proposer::plain;
    case DraftKind::ngram:
      break;
  }
  return Proposer::none;
}

std::optional<TokenTree> given_tree(const GenerateRecipe& recipe) {
  const bool draws = recipe.spec.draft != DraftKind::ngram;
  if (recipe.spec.width > 1) return beam_tree(recipe.spec.width, recipe.most_gamma());
  if (!draws || recipe.tree.path.empty()) return chain_tree(recipe.most_gamma() + 1);
  if (recipe.tree.path.automatic) return {};
  TokenTree tree = read_tree(recipe.tree.path.path).tree;
  if (tree.size() > kv::kMaxTreeRows)
    throw input_error(recipe.tree.path.path.string(), "has {} nodes, but at most {} are supported",
                      tree.size(), kv::kMaxTreeRows);
  const SpecSection& spec = recipe.spec;
  const auto rule = spec.nests() ? spec.verify_within : spec.verify;
  (void)rule_for(rule, draws, tree, false);  // before models are loaded
  return tree;
}

TreeRoom room_of(const GenerateRecipe& recipe, const std::optional<TokenTree>& given, int batch,
                 bool measures) {
  if (given && !measures) return TreeRoom::of(*given);
  const auto any = TreeRoom::any(most_nodes(recipe.tree, batch));
  return given ? any.with(TreeRoom::of(*given)) : any;
}

void check_gamma(const GenerateRecipe& recipe, int64_t context, const decode::PromptSet& prompts) {
  const bool is_chain = recipe.spec.draft == DraftKind::ngram || recipe.tree.path.empty();
  const bool is_nested = recipe.spec.nests();
  size_t longest = 0;
  for (const auto& ids : prompts.sequences) longest = std::max(longest, ids.size());
  const int64_t room = context - static_cast<int64_t>(longest);
  const int gamma = is_nested ? recipe.spec.gamma2 : recipe.most_gamma();
  if (is_nested ? gamma < room : !is_chain || recipe.spec.gamma.automatic() || gamma < room) return;
  const std::string key = is_nested ? "spec.gamma2" : "spec.gamma";
  throw recipe_error(key, "is {} tokens, but the prompt leaves only {} of a context of {}", gamma,
                     room, context)
      .hint(fmt::format("lower {}, raise run.context, or shorten the prompt", key));
}

void refuse_full_draft(const GenerateRecipe& recipe, const ModelPair& pair) {
  constexpr const char* kForce = "spec.force=true runs it anyway";
  const DraftKind draft = recipe.spec.draft;
  if (draft == DraftKind::self && recipe.draft.copies_target()) {
    const auto bytes = [&](const decode::ModelFiles& files) {
      return model::step_bytes(files.config, pair.compute());
    };
    if (bytes(pair.draft()) < bytes(pair.target())) return;
    throw recipe_error("draft.weights",
                       "is {}, but the copy reads as many bytes as the target and cannot be faster",
                       recipe::yaml_text(recipe.draft.weights))
        .hint(fmt::format("use a model whose weights have more bits; {}", kForce));
  }
  const recipe::Cache& cache = recipe.draft.cache;
  const auto json = [](recipe::Cache c) { return recipe::to_json(recipe::fields_of(c)); };
  const bool is_self = draft == DraftKind::self;
  const bool reads_all = kv::needs_of(cache).reads_all || json(cache) == json(recipe.cache);
  if ((is_self || draft == DraftKind::nested) && !recipe.draft.sparse.any() && reads_all)
    throw recipe_error("draft.cache.kind",
                       "is {}, so the draft reads as much as the target and cannot be faster",
                       recipe::yaml_text(cache.kind))
        .hint(fmt::format("reduce it with -s draft.cache.kind=snapkv{}; {}",
                          is_self ? ", or -s draft.sparse.kind=cats" : "", kForce));
  if (draft != DraftKind::model && (draft != DraftKind::nested || recipe.spec.looks_up_within()))
    return;
  if (&pair.draft() == &pair.target()) return;  // none is given to spec.fastest
  const int64_t small = model::n_params(pair.draft().config),
                large = model::n_params(pair.target().config);
  if (small < large) return;
  throw recipe_error(draft == DraftKind::nested ? "draft2.path" : "draft.path",
                     "{} has {:.3g} parameters and {} has {:.3g}, but a draft as large as the "
                     "target cannot be faster",
                     pair.draft().name, static_cast<double>(small), pair.target().name,
                     static_cast<double>(large))
      .hint(fmt::format("name a smaller model; {}", kForce));
}

std::string remedy_of_loss(const GenerateRecipe& recipe) {
  const SpecSection& spec = recipe.spec;
  const bool may_choose = (spec.draft == DraftKind::model || spec.draft == DraftKind::self) &&
                          spec.width == 1 && recipe.tree.path.empty() && !spec.gamma.automatic();
  return fmt::format("{}try another draft, or use pig-generate",
                     may_choose ? "set spec.gamma=auto, " : "");
}

void size_for(ModelPair& pair, const decode::SequenceRoom& room, const TreeRoom& tree,
              const SpecSection& spec) {
  const int batch = room.sequences(), vocab = pair.target().config.vocab_size;
  if (spec.draft == DraftKind::nested && pair.has_draft())
    return pair.size(room, nested_needs(tree, spec.nested(), batch, vocab),
                     nested_draft_needs(tree, spec.nested(), batch), [&](MemoryPlan& plan) {
                       plan_nested_rounds(tree, spec.nested(), pair.target_spec(),
                                          pair.target().config, !spec.looks_up_within(), plan);
                     });
  const int64_t texts = room.prefix ? room.longest * batch : room.total;
  pair.size(room, target_needs(tree, batch, vocab), draft_needs(tree, batch),
            [&](MemoryPlan& plan) {
              if (spec.draft == DraftKind::ngram || spec.fastest)
                plan.add("texts/indexes of n-grams",
                         static_cast<size_t>(texts) * LookupIndex::kTokenBytes);
              plan_rounds(tree, pair.target_spec(), pair.target().config, pair.has_draft(), plan,
                          spec.beams());
            });
}

std::unique_ptr<Rounds> make_rounds(const GenerateRecipe& recipe, const ModelPair::Engines& engines,
                                    const TokenTree& tree, RoundOptions options,
                                    WithinOptions within) {
  const SpecSection& spec = recipe.spec;
  options.verify = spec.verify;
  options.floor = spec.floors.rule();
  within.verify = spec.verify_within;
  if (spec.draft == DraftKind::ngram)
    return lookup_rounds(*engines.target, spec.ngram, recipe.most_gamma(), std::move(options));
  if (spec.looks_up_within())
    return nested_lookup_rounds(*engines.target, engines.self(), spec.ngram, spec.gamma1,
                                spec.nested(), std::move(within), std::move(options));
  if (spec.draft == DraftKind::nested)
    return nested_rounds(*engines.target, engines.self(), engines.drafter(), tree, spec.nested(),
                         std::move(within), std::move(options));
  if (spec.beams() > 0)
    return beam_rounds(*engines.target, engines.drafter(),
                       {.width = spec.width,
                        .gamma = recipe.most_gamma(),
                        .temperature = options.floor.temperature},
                       std::move(options));
  if (recipe.chooses_gamma())
    return chain_rounds(*engines.target, engines.drafter(), recipe.most_gamma(),
                        std::move(options));
  return model_rounds(*engines.target, engines.drafter(), tree, std::move(options));
}

}  // namespace tandem::speculate

template tandem::recipe::Field tandem::recipe::fields_of(tandem::speculate::GenerateRecipe&);
