#include "speculate/round/rounds.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "recipe/scalar.h"
#include "speculate/draft/device_lookup_drafter.h"
#include "speculate/draft/lookup_drafter.h"
#include "speculate/draft/model_drafter.h"
#include "speculate/draft/nested_drafter.h"
#include "speculate/round/speculation.h"

namespace tandem::speculate {
namespace {

void check_reads_trees(const Reader& reader) {
  const decode::EngineSpec& spec = reader.engine->spec();
  const recipe::Cache& cache = spec.caches[static_cast<size_t>(reader.reading.keys)];
  if (!kv::needs_of(cache).reads_trees)
    throw recipe_error("cache.kind", "is {}, which does not support token trees, in {}",
                       recipe::yaml_text(cache.kind), reader.engine->files().name)
        .hint(fmt::format("choose {}, or generate without speculation",
                          kv::kinds_where([](const kv::Needs& n) { return n.reads_trees; })));
}

/// A draft's rows see all nodes before them in a chain, as those of a text do: any policy reads it.
void check_reads(const Reader& draft, const TokenTree& tree) {
  if (std::ranges::any_of(tree.n_children, [](int n) { return n > 1; })) check_reads_trees(draft);
}

Round::Bounds bounds_of(const TreeRoom& tree, const decode::EngineSpec& target, int vocab,
                        bool draws, size_t drafter_bytes, int rounds_within = 0, int beams = 0,
                        std::optional<bool> ahead = {}) {
  return {.max_seqs = target.max_seqs,
          .tree = tree,
          .max_tokens = target.max_tokens,
          .outbox_bytes = drafter_bytes + kv::DeviceStep::outbox_bytes(
                                              target.max_seqs, target.max_seqs * tree.nodes),
          .vocab = vocab,
          .draws = draws || beams > 0,
          .beams = beams,
          .ahead = ahead.value_or(target.device.kind == Device::Kind::cuda),
          .rounds_within = rounds_within,
          .gpu = decode::gpu_of(target)};
}

}  // namespace

std::unique_ptr<Rounds> drafted_rounds(Reader target, std::unique_ptr<Drafter> drafter,
                                       RoundOptions options) {
  check_reads_trees(target);
  const decode::EngineSpec& spec = target.engine->spec();
  const Round::Bounds bounds =
      bounds_of(drafter->room(), spec, target.engine->config().vocab_size,
                drafter->draws_children(), drafter->outbox_bytes(spec.max_seqs),
                drafter->rounds_within(), drafter->beams(), options.ahead);
  MemoryPlan plan;
  Round::plan(bounds, spec.device, plan);
  return std::make_unique<Speculation>(target, std::move(drafter), bounds,
                                       std::make_unique<Arena>(std::move(plan)),
                                       std::move(options));
}

namespace {

void check_pair(const Reader& target, const Reader& draft) {
  TANDEM_CHECK(draft.engine->queue() == target.engine->queue(),
               "target and draft must share a queue");
  TANDEM_CHECK(draft.engine->spec().max_seqs >= target.engine->spec().max_seqs,
               "the draft supports {} sequences, the target {}", draft.engine->spec().max_seqs,
               target.engine->spec().max_seqs);
}

std::unique_ptr<Rounds> nested_rounds_by(Reader target, Reader middle,
                                         std::unique_ptr<Drafter> drafter, const NestedShape& shape,
                                         WithinOptions within, RoundOptions options) {
  const TokenTree& tree = drafter->largest();
  TANDEM_CHECK(middle.engine == target.engine && tree.levels() > 1,
               "the inner draft must use the target's engine and a tree, found {} levels",
               tree.levels());
  check_reads(middle, tree);
  return drafted_rounds(
      target, std::make_unique<NestedDrafter>(middle, std::move(drafter), shape, std::move(within)),
      std::move(options));
}

std::unique_ptr<Rounds> rounds_by(Reader target, Reader draft,
                                  std::unique_ptr<ModelDrafter> drafter, RoundOptions options) {
  check_pair(target, draft);
  return drafted_rounds(target, std::move(drafter), std::move(options));
}

}  // namespace

std::unique_ptr<Rounds> model_rounds(Reader target, Reader draft, const TokenTree& tree,
                                     RoundOptions options) {
  check_reads(draft, tree);
  return rounds_by(target, draft, std::make_unique<ModelDrafter>(draft, target, tree),
                   std::move(options));
}

std::unique_ptr<Rounds> chain_rounds(Reader target, Reader draft, int most, RoundOptions options) {
  return rounds_by(target, draft,
                   std::make_unique<ModelDrafter>(draft, target, GammaChooser(gammas_up_to(most))),
                   std::move(options));
}

std::unique_ptr<Rounds> beam_rounds(Reader target, Reader draft, const Beams& beams,
                                    RoundOptions options) {
  TANDEM_CHECK(!options.simulate, "simulated acceptance is not supported with beams");
  auto drafter = std::make_unique<ModelDrafter>(draft, target, beams);
  check_reads(draft, drafter->largest());
  return rounds_by(target, draft, std::move(drafter), std::move(options));
}

std::unique_ptr<Rounds> nested_rounds(Reader target, Reader middle, Reader draft,
                                      const TokenTree& tree, const NestedShape& shape,
                                      WithinOptions within, RoundOptions options) {
  check_pair(target, draft);
  check_reads(draft, tree);
  return nested_rounds_by(target, middle, std::make_unique<ModelDrafter>(draft, target, tree),
                          shape, std::move(within), std::move(options));
}

std::unique_ptr<Rounds> nested_lookup_rounds(Reader target, Reader middle, int longest, int length,
                                             const NestedShape& shape, WithinOptions within,
                                             RoundOptions options) {
  TANDEM_CHECK(!within.simulate, "simulated acceptance is not supported with prompt lookup");
  return nested_rounds_by(target, middle, std::make_unique<DeviceLookupDrafter>(longest, length),
                          shape, std::move(within), std::move(options));
}

std::unique_ptr<Rounds> lookup_rounds(Reader target, int longest, int length,
                                      RoundOptions options) {
  return drafted_rounds(target, std::make_unique<LookupDrafter>(longest, length),
                        std::move(options));
}

RoundNeeds target_needs(const TreeRoom& tree, int batch, int vocab) {
  constexpr int64_t kLogitBytes = int64_t{256} << 20;
  const int64_t tree_bytes = int64_t{tree.nodes} * vocab * static_cast<int64_t>(sizeof(float));
  const auto trees = std::clamp<int64_t>(kLogitBytes / tree_bytes, 1, batch);
  return {.rows = batch * tree.nodes,
          .logit_rows = static_cast<int>(trees) * tree.nodes,
          .tokens = tree.nodes,
          .ahead = tree.levels};
}

RoundNeeds draft_needs(const TreeRoom& tree, int batch) {
  const int tokens = tree.inner - 1 + DraftSequences::kMaxUnread;
  return {.rows = batch * tokens,
          .logit_rows = batch * tree.widest,
          .tokens = tokens,
          .ahead = tree.levels};
}

RoundNeeds nested_needs(const TreeRoom& tree, const NestedShape& shape, int batch, int vocab) {
  const int most = shape.most(tree.levels);
  RoundNeeds within = target_needs(tree, batch, vocab);
  within.logit_rows = within.rows;  // what tokens were drawn from is copied from all of them
  within.tokens += most;
  const TreeRoom chain = TreeRoom::of(chain_tree(1 + most));
  return target_needs(chain, batch, vocab).with(within);
}

RoundNeeds nested_draft_needs(const TreeRoom& tree, const NestedShape& shape, int batch) {
  const int most = shape.most(tree.levels);
  RoundNeeds needs = draft_needs(tree, batch);
  needs.tokens += most;
  needs.ahead = std::max(needs.ahead, 1 + most);
  return needs;
}

void plan_nested_rounds(const TreeRoom& tree, const NestedShape& shape,
                        const decode::EngineSpec& target, const model::ModelConfig& config,
                        bool has_draft, MemoryPlan& plan) {
  NestedDrafter::Within drafter{.room = tree, .draws = has_draft, .reads_text = !has_draft};
  if (has_draft) drafter.outbox_bytes = ModelDrafter::outbox_bytes(tree, target.max_seqs);
  const Round::Bounds within = NestedDrafter::bounds(drafter, shape, target, config.vocab_size);
  Round::plan(within, target.device, plan);
  const TreeRoom chain = TreeRoom::of(chain_tree(1 + shape.most(tree.levels)));
  Round::plan(bounds_of(chain, target, config.vocab_size, true, Round::outbox_bytes_within(within),
                        shape.rounds),
              target.device, plan);
}

void plan_rounds(const TreeRoom& tree, const decode::EngineSpec& target,
                 const model::ModelConfig& config, bool has_draft, MemoryPlan& plan, int beams) {
  Round::plan(
      bounds_of(tree, target, config.vocab_size, has_draft,
                has_draft ? ModelDrafter::outbox_bytes(tree, target.max_seqs) : 0, 0, beams),
      target.device, plan);
}

}  // namespace tandem::speculate
