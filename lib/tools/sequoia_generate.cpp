#include "tools/sequoia_generate.h"

#include <nlohmann/json.hpp>

#include "tools/prompts/prompt_flags.h"
#include "tools/results/generate_output.h"

namespace tandem::tools {

SequoiaGenerate::SequoiaGenerate(cli::Context& cx, const cli::Point<SequoiaRecipe>& point)
    : cx_(cx),
      recipe_(point.recipe),
      pair_(recipe_.model, recipe_.run, draft_path(recipe_), cx.dry_run()) {
  const decode::PromptSource source = prompt_source(cx, recipe_.chat);
  if (!source.empty()) prompts_ = decode::read_prompts(source, pair_.target(), false);
  batch_ = batch_size(recipe_.run, std::max<size_t>(1, prompts_.sequences.size()));
  tree_ = largest_tree(recipe_, batch_, pair_.device());
  room_ = room_for(prompts_, pair_.context(), recipe_.sampling.max_tokens, batch_);
  TextRoom room = room_;
  if (measures()) {  // on forks of a text as long as these
    room.prefix = true;
    room.longest += kTimingTokens;
    room.total += int64_t{room.sequences()} * kTimingTokens;
  }
  size_for(pair_, room, tree_);
}

void SequoiaGenerate::print_plan() {
  const bool chosen = pair_.has_draft() && recipe_.tree.path.automatic;
  pair_.print_plan(
      cx_, speculation_plan(pair_, tree_),
      chosen ? fmt::format("tree     chosen when the models are loaded, up to {} nodes\n",
                           tree_.size())
             : fmt::format("tree     {} nodes on {} levels\n", tree_.size(), tree_.levels()),
      {{"tree",
        chosen ? nlohmann::ordered_json{{"most_nodes", tree_.size()}} : tree_facts(tree_)}});
}

SharedPrefix SequoiaGenerate::read_prefix(decode::Engine& target, speculate::Rounds* rounds,
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

ModelPair::Engines SequoiaGenerate::load(const decode::SamplerSpec& sampler, TreePlan& plan,
                                         MemoryPlan& memory) {
  plan.tree = tree_;
  memory = speculation_plan(pair_, tree_);
  if (!chooses()) return pair_.load(cx_, memory);
  const DraftTreeSection& section = recipe_.tree;
  const int context = static_cast<int>(room_.longest);
  const bench::RoundTimesSpec timed = timed_rounds(section, sampler, batch_, context);
  const KeptTimes kept(pair_, timed);
  const std::optional<speculate::TimingTable> known =
      section.timing.empty() ? kept.read(cx_) : speculate::read_timing(section.timing);
  if (known) {
    plan = plan_tree(cx_, section, tree_, *known, timed, context);
    if (declines(plan)) {
      pair_.leave_draft();
      size_for(pair_, room_, speculate::chain_tree(1));
      memory = pair_.plan();
    }
    return pair_.load(cx_, memory);
  }
  ModelPair::Engines engines = pair_.load(cx_, memory);
  const Stopwatch watch;
  const speculate::TimingTable times = measure_times(cx_, engines, timed);
  cx_.note(fmt::format("timed rounds in {:.1f} s", watch.seconds()));
  kept.write(cx_, times);
  plan = plan_tree(cx_, section, tree_, times, timed, context);
  return engines;
}

void SequoiaGenerate::run() {
  decode::GenerateSpec how =
      generate_spec(recipe_.sampling, recipe_.run.seed, recipe_.output.top_logprobs,
                    pair_.target().config, static_cast<int>(room_.longest));
  how.max_active = batch_;  // timing rounds took room for one more
  TreePlan plan;
  MemoryPlan memory;
  const ModelPair::Engines engines = load(how.sampler, plan, memory);
  decode::Engine& target = *engines.target;
  const bool declined = declines(plan);
  const double load_s = load_.seconds();
  if (declined)
    cx_.note(
        fmt::format("speculation would lose here: {:.3f} ms a token predicted, {:.3f} ms without; "
                    "the text is generated plainly (spec.force=true speculates)",
                    plan.predicted->cost.ms_per_token, plan.plain_ms));
  GenerateOutput output(cx_, recipe_.output.path, prompts_, target, memory);
  std::unique_ptr<speculate::Rounds> rounds;
  std::unique_ptr<decode::Decoder> plain;
  if (declined) {
    plain = decode::plain_decoder(target, 0);
  } else {
    rounds = make_rounds(recipe_.spec, engines, plan.tree,
                         {.on_round = [&](const speculate::RoundEvent& e) { output.on_round(e); }});
  }
  decode::Decoder& decoder = declined ? *plain : *rounds;
  decode::GenerateReport before;  // of what all texts begin with
  const SharedPrefix prefix = read_prefix(target, rounds.get(), before);
  decode::GenerateReport report = decode::generate(
      target, decoder, requests_after(prefix, prompts_, prompts_.shared), how, output.events());
  report.prefill_s += before.prefill_s;
  report.prompt_tokens += before.prompt_tokens;
  const nlohmann::ordered_json predicted = plan.json();
  output.finish(report, load_s, recipe_.run.seed,
                {.rounds = declined ? nullptr : &rounds->stats(),
                 .predicted = predicted.is_null() ? nullptr : &predicted,
                 .declined = declined});
}

}  // namespace tandem::tools
