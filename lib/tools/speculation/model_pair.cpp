#include "tools/speculation/model_pair.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/plan_text.h"
#include "model/context.h"
#include "speculate/draft/pair.h"
#include "tools/engines/load_engine.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {

TextRoom room_for(const decode::PromptSet& prompts, int64_t context, int max_tokens, int batch,
                  int least_new) {
  const auto shared = static_cast<int64_t>(prompts.shared);
  std::vector<int64_t> lengths;
  for (const auto& ids : prompts.sequences) {
    const auto n = static_cast<int64_t>(ids.size());
    if (n + least_new > context)
      throw input_error("prompt", "has {} tokens, the context holds {}", n, context)
          .hint("shorten the prompt, raise run.context, or use models with a longer context");
    lengths.push_back(std::min(context, n + max_tokens));
  }
  if (lengths.empty()) lengths = {context};
  std::sort(lengths.rbegin(), lengths.rend());
  TextRoom room{.batch = std::min(batch, static_cast<int>(lengths.size())),
                .prefix = shared > 0,
                .longest = lengths.front(),
                .total = shared};
  for (int i = 0; i < room.batch; ++i) room.total += lengths[static_cast<size_t>(i)] - shared;
  return room;
}

nlohmann::ordered_json tree_facts(const speculate::TokenTree& tree) {
  return {{"nodes", tree.size()}, {"levels", tree.levels()}};
}

ModelPair::ModelPair(const recipe::Model& model, const recipe::Run& run, const std::string& draft,
                     bool dry_run)
    : model_(model), run_(run), place_(cli::choose_placement(run, {}, model.offload, dry_run)) {
  const auto seed = static_cast<uint64_t>(run.seed);
  target_ = decode::open_model(model.path.value, seed);
  if (draft.empty()) return;
  draft_ = decode::open_model(draft, seed);
  speculate::check_vocabularies(target_, *draft_);
  const int ours = target_.config.vocab_size, other = draft_->config.vocab_size;
  if (device().kind == Device::Kind::cuda && ours != other)
    throw Error::make(ErrorKind::device, "draft.path",
                      "{} rows of logits, {} of the model: such pairs speculate on the CPU only",
                      other, ours)
        .hint(fmt::format("use --device cpu, or a draft whose vocabulary is padded to {}", ours));
}

int64_t ModelPair::context() const {
  const bool draft_is_shorter = draft_ && draft_->config.max_context < target_.config.max_context;
  return model::context_of(run_, draft_is_shorter ? draft_->config : target_.config);
}

void ModelPair::size(const TextRoom& texts, const speculate::RoundNeeds& target,
                     const speculate::RoundNeeds& draft) {
  const auto engine = [&](const speculate::RoundNeeds& extra) {
    decode::EngineSpec spec;
    spec.compute = compute_type(model_);
    spec.device = place_.device;
    spec.plan_for = place_.plan_for;
    spec.max_seqs = spec.max_prompts = texts.sequences();
    spec.max_extend_rows = std::max(extra.rows, spec.max_seqs);
    spec.max_tree_rows = extra.rows;
    spec.max_logit_rows = extra.logit_rows;
    spec.max_tokens = static_cast<int>(texts.longest) + extra.tokens;
    spec.total_tokens = texts.total + int64_t{texts.sequences()} * extra.tokens;
    spec.prefill_chunk =
        std::max(static_cast<int>(std::min<int64_t>(run_.prefill_chunk, texts.total)), extra.rows);
    spec.caches = {recipe::Cache{}};
    return spec;
  };
  target_spec_ = engine(target);
  if (draft_) draft_spec_ = engine(draft);
}

void ModelPair::stream_layers(const std::function<MemoryPlan()>& plan) {
  target_spec_.n_streamed = layers_to_stream(model_.offload, target_.config,
                                             cli::memory_limits(run_, place_), [&](int n) {
                                               target_spec_.n_streamed = n;
                                               return plan();
                                             });
}

MemoryPlan ModelPair::plan() const {
  MemoryPlan both = decode::Engine::plan(target_, target_spec_);
  if (!draft_) return both;
  const MemoryPlan other = decode::Engine::plan(*draft_, draft_spec_);
  for (const PlanItem& item : other.items())
    if (!item.name.starts_with("process/"))
      both.add("draft " + item.name, item.bytes, item.device, item.lifetime);
  return both;
}

void ModelPair::print_plan(cli::Context& cx, const MemoryPlan& plan, const std::string& lines,
                           const nlohmann::ordered_json& facts) const {
  const cli::MemoryLimits limits = cli::memory_limits(run_, place_);
  const std::string draft = draft_ ? draft_->name : "ngram";
  if (cx.plans_as_json()) {
    nlohmann::ordered_json j = {{"event", "plan"}, {"model", target_.name}, {"draft", draft}};
    j.update(facts);
    j.update(cli::memory_json(plan, limits));
    cx.out.write(j.dump() + "\n");
  } else {
    cx.out.write(fmt::format("model    {}\ndraft    {}\n{}{}{}\n", target_.name, draft,
                             cli::gpu_line(limits), lines, cli::memory_lines(plan, limits)));
  }
  cx.out.flush();  // the plan first, then what is wrong with it
  limits.check(plan);
}

ModelPair::Engines ModelPair::load(cli::Context& cx, const MemoryPlan& plan) {
  admit_plan(cx, plan, cli::memory_limits(run_, place_));
  Engines engines;
  engines.target = load_admitted(cx, std::move(target_), target_spec_, plan);
  if (draft_)
    engines.draft =
        load_admitted(cx, std::move(*draft_), draft_spec_, plan, engines.target->queue());
  return engines;
}

}  // namespace tandem::tools
