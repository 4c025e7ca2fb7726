#include "speculate/round/rounds.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "recipe/scalar.h"
#include "speculate/draft/gpu_lookup_drafter.h"
#include "speculate/draft/gpu_model_drafter.h"
#include "speculate/draft/lookup_drafter.h"
#include "speculate/draft/model_drafter.h"
#include "speculate/round/gpu_speculation.h"
#include "speculate/round/speculation.h"

namespace tandem::speculate {
namespace {

bool on_gpu(const decode::EngineSpec& spec) { return spec.device.kind == Device::Kind::cuda; }

size_t n_internal(const TokenTree& tree) {
  return static_cast<size_t>(
      std::count_if(tree.n_children.begin(), tree.n_children.end(), [](int n) { return n > 0; }));
}

void check_reads_trees(const decode::Engine& engine) {
  for (const recipe::Cache& cache : engine.spec().caches)
    if (!kv::needs_of(cache).reads_trees)
      throw recipe_error("cache.kind", "is {}, which cannot read the trees of rounds, in {}",
                         recipe::yaml_text(cache.kind), engine.files().name)
          .hint("choose full, streaming, quest, lsh or hybrid, or generate without speculation");
}

std::unique_ptr<Arena> arena_for(const TokenTree& tree, const decode::Engine& target,
                                 bool has_draft) {
  MemoryPlan plan;
  plan_rounds(tree, target.spec(), target.config(), has_draft, plan);
  return std::make_unique<Arena>(std::move(plan));
}

}  // namespace

std::unique_ptr<Rounds> model_rounds(decode::Engine& target, decode::Engine& draft,
                                     const TokenTree& tree, RoundOptions options) {
  check_reads_trees(target);
  check_reads_trees(draft);
  if (!on_gpu(target.spec()))
    return std::make_unique<Speculation>(
        target, std::make_unique<ModelDrafter>(draft, tree, target.config().vocab_size),
        std::move(options));
  TANDEM_CHECK(draft.queue() == target.queue(), "the engines work on queues of their own");
  TANDEM_CHECK(draft.spec().max_seqs >= target.spec().max_seqs,
               "{} sequences of the draft, {} of the target", draft.spec().max_seqs,
               target.spec().max_seqs);
  auto arena = arena_for(tree, target, true);
  auto drafter = std::make_unique<GpuModelDrafter>(draft, tree, target.spec().max_seqs, *arena);
  return std::make_unique<GpuSpeculation>(target, std::move(arena), std::move(drafter),
                                          std::move(options));
}

std::unique_ptr<Rounds> lookup_rounds(decode::Engine& target, int longest, int length,
                                      RoundOptions options) {
  check_reads_trees(target);
  if (!on_gpu(target.spec()))
    return std::make_unique<Speculation>(target, std::make_unique<LookupDrafter>(longest, length),
                                         std::move(options));
  auto arena = arena_for(chain_tree(length + 1), target, false);
  return std::make_unique<GpuSpeculation>(target, std::move(arena),
                                          std::make_unique<GpuLookupDrafter>(longest, length),
                                          std::move(options));
}

RoundNeeds target_needs(const TokenTree& tree, int batch) {
  return {.rows = batch * tree.size(), .logit_rows = batch * tree.size(), .tokens = tree.size()};
}

RoundNeeds draft_needs(const TokenTree& tree, int batch, Device device) {
  // Nodes of the deepest level are drawn but not run.
  const std::vector<int> widths = tree.widths();
  const int run = tree.levels() > 1 ? tree.size() - widths.back() : 1;
  const int widest = tree.levels() > 1 ? *std::max_element(widths.begin(), widths.end() - 1) : 1;
  // The CPU keeps logits of earlier levels elsewhere; on a GPU all that children were drawn from
  // stay.
  const int kept = device.kind == Device::Kind::cuda ? static_cast<int>(n_internal(tree)) : widest;
  return {.rows = batch * (run - 1 + DraftTexts::kMaxUnread),
          .logit_rows = batch * std::max(kept, 1),
          .tokens = run - 1 + DraftTexts::kMaxUnread};
}

void plan_rounds(const TokenTree& tree, const decode::EngineSpec& target,
                 const model::ModelConfig& config, bool has_draft, MemoryPlan& plan) {
  if (on_gpu(target)) {
    GpuSpeculation::plan(tree, target,
                         has_draft ? GpuModelDrafter::outbox_bytes(tree, target.max_seqs) : 0,
                         config.vocab_size, plan);
    if (has_draft) GpuModelDrafter::plan(tree, target.max_seqs, target.device, plan);
  } else if (has_draft) {
    // At most: where the tree is still to be chosen, this one stands for all of its size.
    plan.add("speculation/draft logits", static_cast<size_t>(tree.size() * target.max_seqs) *
                                             static_cast<size_t>(config.vocab_size) *
                                             sizeof(float));
  }
}

}  // namespace tandem::speculate
