#include "speculate/plan/proposals.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kv/policy.h"
#include "model/spec/roles.h"
#include "model/spec/work.h"
#include "recipe/fields_of.h"
#include "speculate/plan/drafter_kinds.h"
#include "speculate/tree/tree_file.h"

namespace tandem::speculate {

void GenerateRecipe::check(recipe::Problems& p) const {
  if (output.state == "-") p.field("output.state", "output.state: expected a file, found -");
  if (!output.state.empty() && output.state == output.path)
    p.field("output.state", "output.state: expected another file than output.path");
  if (cache.is_quantized() && !(model.state.empty() && output.state.empty()))
    p.field("cache.dtype",
            "cache.dtype: {} does not support saved states; set it to auto, or leave the state out",
            recipe::yaml_text(cache.dtype));
  if (spec.draft.kind != DraftKind::none || spec.fastest) check_speculation(p);
}

void GenerateRecipe::check_speculation(recipe::Problems& p) const {
  const Draft& draft = spec.draft;
  const Shape& shape = spec.shape;
  if (spec.fastest) check_fastest(p);
  if (!model.state.empty() && (spec.fastest || shape.measures_acceptance()))
    p.field("model.state",
            "model.state: spec.fastest and spec.shape auto measure on a full prompt; leave "
            "model.state out, or choose the draft and the tree");
  if (draft.kind == DraftKind::model && draft.path.value.empty() && !spec.fastest) {
    p.field("spec.draft.path", "spec.draft.path: expected the draft model, found none");
    p.hint(
        "set -s spec.draft.path=SMALL_MODEL; without a second model, set -s spec.draft=ngram, or "
        "-s spec.draft=self -s spec.draft.cache.kind=snapkv");
  }
  check_inner(p);
  check_beams(p);
  constexpr int kMostGamma = 256;
  if (shape.gamma.values.size() + (shape.gamma.has_auto ? 1 : 0) > 1)
    p.field("spec.shape.gamma",
            "spec.shape.gamma: expected one number or auto, found several; magicdec-bench compares "
            "several");
  else if (!shape.gamma.automatic() && shape.gamma.values.front() > kMostGamma)
    p.field("spec.shape.gamma",
            "spec.shape.gamma: {} is out of range, expected 1 .. {} tokens or auto",
            shape.gamma.values.front(), kMostGamma);
  check_rule_within("spec.draft.inner_verify", draft.inner_verify, p);
  const bool draws = drafter_kind(draft.kind).draws;
  if (!draws && weighs_draws(spec.verify))
    p.field("spec.verify",
            "spec.verify: this rule needs sampled draft tokens, but prompt lookup does not sample; "
            "set match, auto or a rule with a floor");
  if (!draws && shape.is_tree())
    p.field("spec.shape.kind",
            "spec.shape.kind: prompt lookup does not propose trees; set spec.shape=chain, found {}",
            recipe::yaml_text(shape.kind));
  if (draws && spec.verify == VerifyChoice::block && shape.is_auto())
    p.field("spec.verify",
            "spec.verify: block needs a linear draft; set spec.shape=chain, or traversal");
  if (chooses_gamma() && !(shape.accept.empty() && shape.replay.empty()))
    p.field("spec.shape.gamma",
            "spec.shape.gamma: auto does not use spec.shape.accept or spec.shape.replay; leave "
            "both out, or set spec.shape.kind=auto");
  if (!shape.accept.empty() && !shape.replay.empty())
    p.field("spec.shape.replay",
            "spec.shape.replay: cannot be combined with spec.shape.accept; leave one of them out");
  if (!shape.replay.empty() && !draws)
    p.field("spec.shape.replay",
            "spec.shape.replay: prompt lookup does not propose trees; leave spec.shape.replay out");
  else if (!shape.replay.empty() && (spec.verify == VerifyChoice::match || is_lossy(spec.verify)))
    p.field("spec.shape.replay",
            "spec.shape.replay: needs an acceptance rule for sampled tokens, found match or a "
            "lossy rule; set spec.verify=auto, or leave spec.shape.replay out");
  if (output.top_logprobs > 0)
    p.field("output.top_logprobs",
            "output.top_logprobs: is not supported with speculation; leave it out, or set "
            "spec.draft=none");
}

void GenerateRecipe::check_inner(recipe::Problems& p) const {
  if (!spec.nests()) return;
  const InnerDraft& inner = spec.draft.inner;
  const Shape& shape = spec.shape;
  if (shape.is_auto())
    p.field("spec.shape.kind",
            "spec.shape.kind: auto needs spec.draft model or self, found nested; name a tree for "
            "the inner steps, or leave it out");
  if (inner.kind == WithinKind::model && inner.path.value.empty())
    p.field("spec.draft.inner.path",
            "spec.draft.inner.path: expected the small model of inner steps, found none; set it, "
            "or spec.draft.inner.kind=ngram");
  if (inner.kind == WithinKind::model) return;
  if (spec.draft.kind == DraftKind::automatic)
    p.field("spec.draft.inner.kind",
            "spec.draft.inner.kind: spec.draft auto needs a model; set model, or "
            "spec.draft.kind=nested");
  if (shape.is_tree() || !shape.accept.empty() || !shape.replay.empty())
    p.field("spec.shape.kind",
            "spec.shape.kind: spec.draft.inner is ngram, which does not propose trees; set "
            "spec.shape=chain, and leave accept and replay out");
  if (weighs_draws(spec.draft.inner_verify))
    p.field(
        "spec.draft.inner_verify",
        "spec.draft.inner_verify: this rule needs sampled draft tokens, but prompt lookup does not "
        "sample; set match or auto");
}

void GenerateRecipe::check_beams(recipe::Problems& p) const {
  const Shape& shape = spec.shape;
  if (shape.beams() == 0) return;
  if (spec.draft.kind != DraftKind::model && spec.draft.kind != DraftKind::self)
    p.field("spec.shape.kind",
            "spec.shape.kind: beams need spec.draft self or model, found {}; set one of them, or "
            "spec.shape=chain",
            recipe::yaml_text(spec.draft.kind));
  if (const double t = sampling.temperature.value_or(0); t > 0)
    p.field("spec.shape.kind",
            "spec.shape.kind: beams do not support sampling, but sampling.temperature is {}; set "
            "sampling.temperature=0 or spec.shape=chain",
            t);
  if (weighs_draws(spec.verify))
    p.field("spec.verify",
            "spec.verify: {} needs sampled draft tokens, but beams do not sample; set match, auto, "
            "a rule with a floor, or spec.shape=chain",
            recipe::yaml_text(spec.verify));
  if (shape.gamma.automatic())
    p.field("spec.shape.gamma", "spec.shape.gamma: auto does not support beams; set a number");
  else if (const int nodes = 1 + shape.width * shape.gamma.values.front(); nodes > kv::kMaxTreeRows)
    p.field("spec.shape.width",
            "spec.shape.width: {} beams of {} tokens make {} nodes with the root, but at most {} "
            "are supported; lower spec.shape.width or spec.shape.gamma",
            shape.width, shape.gamma.values.front(), nodes, kv::kMaxTreeRows);
}

void GenerateRecipe::check_fastest(recipe::Problems& p) const {
  GenerateRecipe own = *this;
  own.spec.fastest = false;
  if (spec.draft.kind == DraftKind::model) {
    own.spec.draft.kind = DraftKind::none;
    own.spec.draft.path = {};
  }
  if (spec.shape.kind == ShapeKind::tree) own.spec.shape = {};
  GenerateRecipe defaults;
  const recipe::Field fields = recipe::fields_of(own), other = recipe::fields_of(defaults);
  const std::vector<recipe::Key> keys = recipe::keys_of(fields, "spec"),
                                 values = recipe::keys_of(other, "spec");
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i].field->value->yaml() != values[i].field->value->yaml())
      p.field(keys[i].name, "{0}: spec.fastest chooses it; leave {0} out", keys[i].name);
  if (spec.shape.is_tree() && (spec.shape.is_auto() || spec.draft.path.value.empty()))
    p.field("spec.shape.kind",
            "spec.shape.kind: spec.fastest needs a file and spec.draft.path for a tree; set both, "
            "or leave spec.shape out");
}

