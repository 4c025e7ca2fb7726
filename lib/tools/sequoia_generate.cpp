#include "tools/sequoia_generate.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "cli/plan_text.h"
#include "decode/generate_prompts.h"
#include "speculate/plan/kind_plan.h"
#include "speculate/plan/sets_plan.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/results/generate_output.h"

namespace tandem::tools {
namespace {

constexpr int kMostGamma = 128;  // whose time --dry-run predicts

}  // namespace

SequoiaGenerate::SequoiaGenerate(cli::Context& cx, const cli::Point<Recipe>& point)
    : cx_(cx),
      asked_(point.recipe),
      recipe_(asked_.spec.fastest ? with_all_drafts(asked_) : asked_),
      pair_(recipe_.model, recipe_.run, recipe_.draft, speculate::proposer_of(recipe_), cx,
            recipe_.cache, recipe_.draft2),
      sampling_(settled_sampling(cx, recipe_.sampling, pair_.target())) {
  const decode::PromptSource source = prompt_source(cx, recipe_.chat);
  if (!source.empty())
    prompts_ = decode::read_prompts(source, pair_.target(), false, {.context = pair_.context()});
  if (recipe_.spec.fastest && prompts_.sequences.size() > 1)
    throw usage_error("--fastest", "expected one prompt to try drafts on, found {}",
                      prompts_.sequences.size())
        .hint("run it with one prompt; then run all prompts with the flags that it prints");
  require_same(cx, prompts_);
  batch_ = decode::batch_size(recipe_.run, std::max<size_t>(1, prompts_.sequences.size()));
  tree_ = speculate::given_tree(recipe_);
  rounds_ = speculate::recorded_rounds(
      recipe_.tree, pair_,
      generate_spec(sampling_, recipe_.run.seed, 0, pair_.target().config, 0).sampler.rule);
  room_ = decode::room_for(
      prompts_,
      {.context = pair_.context(), .max_tokens = recipe_.sampling.max_tokens, .batch = batch_});
  speculate::check_gamma(recipe_, pair_.context(), prompts_);
  decode::SequenceRoom room = room_;
  if (measures()) {  // on forks of a text as long as these
    room.prefix = true;
    room.longest += speculate::kTimingTokens;
    room.total += int64_t{room.sequences()} * speculate::kTimingTokens;
  }
  if (recipe_.spec.fastest) {
    room.prefix = true;  // the beginning that all ways go on from
    ways_ = ways_to_try(asked_, room_.longest);
    speculate::size_for(pair_, room, room_of_all_drafts(recipe_), recipe_.spec);
  } else if (chooses_kind()) {
    speculate::size_for_kinds(pair_, room, recipe_);
  } else {
    speculate::size_for(pair_, room, speculate::room_of(recipe_, tree_, batch_, measures()),
                        recipe_.spec);
  }
  if (!recipe_.spec.force) speculate::refuse_full_draft(recipe_, pair_);
}

int SequoiaGenerate::print_fastest_plan() {
  std::string lines;
  auto ways = nlohmann::ordered_json::array();
  for (const TriedWay& way : ways_) {
    if (!way.why_not.empty()) continue;
    lines += fmt::format("{}{}\n", lines.empty() ? "tries    " : "         ", way.name());
    ways.push_back(way.name());
  }
  return cli::print_plan(cx_, pair_, lines, {{"tries", ways}});
}

int SequoiaGenerate::print_plan() {
  note_sampling(cx_, recipe_.sampling, pair_.target());
  if (recipe_.spec.fastest) return print_fastest_plan();
  if (chooses_kind())
    return cli::print_plan(cx_, pair_, "spec     fastest kind of draft at each step\n",
                           {{"rounds", "auto"}});
  if (tree_) {
    std::string lines =
        fmt::format("tree     {} nodes on {} levels\n", tree_->size(), tree_->levels());
    nlohmann::ordered_json facts = {{"tree", speculate::tree_facts(*tree_)}};
    if (recipe_.spec.draft == speculate::DraftKind::nested) {
      const speculate::NestedShape shape = recipe_.spec.nested();
      const int most = shape.most(tree_->levels());
      lines +=
          fmt::format("inner    {} steps per speculation step, drafts of {} tokens, at most {}\n",
                      shape.rounds, std::min(shape.enough, most), most);
      facts["nested"] = {{"rounds", shape.rounds}, {"enough", shape.enough}, {"most", most}};
    }
    const int gamma = recipe_.chooses_gamma() ? 0 : tree_->levels() - 1;
    if (const auto sets =
            speculate::plan_sets(pair_, recipe_.spec.alpha2.value, kMostGamma, gamma)) {
      lines += sets->lines(pair_.target_spec().savings, pair_.target().config);
      facts["offload"] = sets->json();
    }
    return cli::print_plan(cx_, pair_, lines, facts);
  }
  const int most = speculate::most_nodes(recipe_.tree, batch_);
  return cli::print_plan(
      cx_, pair_,
      fmt::format("tree     chosen after the models are loaded, up to {} nodes\n", most),
      {{"tree", {{"most_nodes", most}}}});
}

speculate::ModelPair::Engines SequoiaGenerate::load(const decode::GenerateSpec& how,
                                                    speculate::TreePlan& plan) {
  if (tree_) plan.tree = *tree_;
  if (!chooses()) return pair_.load(cx_);
  const speculate::DraftTreeSection& section = recipe_.tree;
  const int context = static_cast<int>(room_.longest);
  const speculate::RoundTimesSpec timed =
      speculate::timed_rounds(section, how.sampler, batch_, context);
  const speculate::KeptTimes kept(pair_, timed);
  std::optional<speculate::TimingTable> times =
      section.timing.empty() ? kept.read(cx_) : speculate::read_timing(section.timing);
  speculate::TreeEvidence evidence{rounds_, recipe_.spec.verify};
  if (times && !section.measures_acceptance()) {
    plan = speculate::plan_tree(cx_, section, evidence, tree_, *times, timed, context);
    if (declines(plan)) {
      pair_.leave_draft();
      pair_.size(room_,
                 speculate::target_needs({}, room_.sequences(), pair_.target().config.vocab_size));
    }
    return pair_.load(cx_);
  }
  speculate::ModelPair::Engines engines = pair_.load(cx_);
  if (!times) {
    const Stopwatch watch;
    times = speculate::measure_times(cx_, *engines.target, engines.drafter(), timed);
    cx_.note(fmt::format("timed speculation steps in {:.1f} s", watch.seconds()));
    kept.write(cx_, *times);
  }
  if (section.measures_acceptance())
    evidence.measured = speculate::measure_acceptance(cx_, recipe_, engines,
                                                      prompts_.sequences.front(), how, batch_);
  plan = speculate::plan_tree(cx_, section, evidence, tree_, *times, timed, context);
  return engines;
}

int SequoiaGenerate::run() {
  note_sampling(cx_, recipe_.sampling, pair_.target());
  decode::GenerateSpec how = generate_spec(sampling_, recipe_.run.seed, recipe_.output.top_logprobs,
                                           pair_.target().config, static_cast<int>(room_.longest));
  how.max_active = batch_;  // timing rounds took room for one more
  speculate::TreePlan plan;
  std::optional<speculate::KindPlanner> kinds;
  if (chooses_kind())
    kinds.emplace(pair_, recipe_, how.sampler, batch_, static_cast<int>(room_.longest));
  const speculate::ModelPair::Engines engines = load(how, plan);
  decode::Engine& target = *engines.target;
  const bool declined = declines(plan);
  if (cx_.group() && !kinds)
    cx_.group()->require_equal(
        "the tree",
        declined ? "none" : sha256_hex(fmt::format("{}", fmt::join(plan.tree.n_children, " "))));
  const double load_s = load_.seconds();
  if (declined)
    cx_.note(
        fmt::format("speculation would be slower: {:.3f} ms per token predicted, {:.3f} ms "
                    "without. Using plain decoding (override: spec.force=true)",
                    plan.predicted->cost.ms_per_token, plan.plain_ms));
  const TriedWay* fastest = nullptr;
  if (recipe_.spec.fastest) {
    fastest = &try_ways(cx_, engines, prompts_.sequences.front(), how, ways_);
    cx_.note(tried_text(ways_, *fastest));
  }
  GenerateOutput output(cx_, recipe_.output.path, prompts_, target, pair_.plan());
  std::unique_ptr<speculate::Rounds> rounds;
  std::unique_ptr<decode::Decoder> plain;
  const speculate::ChoosingDrafter* chooser = nullptr;
  speculate::RoundOptions options{
      .on_round = [&](const speculate::RoundEvent& e) { output.on_round(e); }};
  if (declined || (fastest != nullptr && fastest->is_plain())) {
    plain = decode::plain_decoder(target);
  } else if (fastest != nullptr) {
    rounds = rounds_of(*fastest, engines, std::move(options));
  } else if (kinds) {
    const speculate::KindPlan kind_plan = kinds->plan(cx_, engines);
    cx_.note(kind_plan.text());
    speculate::ChoosingRounds made =
        speculate::make_choosing_rounds(recipe_, kind_plan, engines, std::move(options));
    rounds = std::move(made.rounds);
    chooser = made.chooser;
  } else {
    rounds = speculate::make_rounds(recipe_, engines, plan.tree, std::move(options));
  }
  decode::PrefixSource prefix;
  if (rounds) prefix.share = [&](std::span<const int32_t> tokens) { rounds->share(tokens); };
  if (prompts_.shared > 0)
    prefix.tokens = std::span(prompts_.sequences.front()).first(prompts_.shared);
  prefix.index = decode::is_indexed_once(pair_.cache(), prefix.tokens.size()) ||
                 decode::is_indexed_once(pair_.self_cache(), prefix.tokens.size());
  std::optional<speculate::PlainMeter> meter;
  if (rounds) meter.emplace(*rounds);
  decode::PromptsReport report =
      decode::generate_prompts(cx_, target, meter ? static_cast<decode::Decoder&>(*meter) : *plain,
                               prompts_, prefix, how, output.events());
  if (meter) report.decode_s -= meter->seconds_spent();
  const nlohmann::ordered_json predicted =
      chooser != nullptr ? speculate::kinds_json(*chooser) : plan.json();
  nlohmann::ordered_json tried;
  if (fastest != nullptr)
    tried = {{"tried", tried_json(ways_, *fastest)}, {"repeat", command_to_repeat(cx_, *fastest)}};
  output.finish(report, load_s, recipe_.run.seed, sampling_,
                {.rounds = rounds ? &rounds->stats() : nullptr,
                 .within = rounds ? rounds->stats_within() : nullptr,
                 .predicted = predicted.is_null() ? nullptr : &predicted,
                 .fastest = tried.is_null() ? nullptr : &tried,
                 .reads_channels = fastest == nullptr || fastest->recipe.draft.sparse.any(),
                 .declined = declined,
                 .plain = meter ? meter->result() : std::nullopt,
                 .remedy = speculate::remedy_of_loss(recipe_)});
  if (fastest != nullptr) cx_.note("repeat with: " + tried["repeat"].get<std::string>());
  return 0;
}

}  // namespace tandem::tools
