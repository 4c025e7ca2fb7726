#include "tools/magicdec/bench_engines.h"

#include <algorithm>

#include "kv/policy.h"
#include "recipe/scalar.h"
#include "speculate/draft/pair.h"
#include "tools/engines/load_engine.h"

namespace tandem::tools {

using speculate::TreeRoom;

namespace {

TreeRoom chain_room(int gamma) { return TreeRoom::of(speculate::chain_tree(gamma + 1)); }

void check_context(const decode::ModelFiles& files, const BenchSizes& sizes, const char* where) {
  const int64_t longest = int64_t{sizes.context} + sizes.new_tokens;
  if (files.config.trained && longest > files.config.max_context)
    throw recipe_error(where, "{} tokens and {} new ones, {} takes {}", sizes.context,
                       sizes.new_tokens, files.name, files.config.max_context)
        .hint("lower run.context");
}

}  // namespace

BenchEngines::BenchEngines(const recipe::Model& model, const recipe::Run& run,
                           const BenchSizes& sizes, bool dry_run)
    : run_(run), sizes_(sizes), sizer_(model, run, {recipe::Cache{}}, dry_run) {
  target_ = {.path = model.path.value,
             .files = sizer_.open_model(),
             .caches = {recipe::Cache{}},
             .readers = {""}};
  check_context(target_.files, sizes_, "run.context");
}

void BenchEngines::check(const NamedDraft& draft, int gamma, const recipe::Cache& cache) const {
  if (const int64_t rows = int64_t{gamma + 1} * sizes_.batch; rows > kv::kMaxTreeRows)
    throw recipe_error("spec.gamma",
                       "{} tokens and the last for each of {} sequences, a step takes {} rows",
                       gamma, sizes_.batch, kv::kMaxTreeRows)
        .hint("lower spec.gamma or run.batch");
  const bool on_gpu = device().kind == Device::Kind::cuda;
  const auto suits = [&](const kv::Needs& n) {
    return n.reads_trees && (n.runs_on_gpu || !on_gpu);
  };
  if (!suits(kv::needs_of(cache)))
    throw recipe_error("bench.drafts", "'{}' has keys {}, which read no trees of drafted tokens{}",
                       draft.name, recipe::yaml_text(cache.kind), on_gpu ? " on a GPU" : "")
        .hint(
            fmt::format("choose {}{}", kv::kinds_where(suits), on_gpu ? ", or --device cpu" : ""));
}

BenchEngines::Model* BenchEngines::model_of(const NamedDraft& draft) {
  if (draft.kind == DraftKind::self) return &target_;
  if (draft.kind != DraftKind::model) return nullptr;
  const auto known =
      std::ranges::find(others_, draft.path.value, [](const auto& m) { return m->path; });
  if (known != others_.end()) return known->get();
  Model other{.path = draft.path.value,
              .files = decode::open_model(draft.path.value, static_cast<uint64_t>(run_.seed))};
  speculate::check_vocabularies(target_.files, other.files);
  check_context(other.files, sizes_, "bench.drafts");
  others_.push_back(std::make_unique<Model>(std::move(other)));
  return others_.back().get();
}

void BenchEngines::add(const NamedDraft& draft, int gamma) {
  const bool has_model = draft.kind == DraftKind::self || draft.kind == DraftKind::model;
  const recipe::Cache cache = has_model ? draft.cache(sizes_.context) : recipe::Cache{};
  check(draft, gamma, cache);
  Model* model = model_of(draft);
  const TreeRoom room = chain_room(gamma);
  // The prompts stay in the cache while sequences that continue them come and go.
  target_.needs = target_.needs.with(speculate::target_needs(room, sizes_.batch));
  admitted_.push_back({draft.name, gamma, model != nullptr});
  if (model == nullptr) return;
  model->needs = model->needs.with(speculate::draft_needs(room, sizes_.batch));
  if (std::ranges::find(model->readers, draft.name) != model->readers.end()) return;
  model->readers.push_back(draft.name);
  model->caches.push_back(cache);
}

MemoryPlan BenchEngines::plan_all(int n_streamed) {
  target_.spec.n_streamed = n_streamed;
  MemoryPlan all = decode::Engine::plan(target_.files, target_.spec);
  for (const auto& other : others_) {
    const MemoryPlan plan = decode::Engine::plan(other->files, other->spec);
    for (const PlanItem& item : plan.items())
      if (!item.name.starts_with("process/"))
        all.add(other->files.name + " " + item.name, item.bytes, item.device, item.lifetime);
  }
  for (const Admitted& a : admitted_) {
    MemoryPlan plan;
    speculate::plan_rounds(chain_room(a.gamma), target_.spec, target_.files.config, a.has_model,
                           plan);
    for (const PlanItem& item : plan.items())
      all.add(fmt::format("{} gamma {} {}", a.draft, a.gamma, item.name), item.bytes, item.device,
              item.lifetime);
  }
  return all;
}

void BenchEngines::size() {
  // Prompts, and the sequences that continue them: these own their new tokens alone.
  const int64_t longest = int64_t{sizes_.context} + sizes_.new_tokens;
  const SequenceRoom room{.batch = 2 * sizes_.batch,
                          .longest = longest,
                          .total = longest * sizes_.batch,
                          .to_read = longest * sizes_.batch};
  const auto size = [&](Model& model) {
    model.spec = sizer_.spec(room, model.needs);
    model.spec.caches = model.caches;
  };
  size(target_);
  for (const auto& other : others_) size(*other);
  plan_ = sizer_.stream_layers(target_.files.config, [&](int n) { return plan_all(n); });
}

void BenchEngines::load(cli::Context& cx) {
  admit_plan(cx, plan_, limits());
  target_.engine = load_engine(cx, std::move(target_.files), target_.spec, plan_);
  for (const auto& other : others_)
    other->engine =
        load_engine(cx, std::move(other->files), other->spec, plan_, target_.engine->queue());
}

std::unique_ptr<speculate::Rounds> BenchEngines::rounds(const NamedDraft& draft, int gamma,
                                                        speculate::RoundOptions options) {
  if (draft.kind == DraftKind::ngram)
    return speculate::lookup_rounds(target(), draft.ngram, gamma, std::move(options));
  Model& model = *model_of(draft);
  const auto policy = std::ranges::find(model.readers, draft.name) - model.readers.begin();
  return speculate::model_rounds(target(), {*model.engine, {.keys = static_cast<int>(policy)}},
                                 speculate::chain_tree(gamma + 1), std::move(options));
}

}  // namespace tandem::tools