int most_nodes(const Shape& shape, int batch) { return std::max(2, shape.max_nodes / batch); }

EngineUse SpecSection::engines() const {
  if (!fastest) return drafter_kind(draft.kind).engines(draft);
  return {.own = &draft,
          .model = draft.inner.path.value.empty() ? nullptr : &draft.inner,
          .tries = true};
}

bool GenerateRecipe::chooses_gamma() const {
  return drafter_kind(spec.draft.kind).chooses_gamma && !spec.shape.is_tree() &&
         spec.shape.gamma.automatic();
}

std::optional<TokenTree> given_tree(const GenerateRecipe& recipe) {
  const SpecSection& spec = recipe.spec;
  const bool draws = drafter_kind(spec.draft.kind).draws;
  if (spec.shape.beams() > 0) return beam_tree(spec.shape.width, recipe.most_gamma());
  if (!draws || !spec.shape.is_tree()) return chain_tree(recipe.most_gamma() + 1);
  if (spec.shape.is_auto()) return {};
  TokenTree tree = read_tree(spec.shape.path).tree;
  if (tree.size() > kv::kMaxTreeRows)
    throw input_error(spec.shape.path.string(), "has {} nodes, but at most {} are supported",
                      tree.size(), kv::kMaxTreeRows);
  const auto rule = spec.nests() ? spec.draft.inner_verify : spec.verify;
  (void)rule_for(rule, draws, tree, false);  // before models are loaded
  return tree;
}

