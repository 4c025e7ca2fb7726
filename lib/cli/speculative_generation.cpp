#include "cli/speculative_generation.h"

#include "cli/generate_flags.h"
#include "cli/generate_output.h"
#include "cli/tree_plan.h"

namespace tandem::cli {

SpeculativeGeneration::SpeculativeGeneration(Context& cx, const Point<SequoiaRecipe>& point)
    : cx_(cx), recipe_(point.recipe), pair_(recipe_.model, recipe_.run, draft_path(recipe_)) {
  const decode::PromptSource source = prompt_source(cx);
  if (!source.empty()) prompts_ = decode::read_prompts(source, pair_.target(), false);
  batch_ = batch_size(recipe_.run, std::max<size_t>(1, prompts_.sequences.size()));
  tree_ = largest_tree(recipe_, batch_, pair_.device());
  TextRoom room = room_for(prompts_, pair_.context(), recipe_.sampling.max_tokens, batch_);
  longest_ = room.longest;
  if (measures()) {  // on forks of a text as long as these
    room.prefix = true;
    room.longest += kTimingTokens;
    room.total += int64_t{room.sequences()} * kTimingTokens;
  }
  size_for(pair_, room, tree_);
}

void SpeculativeGeneration::print_plan() {
  const bool chosen = pair_.has_draft() && recipe_.tree.path.automatic;
  pair_.print_plan(
      cx_, speculation_plan(pair_, tree_),
      chosen ? fmt::format("tree     chosen when the models are loaded, up to {} nodes\n",
                           tree_.size())
             : fmt::format("tree     {} nodes on {} levels\n", tree_.size(), tree_.levels()));
}

SharedPrefix SpeculativeGeneration::read_prefix(decode::Engine& target, spec::Rounds* rounds,
                                                decode::GenerateReport& report) {
  SharedPrefix prefix;
  if (prompts_.shared == 0) return prefix;
  const Stopwatch watch;
  const auto& first = prompts_.sequences.front();
  prefix.tokens.assign(first.begin(), first.begin() + static_cast<long>(prompts_.shared));
  prefix.slot = target.cache().create();
  read_tokens(cx_, target, prefix.slot, prefix.tokens, report);
  if (rounds != nullptr) rounds->share(prefix.tokens);
  report.prefill_s += watch.seconds();
  return prefix;
}

void SpeculativeGeneration::run() {
  decode::GenerateSpec how =
      generate_spec(recipe_.sampling, recipe_.run.seed, recipe_.output.top_logprobs,
                    pair_.target().config, static_cast<int>(longest_));
  how.max_active = batch_;  // timing rounds took room for one more
  const MemoryPlan memory = speculation_plan(pair_, tree_);
  const ModelPair::Engines engines = pair_.load(cx_, memory);
  decode::Engine& target = *engines.target;
  TreePlan plan;
  plan.tree = tree_;
  if (engines.draft)
    plan = plan_tree(cx_, recipe_, tree_, engines, how.sampler, batch_, static_cast<int>(longest_));
  const bool declines = !plan.pays() && !recipe_.spec.force;
  const double load_s = load_.seconds();
  if (declines)
    cx_.note(
        fmt::format("speculation would lose here: {:.3f} ms a token predicted, {:.3f} ms without; "
                    "the text is generated plainly (spec.force=true speculates)",
                    plan.predicted->cost.ms_per_token, plan.plain_ms));
  GenerateOutput output(cx_, recipe_.output.path, prompts_, target, memory);
  std::unique_ptr<spec::Rounds> rounds;
  std::unique_ptr<decode::Decoder> plain;
  if (declines) {
    plain = decode::plain_decoder(target, 0);
  } else {
    rounds = make_rounds(recipe_.spec, engines, plan.tree,
                         {.on_round = [&](const spec::RoundEvent& e) { output.on_round(e); }});
  }
  decode::Decoder& decoder = declines ? *plain : *rounds;
  decode::GenerateReport before;  // of what all texts begin with
  const SharedPrefix prefix = read_prefix(target, rounds.get(), before);
  decode::GenerateReport report = decode::generate(
      target, decoder, requests_after(prefix, prompts_, prompts_.shared), how, output.events());
  report.prefill_s += before.prefill_s;
  report.prompt_tokens += before.prompt_tokens;
  output.finish(report, load_s, recipe_.run.seed,
                {.rounds = declines ? nullptr : &rounds->stats(),
                 .predicted = plan.json(),
                 .declined = declines});
}

}  // namespace tandem::cli
