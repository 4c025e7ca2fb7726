#include "cli/speculative_generation.h"

#include <algorithm>

#include "cli/generate_flags.h"
#include "cli/generate_output.h"
#include "cli/load_engine.h"
#include "cli/plan_text.h"
#include "model/context.h"
#include "ops/linear.h"
#include "spec/lookup_drafter.h"
#include "spec/model_drafter.h"
#include "spec/pair.h"
#include "spec/speculation.h"
#include "spec/tree_file.h"

namespace tandem::cli {

void SequoiaRecipe::check(recipe::Problems& p) const {
  if (spec.draft == DraftKind::model) {
    draft.require(p);
    if (tree.path.empty())
      p.field("tree.path", "tree.path: name a tree; sequoia-tree-search writes them");
  }
  refuse_states(model, output, p);
  if (output.top_logprobs > 0)
    p.field("output.top_logprobs", "output.top_logprobs: speculation reports no alternatives");
  if (sampling.max_tokens == 0)
    p.field("sampling.max_tokens", "sampling.max_tokens: nothing to speculate on; pig-generate reads prompts alone");
}

SpeculativeGeneration::SpeculativeGeneration(Context& cx, const Point<SequoiaRecipe>& point)
    : cx_(cx), recipe_(point.recipe) {
  const decode::PromptSource source = prompt_source(cx);
  const auto seed = static_cast<uint64_t>(recipe_.run.seed);
  device_ = choose_device(recipe_.run, {});
  target_files_ = decode::open_model(recipe_.model.path.value, seed);
  if (recipe_.spec.draft == DraftKind::model) {
    tree_ = spec::read_tree(recipe_.tree.path).tree;
    draft_files_ = decode::open_model(recipe_.draft.path.value, seed);
    spec::check_vocabularies(target_files_, *draft_files_);
  } else {
    tree_ = spec::chain_tree(recipe_.spec.gamma + 1);
  }
  if (tree_.size() > kv::kMaxTreeRows)
    throw input_error(recipe_.tree.path.string(), "has {} nodes, at most {} are supported",
                      tree_.size(), kv::kMaxTreeRows);
  if (!source.empty()) prompts_ = decode::read_prompts(source, target_files_, false);
  size_engines();
  target_.n_streamed = layers_to_stream(recipe_.model.offload, target_files_.config,
                                        memory_limits(recipe_.run, device_), [&](int n) {
                                          target_.n_streamed = n;
                                          return plan();
                                        });
  const DType compute = compute_type(recipe_.model);
  if (ops::weight_dtype(compute, device_) != compute) cx.note(compute_note(compute));
}

void SpeculativeGeneration::size_engines() {
  const model::ModelConfig& shorter =
      draft_files_ && draft_files_->config.max_context < target_files_.config.max_context
          ? draft_files_->config
          : target_files_.config;
  const int64_t context = model::context_of(recipe_.run, shorter);
  std::vector<int64_t> lengths;
  for (const auto& ids : prompts_.sequences) {
    const auto n = static_cast<int64_t>(ids.size());
    if (n > context)
      throw input_error("prompt", "has {} tokens, the context holds {}", n, context)
          .hint(n > shorter.max_context
                    ? "shorten the prompt, or use models with a longer context"
                    : "raise run.context, or leave it out");
    lengths.push_back(std::min(context, n + recipe_.sampling.max_tokens));
  }
  if (lengths.empty()) lengths = {context};
  std::sort(lengths.rbegin(), lengths.rend());
  const int batch = batch_size(recipe_.run, lengths.size());
  int64_t total = 0;
  for (int i = 0; i < batch; ++i) total += lengths[static_cast<size_t>(i)];

  const auto engine = [&](const spec::ModelDrafter::Needs& extra) {
    decode::EngineSpec spec;
    spec.compute = compute_type(recipe_.model);
    spec.device = device_;
    spec.max_seqs = spec.max_prompts = batch;
    spec.max_extend_rows = extra.rows;
    spec.max_logit_rows = extra.logit_rows;
    spec.max_tokens = static_cast<int>(lengths.front()) + extra.tokens;
    spec.total_tokens = total + int64_t{batch} * extra.tokens;
    spec.prefill_chunk = std::max(static_cast<int>(std::min<int64_t>(recipe_.run.prefill_chunk, total)),
                                  extra.rows);
    spec.caches = {recipe::Cache{}};
    return spec;
  };
  const int nodes = tree_.size();
  target_ = engine({.rows = batch * nodes, .logit_rows = batch * nodes, .tokens = nodes});
  if (!draft_files_) return;
  draft_ = engine(spec::ModelDrafter::needs(tree_, batch));
}

MemoryPlan SpeculativeGeneration::plan() const {
  if (!draft_files_) return decode::Engine::plan(target_files_, target_);
  MemoryPlan both = pair_plan(target_files_, target_, *draft_files_, draft_);
  // Logits on the host: those that children were drawn from, and copies of a GPU's.
  const auto row = static_cast<size_t>(target_files_.config.vocab_size) * sizeof(float);
  const auto internal = std::count_if(tree_.n_children.begin(), tree_.n_children.end(),
                                      [](int n) { return n > 0; });
  both.add("speculation/draft logits",
           static_cast<size_t>(internal) * static_cast<size_t>(target_.max_seqs) * row);
  if (device_.kind == Device::Kind::cuda)
    both.add("speculation/logits from the GPU",
             static_cast<size_t>(target_.max_logit_rows + draft_.max_logit_rows) * row);
  return both;
}

void SpeculativeGeneration::print_plan() {
  const MemoryPlan both = plan();
  const MemoryLimits limits = memory_limits(recipe_.run, device_);
  cx_.out.write(fmt::format("model    {}\ndraft    {}\ntree     {} nodes on {} levels\n{}\n",
                            target_files_.name, draft_files_ ? draft_files_->name : "ngram",
                            tree_.size(), tree_.levels(),
                            memory_lines(both, limits)));
  cx_.out.flush();  // the plan first, then what is wrong with it
  limits.check(both);
}

void SpeculativeGeneration::run() {
  const decode::GenerateSpec how =
      generate_spec(recipe_.sampling, recipe_.run.seed, recipe_.output.top_logprobs,
                    target_files_.config, target_.max_tokens - tree_.size());
  const MemoryPlan both = plan();
  admit_plan(cx_, both, memory_limits(recipe_.run, device_));
  const auto target = load_admitted(cx_, std::move(target_files_), target_, both);
  std::unique_ptr<decode::Engine> draft;
  std::unique_ptr<spec::Drafter> drafter;
  if (draft_files_) {
    draft = load_admitted(cx_, std::move(*draft_files_), draft_, both);
    drafter = std::make_unique<spec::ModelDrafter>(*draft, tree_);
  } else {
    drafter = std::make_unique<spec::LookupDrafter>(recipe_.spec.ngram, recipe_.spec.gamma);
  }
  const double load_s = load_.seconds();
  GenerateOutput output(cx_, recipe_.output.path, prompts_, *target, both);
  spec::Speculation speculation(*target, *drafter,
                                [&](const spec::RoundEvent& e) { output.on_round(e); });
  std::vector<decode::Request> requests;
  for (const auto& ids : prompts_.sequences)
    requests.push_back({.prefix_slot = -1, .prefix = {}, .tokens = ids});
  const decode::GenerateReport report =
      decode::generate(*target, speculation, requests, how, output.events());
  output.finish(report, load_s, recipe_.run.seed, &speculation.stats());
}

}  // namespace tandem::cli