TreeRoom room_of(const GenerateRecipe& recipe, const std::optional<TokenTree>& given, int batch,
                 bool measures) {
  if (given && !measures) return TreeRoom::of(*given);
  const auto any = TreeRoom::any(most_nodes(recipe.spec.shape, batch));
  return given ? any.with(TreeRoom::of(*given)) : any;
}

void check_gamma(const GenerateRecipe& recipe, int64_t context, const decode::PromptSet& prompts) {
  const bool is_chain = !recipe.spec.shape.is_tree();
  const bool is_nested = recipe.spec.nests();
  size_t longest = 0;
  for (const auto& ids : prompts.sequences) longest = std::max(longest, ids.size());
  const int64_t room = context - static_cast<int64_t>(longest);
  const int gamma = is_nested ? recipe.spec.draft.gamma2 : recipe.most_gamma();
  if (is_nested ? gamma < room : !is_chain || recipe.spec.shape.gamma.automatic() || gamma < room)
    return;
  const std::string key = is_nested ? "spec.draft.gamma2" : "spec.shape.gamma";
  throw recipe_error(key, "is {} tokens, but the prompt leaves only {} of a context of {}", gamma,
                     room, context)
      .hint(fmt::format("lower {}, raise run.context, or shorten the prompt", key));
}

