#include "bench/speculation/bench_engines.h"

#include <algorithm>

#include "decode/fit/load_engine.h"
#include "model/spec/context.h"
#include "speculate/draft/pair.h"
#include "speculate/measure/timed_rounds.h"
#include "speculate/plan/model_pair.h"

namespace tandem::bench {

using speculate::TreeRoom;

namespace {

void check_context(const decode::ModelFiles& files, const BenchSizes& sizes, const char* where) {
  const int64_t longest = int64_t{sizes.context} + sizes.new_tokens;
  if (files.config.trained && longest > files.config.max_context)
    throw recipe_error(where, "is {} tokens with {} new tokens, but {} supports only {}",
                       sizes.context, sizes.new_tokens, files.name, files.config.max_context)
        .hint("lower run.context");
}

}  // namespace

BenchEngines::BenchEngines(const recipe::Model& model, const recipe::Cache& cache,
                           const recipe::Run& run, const BenchSizes& sizes,
                           const decode::RunContext& cx)
    : of_target_(model), sizes_(sizes), sizer_(model, run, {cache}, cx) {
  speculate::check_reads_trees("cache.kind", "", cache);
  target_ = {.path = model.path.value,
             .weights = model.weights,
             .files = sizer_.open_model(),
             .caches = {cache},
             .readers = {""}};
  resize(sizes);
}

void BenchEngines::resize(const BenchSizes& sizes) {
  sizes_ = sizes;
  check_context(target_.files, sizes_, "run.context");
}

void BenchEngines::check(const Way& way, const recipe::Cache& cache) const {
  const int nodes = way.tree.size();
  if (int64_t{nodes} * sizes_.batch > kv::kMaxDraftedRows && way.is_chain())
    throw recipe_error(
        "spec.gamma",
        "{} draft tokens and 1 more for each of {} sequences exceed the {} rows of a step",
        way.gamma(), sizes_.batch, kv::kMaxDraftedRows)
        .hint("lower spec.gamma or run.batch");
  if (int64_t{nodes} * sizes_.batch > kv::kMaxDraftedRows)
    throw recipe_error("tree.sizes",
                       "{} nodes for each of {} sequences exceed the {} rows of a step", nodes,
                       sizes_.batch, kv::kMaxDraftedRows)
        .hint("lower tree.sizes or run.batch");
  speculate::check_reads_trees("bench.drafts", fmt::format("the policy of '{}' ", way.draft.name),
                               cache, way.is_chain());
}

BenchEngines::Model* BenchEngines::model_of(const speculate::NamedDraft& draft) {
  if (draft.shares_cache()) return &target_;
  if (!draft.proposes_by_model()) return nullptr;
  recipe::Model of;
  of.path = draft.path;
  if (draft.copies_target()) of = of_target_;
  of.weights = draft.weights;
  const auto known = std::ranges::find_if(
      others_, [&](const auto& m) { return m->path == of.path.value && m->weights == of.weights; });
  if (known != others_.end()) return known->get();
  Model other{.path = of.path.value, .weights = draft.weights, .files = sizer_.open_draft(of)};
  speculate::check_vocabularies(target_.files, other.files, "bench.drafts");
  if (!model::reads_any_length(other.files.config, draft.cache_at(sizes_.context), "bench.drafts"))
    check_context(other.files, sizes_, "bench.drafts");
  others_.push_back(std::make_unique<Model>(std::move(other)));
  return others_.back().get();
}

void BenchEngines::admit(const std::string& name, Model* model, const TreeRoom& room) {
  // The prompts stay in the cache while sequences that continue them come and go.
  target_.needs = target_.needs.with(
      speculate::target_needs(room, sizes_.batch, target_.files.config.vocab_size));
  if (model != nullptr)
    model->needs = model->needs.with(speculate::draft_needs(room, sizes_.batch));
  admitted_.push_back({name, room, model != nullptr, {}});
}

void BenchEngines::add(const Way& way) {
  if (way.nested) return add_nested(way);
  const speculate::NamedDraft& draft = way.draft;
  const recipe::Cache cache =
      draft.proposes_by_model() ? draft.cache_at(sizes_.context) : recipe::Cache{};
  check(way, cache);
  Model* model = model_of(draft);
  admit(way.name(), model, TreeRoom::of(way.tree));
  if (model != nullptr) register_reader(*model, draft, cache);
}

void BenchEngines::add_nested(const Way& way) {
  const NestedWay& nested = *way.nested;
  const recipe::Cache by_self = nested.self.cache_at(sizes_.context),
                      by_small = nested.looks_up() ? recipe::Cache{}
                                                   : nested.small.cache_at(sizes_.context);
  check(way, by_self);
  check(way, by_small);
  Model* small = model_of(nested.small);
  const TreeRoom room = TreeRoom::of(nested.tree);
  target_.needs = target_.needs.with(
      speculate::nested_needs(room, nested.shape, sizes_.batch, target_.files.config.vocab_size));
  register_reader(target_, nested.self, by_self);
  if (small != nullptr) {
    small->needs =
        small->needs.with(speculate::nested_draft_needs(room, nested.shape, sizes_.batch));
    register_reader(*small, nested.small, by_small);
  }
  admitted_.push_back(
      {.name = way.name(), .room = room, .has_model = small != nullptr, .nested = nested.shape});
}

void BenchEngines::register_reader(Model& model, const speculate::NamedDraft& draft,
                                   const recipe::Cache& cache) {
  if (std::ranges::find(model.readers, draft.name) != model.readers.end()) return;
  model.readers.push_back(draft.name);
  model.caches.push_back(cache);
  if (draft.sparse.any()) model.sparse.push_back(draft.sparse);
  // The target's first reader reads all; of another model the first is a draft.
  model.channels.resize(model.readers.size());
  model.channels.back() = draft.sparse.any() ? static_cast<int>(model.sparse.size()) : 0;
}

void BenchEngines::add_reader(const speculate::NamedDraft& draft, int rows) {
  const recipe::Cache cache = draft.cache_at(sizes_.context);
  Model& model = *model_of(draft);
  const speculate::RoundNeeds needs{
      .rows = rows * sizes_.batch, .logit_rows = rows * sizes_.batch, .tokens = 0};
  target_.needs = target_.needs.with(needs);
  model.needs = model.needs.with(needs);
  register_reader(model, draft, cache);
}

void BenchEngines::add_timing(const std::string& name, const speculate::NamedDraft& draft,
                              int nodes) {
  admit(name + " timed", model_of(draft), TreeRoom::any(nodes));
  is_timed_ = true;
}

MemoryPlan BenchEngines::plan_all(const decode::Savings& savings) {
  target_.spec.savings = savings;
  MemoryPlan all = decode::Engine::plan(target_.files, target_.spec);
  for (const auto& other : others_)
    decode::add_engine(all, decode::Engine::plan(other->files, other->spec), other->files.name);
  for (const Admitted& a : admitted_) {
    MemoryPlan plan;
    if (a.nested)
      speculate::plan_nested_rounds(a.room, *a.nested, target_.spec, target_.files.config,
                                    a.has_model, plan);
    else
      speculate::plan_rounds(a.room, target_.spec, target_.files.config, a.has_model, plan);
    for (const PlanItem& item : plan.items())
      all.add(a.name + " " + item.name, item.bytes, item.device, item.lifetime);
  }
  for (const auto& [name, bytes] : buffers_) all.add(name, bytes);
  return all;
}

void BenchEngines::size() {
  // Prompts, and the sequences that continue them: these own their new tokens alone.
  const int64_t longest = int64_t{sizes_.context} + sizes_.new_tokens;
  decode::SequenceRoom room{.batch = 2 * sizes_.batch,
                            .longest = longest,
                            .total = longest * sizes_.batch,
                            .to_read = longest * sizes_.batch};
  if (is_timed_) {  // on forks of one sequence
    const int64_t timed = timed_context() + speculate::kTimedTokens;
    room.longest = std::max(longest, timed);
    room.total = std::max(room.total, timed + int64_t{sizes_.batch} * speculate::kTimedTokens);
  }
  const auto size = [&](Model& model) {
    model.spec = sizer_.spec(room, model.needs, model.caches.front());
    model.spec.caches = model.caches;
    model.spec.sparse = model.sparse;
  };
  size(target_);
  // Prompts are read by the first cache alone, as the one sequence of timed rounds is not.
  target_.spec.max_drafted = sizes_.batch + (is_timed_ ? 1 : 0);
  for (const auto& other : others_) size(*other);
  plan_ = sizer_.save_memory(
      target_.files.config, [&](const decode::Savings& s) { return plan_all(s); },
      ffn::set_channels(target_.sparse, target_.files.config.ffn_dim));
  if (target_.spec.savings.set_channels > 0 && sizes_.batch > 1)
    throw recipe_error(
        "run.batch",
        "is {}, but model.offload supports the draft FFN channels of only one sequence",
        sizes_.batch)
        .hint("set run.batch=1, or model.offload=none on a GPU with more memory");
}

decode::RankPlan BenchEngines::rank_plan() const {
  return decode::rank_plan(target_.files, target_.spec, sizes_.batch, limits());
}

void BenchEngines::load(const decode::RunContext& run) {
  decode::admit_plan(run, plan_, limits());
  target_.engine = decode::load_engine(run, std::move(target_.files), target_.spec, plan_);
  for (const auto& other : others_)
    other->engine = decode::load_engine(run, std::move(other->files), other->spec, plan_,
                                        target_.engine->queue());
}

speculate::Reader BenchEngines::drafter(const speculate::NamedDraft& draft) {
  Model& model = *model_of(draft);
  const auto policy = std::ranges::find(model.readers, draft.name) - model.readers.begin();
  return {
      *model.engine,
      {.keys = static_cast<int>(policy), .channels = model.channels[static_cast<size_t>(policy)]}};
}

std::unique_ptr<speculate::Rounds> BenchEngines::rounds(const Way& way,
                                                        speculate::WithinOptions within,
                                                        speculate::RoundOptions options) {
  speculate::DraftReaders readers{.target = target(), .own = {}, .model = {}};
  speculate::Proposal proposal{
      .tree = way.proposal(), .chooses_gamma = way.chooses, .longest = way.proposer().longest};
  if (way.nested) {
    readers.own = drafter(way.nested->self);
    proposal.nested = way.nested->shape;
  }
  if (way.proposer().proposes_by_model()) readers.model = drafter(way.proposer());
  return speculate::drafter_kind(way.draft.kind)
      .rounds(proposal, readers, std::move(options), std::move(within));
}

}  // namespace tandem::bench
