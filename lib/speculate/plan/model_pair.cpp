#include "speculate/plan/model_pair.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "decode/fit/load_engine.h"
#include "decode/fit/memory_text.h"
#include "kv/policy.h"
#include "model/spec/context.h"
#include "recipe/scalar.h"
#include "speculate/draft/pair.h"

namespace tandem::speculate {

nlohmann::ordered_json tree_facts(const TokenTree& tree) {
  return {{"nodes", tree.size()}, {"levels", tree.levels()}};
}

void check_reads_trees(const std::string& where, const std::string& what,
                       const recipe::Cache& cache, bool chains_alone) {
  const auto suits = [&](const kv::Needs& n) { return n.reads_trees || chains_alone; };
  if (suits(kv::needs_of(cache))) return;
  throw recipe_error(where, "{}is {}, which does not support trees of draft tokens", what,
                     recipe::yaml_text(cache.kind))
      .hint(fmt::format("choose {}", kv::kinds_where(suits)));
}

void DraftSection::check(recipe::Problems& p) const {
  if (cache.is_hosted())
    p.field("cache.place",
            "{}.cache.place: host is not supported, only the target's KV cache can be offloaded "
            "(cache.place): leave it out",
            key);
  if (weights != recipe::WeightType::automatic && !recipe::is_quantized(weights))
    p.field("weights", "{}.weights: expected auto, int8, int4 or fp8, found {}", key,
            recipe::yaml_text(weights));
  if (copies_target() && sparse.any())
    p.field("weights",
            "{0}.weights: {1} makes the draft a copy of the target, which computes all FFN "
            "neurons; leave {0}.sparse out",
            key, recipe::yaml_text(weights));
}

void PairSection::Other::check(recipe::Problems& p) const {
  DraftSection::check(p);
  const bool is_known =
      kind == DraftKind::model || (kind == DraftKind::self && (copies_target() || reads_own));
  if (!is_known && reads_own)
    p.field("kind",
            "spec.draft: expected kind model or self, found {}; measure other drafts with "
            "magicdec-bench",
            recipe::yaml_text(kind));
  else if (!is_known)
    p.field("kind",
            "spec.draft: expected kind model, or self with weights int8, int4 or fp8, found {}{}; "
            "measure other drafts with magicdec-acceptance or magicdec-bench",
            recipe::yaml_text(kind), kind == DraftKind::self ? " without weights" : "");
}

ModelPair::ModelPair(const recipe::Model& model, const recipe::Run& run, const EngineUse& use,
                     const decode::RunContext& cx, const recipe::Cache& cache)
    : run_(run),
      draft_key_(use.model != nullptr ? use.model->key : "spec.draft"),
      cache_(cache),
      self_cache_(use.own != nullptr ? use.own->cache : recipe::Cache{}),
      draft_cache_(use.model != nullptr      ? use.model->cache
                   : use.nested || use.tries ? recipe::Cache{}
                                             : self_cache_),
      self_sparse_(use.own != nullptr ? use.own->sparse : recipe::Sparse{}),
      has_own_(use.own != nullptr),
      nests_(use.nested),
      tries_(use.tries),
      speculates_(use.speculates),
      sizer_(model, run,
             use.speculates ? std::vector{cache, self_cache_, draft_cache_} : std::vector{cache},
             cx),
      target_(sizer_.open_model()) {
  if (!speculates_) return;
  check_reads_trees("cache.kind", "", cache);
  for (const DraftSection* draft : {use.own, use.model})
    if (draft != nullptr)
      check_reads_trees(fmt::format("{}.cache.kind", draft->key), "", draft->cache);
  if (use.model == nullptr) return;
  recipe::Model of;
  of.path = use.model->path;
  if (use.model->copies_target()) of = model;
  of.weights = use.model->weights;
  draft_ = sizer_.open_draft(of);
  check_vocabularies(target_, *draft_, draft_key_ + ".path");
}

kv::Reading ModelPair::self_reading() const {
  const auto reads_all = [](const recipe::Cache& c) {
    return kv::needs_of(c).reads_all && !c.is_hosted();
  };
  const bool same_keys =
      reads_all(self_cache_) && (tries_ || (self_sparse_.any() && reads_all(cache_)));
  return {.keys = same_keys ? 0 : 1, .channels = self_sparse_.any() ? 1 : 0};
}

void ModelPair::leave_draft() {
  draft_.reset();
  has_own_ = false;
}

int64_t ModelPair::context() const {
  const bool is_bound =
      draft_ && !model::reads_any_length(draft_->config, draft_cache_, draft_key_ + ".cache");
  const bool draft_is_shorter = is_bound && draft_->config.max_context < target_.config.max_context;
  return model::context_of(run_, draft_is_shorter ? draft_->config : target_.config);
}

void ModelPair::size(decode::SequenceRoom room, const RoundNeeds& target, const RoundNeeds& draft,
                     const std::function<void(MemoryPlan&)>& add, int draft_copies) {
  // A draft or a measurement may read a whole text again; several go in more forwards.
  room.to_read = std::max(room.to_read, room.longest);
  target_spec_ = sizer_.spec(room, has_own_ && !nests_ ? target.with(draft) : target, cache_);
  target_spec_.caches = {cache_};
  if (has_own_) {
    if (self_reading().keys > 0) target_spec_.caches.push_back(self_cache_);
    if (self_reading().channels > 0) target_spec_.sparse = {self_sparse_};
  }
  room.batch *= draft_copies;
  room.total *= draft_copies;
  if (draft_) draft_spec_ = sizer_.spec(room, draft, draft_cache_);
  draft_spec_.caches = {draft_cache_};
  const auto plan_with = [&](const decode::Savings& savings) {
    target_spec_.savings = savings;
    MemoryPlan all = decode::Engine::plan(target_, target_spec_);
    if (draft_) decode::add_engine(all, decode::Engine::plan(*draft_, draft_spec_), "draft");
    all.add(decode::kTextsItem, room.texts);
    if (add) add(all);
    return all;
  };
  plan_ = sizer_.save_memory(target_.config, plan_with,
                             ffn::set_channels(target_spec_.sparse, target_.config.ffn_dim));
  if (target_spec_.savings.set_channels > 0 && room.batch > draft_copies)
    throw recipe_error(
        "run.batch",
        "is {}, but model.offload supports the draft FFN channels of only one sequence",
        room.batch / draft_copies)
        .hint("set run.batch=1, or model.offload=none on a GPU with more memory");
}

void ModelPair::size_plain(const decode::SequenceRoom& room,
                           const std::function<void(decode::EngineSpec&)>& settle) {
  target_spec_ = sizer_.spec(room);
  settle(target_spec_);
  hosted_ = decode::decide_hosted(sizer_, target_, target_spec_, room.batch);
  plan_ = sizer_.save_memory(target_.config, [&](const decode::Savings& savings) {
    target_spec_.savings = savings;
    MemoryPlan plan = decode::Engine::plan(target_, target_spec_);
    plan.add(decode::kTextsItem, room.texts);
    return plan;
  });
}

decode::RankPlan ModelPair::rank_plan(const decode::MemoryLimits& limits) const {
  const auto n = static_cast<size_t>(target_spec_.max_seqs);
  return decode::rank_plan(target_, target_spec_, decode::batch_size(run_, n), limits);
}

std::string ModelPair::draft_name() const {
  if (draft_) return draft_->name;
  return tries_ ? "self, ngram" : has_own_ && !nests_ ? "self" : "ngram";
}

std::string ModelPair::plan_text(const std::string& lines) const {
  const decode::MemoryLimits limits = sizer_.limits();
  std::string text = fmt::format("model    {}\n", target_.name);
  if (!kv::needs_of(cache_).reads_all || cache_.is_hosted())
    text += fmt::format("cache    {}{}\n", recipe::yaml_text(cache_.kind),
                        cache_.is_hosted() ? ", offloaded to host memory for long contexts" : "");
  text += "draft    " + draft_name();
  if (has_draft() && !kv::needs_of(draft_cache_).reads_all)
    text += ", " + recipe::yaml_text(draft_cache_.kind);
  if (self_sparse_.any()) text += fmt::format(", {} neurons", recipe::yaml_text(self_sparse_.kind));
  if (nests_)
    text += fmt::format(" in inner steps, verified by the target under {}",
                        recipe::yaml_text(self_cache_.kind));
  return fmt::format("{}\n{}{}{}{}\n", text, decode::gpu_line(limits), rank_plan(limits).lines(),
                     lines, decode::memory_lines(plan_, limits));
}

nlohmann::ordered_json ModelPair::plan_json(const nlohmann::ordered_json& facts) const {
  const decode::MemoryLimits limits = sizer_.limits();
  nlohmann::ordered_json j = {{"event", "plan"}, {"model", target_.name}, {"draft", draft_name()}};
  if (!kv::needs_of(cache_).reads_all || cache_.is_hosted())
    j["cache"] = recipe::yaml_text(cache_.kind);
  if (cache_.is_hosted()) j["cache_place"] = recipe::yaml_text(cache_.place);
  if (has_draft() && !kv::needs_of(draft_cache_).reads_all)
    j["draft_cache"] = recipe::yaml_text(draft_cache_.kind);
  if (self_sparse_.any()) j["draft_sparse"] = recipe::yaml_text(self_sparse_.kind);
  if (nests_) j["within"] = recipe::yaml_text(self_cache_.kind);
  j.update(facts);
  j.update(decode::memory_json(plan_, limits));
  const decode::RankPlan ranks = rank_plan(limits);
  if (!ranks.kinds.empty()) j["ranks"] = ranks.json();
  return j;
}

ModelPair::Engines ModelPair::load(const decode::RunContext& run) {
  decode::admit_plan(run, plan_, sizer_.limits());
  Engines engines;
  engines.self_reading = self_reading();
  engines.target = decode::load_engine(run, std::move(target_), target_spec_, plan_);
  if (draft_)
    engines.draft =
        decode::load_engine(run, std::move(*draft_), draft_spec_, plan_, engines.target->queue());
  return engines;
}

}  // namespace tandem::speculate