void refuse_full_draft(const GenerateRecipe& recipe, const ModelPair& pair) {
  constexpr const char* kForce = "spec.force=true runs it anyway";
  if (recipe.spec.draft.kind == DraftKind::automatic) return;  // it may leave such a draft out
  const EngineUse use = recipe.spec.engines();
  if (use.own != nullptr) {
    const recipe::Cache& cache = use.own->cache;
    const auto json = [](recipe::Cache c) { return recipe::to_json(recipe::fields_of(c)); };
    const bool reads_all = kv::needs_of(cache).reads_all || json(cache) == json(recipe.cache);
    if (!use.tries && !use.own->sparse.any() && reads_all)
      throw recipe_error("spec.draft.cache.kind",
                         "is {}, so the draft reads as much as the target and cannot be faster",
                         recipe::yaml_text(cache.kind))
          .hint(fmt::format("reduce it with -s spec.draft.cache.kind=snapkv{}; {}",
                            use.nested ? "" : ", or -s spec.draft.sparse.kind=cats", kForce));
  }
  if (use.model == nullptr) return;
  if (use.model->copies_target()) {
    const auto bytes = [&](const decode::ModelFiles& files) {
      return model::step_bytes(files.config, pair.compute());
    };
    if (bytes(pair.draft()) < bytes(pair.target())) return;
    throw recipe_error("spec.draft.weights",
                       "is {}, but the copy reads as many bytes as the target and cannot be faster",
                       recipe::yaml_text(use.model->weights))
        .hint(fmt::format("use a model whose weights have more bits; {}", kForce));
  }
  const int64_t small = model::n_params(pair.draft().config),
                large = model::n_params(pair.target().config);
  if (small < large) return;
  throw recipe_error(fmt::format("{}.path", use.model->key),
                     "{} has {:.3g} parameters and {} has {:.3g}, but a draft as large as the "
                     "target cannot be faster",
                     pair.draft().name, static_cast<double>(small), pair.target().name,
                     static_cast<double>(large))
      .hint(fmt::format("name a smaller model; {}", kForce));
}

std::string remedy_of_loss(const GenerateRecipe& recipe) {
  const SpecSection& spec = recipe.spec;
  const bool may_choose =
      (spec.draft.kind == DraftKind::model || spec.draft.kind == DraftKind::self) &&
      spec.shape.kind == ShapeKind::chain && !spec.shape.gamma.automatic();
  return fmt::format("{}try another draft, or use pig-generate",
                     may_choose ? "set spec.shape.gamma=auto, " : "");
}

void size_for(ModelPair& pair, const decode::SequenceRoom& room, const TreeRoom& tree,
              const SpecSection& spec) {
  const int batch = room.sequences(), vocab = pair.target().config.vocab_size;
  if (spec.draft.kind == DraftKind::nested && !spec.fastest)
    return pair.size(room, nested_needs(tree, spec.nested(), batch, vocab),
                     nested_draft_needs(tree, spec.nested(), batch), [&](MemoryPlan& plan) {
                       plan_nested_rounds(tree, spec.nested(), pair.target_spec(),
                                          pair.target().config, !spec.looks_up_within(), plan);
                     });
  const int64_t texts = room.prefix ? room.longest * batch : room.total;
  const DraftKind indexed = spec.fastest ? DraftKind::ngram : spec.draft.kind;
  const size_t bytes = drafter_kind(indexed).token_bytes * static_cast<size_t>(texts);
  pair.size(room, target_needs(tree, batch, vocab), draft_needs(tree, batch),
            [&](MemoryPlan& plan) {
              if (bytes > 0) plan.add("texts/indexes of n-grams", bytes);
              plan_rounds(tree, pair.target_spec(), pair.target().config, pair.has_draft(), plan,
                          spec.shape.beams());
            });
}

std::unique_ptr<Rounds> make_rounds(const GenerateRecipe& recipe, const ModelPair::Engines& engines,
                                    const TokenTree& tree, RoundOptions options,
                                    WithinOptions within) {
  const SpecSection& spec = recipe.spec;
  options.verify = spec.verify;
  options.floor = spec.floors.rule();
  within.verify = spec.draft.inner_verify;
  Proposal proposal{.tree = tree,
                    .chooses_gamma = recipe.chooses_gamma(),
                    .beams = {.width = spec.shape.beams(),
                              .gamma = recipe.most_gamma(),
                              .temperature = options.floor.temperature},
                    .longest = spec.nests() ? spec.draft.inner.longest : spec.draft.longest};
  if (spec.nests()) proposal.nested = spec.nested();
  return drafter_kind(spec.draft.kind)
      .rounds(proposal, engines.readers(), std::move(options), std::move(within));
}

}  // namespace tandem::speculate

template tandem::recipe::Field tandem::recipe::fields_of(tandem::speculate::GenerateRecipe&);
