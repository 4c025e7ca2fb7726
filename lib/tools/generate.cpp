#include "tools/generate.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "cli/plan_text.h"
#include "decode/fit/load_engine.h"
#include "decode/suggested_sampling.h"
#include "kv/policies/token_index.h"
#include "model/spec/context.h"
#include "recipe/fields_of.h"
#include "speculate/plan/sets_plan.h"
#include "speculate/plan/upgrade.h"
#include "tools/chat/chat_loop.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/results/generate_output.h"

namespace tandem::tools {
namespace {

constexpr int kMostGamma = 128;  // longest chain whose time --dry-run predicts

}  // namespace

cli::ToolInfo generator(cli::ToolInfo own) {
  own.kind = "generate";
  own.flags = prompt_flags();
  own.flags.push_back(
      {.names = "--fastest",
       .value = "",
       .text = "try plain decoding and several drafts on the prompt and use the fastest",
       .key = "spec.fastest"});
  own.upgrade = speculate::upgrade_spec;
  own.positional = "prompt";
  own.formats = {"text", "jsonl", "results"};
  return own;
}

Generate::Generate(cli::Context& cx, const cli::PointName& point,
                   const speculate::GenerateRecipe& asked)
    : cx_(cx),
      point_(point),
      asked_(asked),
      recipe_(asked.spec.fastest ? with_all_drafts(asked) : asked),
      source_(prompt_source(cx, recipe_.chat, !recipe_.model.state.empty())),
      generation_(recipe_, cx),
      pair_(generation_.pair()),
      sampling_(settled_sampling(cx, recipe_.sampling, pair_.target())) {
  if (!recipe_.model.state.empty())
    saved_ = decode::open_state(recipe_.model.state, pair_.target(), pair_.compute());
  bounds_ = {.context = pair_.context(),
             .model_context = speculates() ? 0 : pair_.target().config.max_context,
             .saved = static_cast<int64_t>(n_saved()),
             .max_tokens = recipe_.sampling.max_tokens};
  read_prompts();
  place_adapters();
  bounds_.batch = decode::batch_size(recipe_.run, std::max<size_t>(1, prompts_.sequences.size()));
  const decode::GenerateSpec how =
      decode::generate_spec(sampling_, recipe_.run.seed, 0, pair_.target().config, 0);
  if (speculates()) generation_.read_tree(how.sampler.rule);
  size();
  // Without run.context, a chat halves the model's context until the plan fits.
  constexpr int64_t kLeastContext = 1024;
  while (is_chat() && recipe_.run.context == 0 && bounds_.context >= 2 * kLeastContext &&
         !pair_.limits().fits(pair_.plan())) {
    bounds_.context /= 2;
    size();
  }
  if (speculates() && !recipe_.spec.force) speculate::refuse_full_draft(recipe_, pair_);
}

void Generate::check_chat() const {
  constexpr const char* kBatch = "give messages with --prompts, or leave it out";
  if (saved_)
    throw usage_error("--chat",
                      "cannot be combined with a saved state: the template begins a new chat");
  if (!recipe_.output.state.empty())
    throw usage_error("output.state", "saving the state of a chat is not supported").hint(kBatch);
  if (!recipe_.output.path.empty())
    throw usage_error("output.path", "is not supported for a chat, which writes to the terminal")
        .hint("leave it out; /save FILE writes the conversation");
  if (cx_.format() != "text")
    throw usage_error("--format", "expected text for a chat").hint(kBatch);
  if (!pair_.target().adapters.empty())
    throw usage_error("model.adapters", "named adapters are not supported for a chat")
        .hint("leave the name out to merge the adapter into the weights");
  if (cx_.group())
    throw usage_error("--chat", "a chat on several ranks is not supported").hint(kBatch);
  if (recipe_.sampling.max_tokens == 0)
    throw usage_error("sampling.max_tokens", "expected at least 1 for a chat, found 0");
  if (recipe_.spec.fastest)
    throw usage_error("--fastest", "expected a prompt to try drafts on, found a chat")
        .hint("run it with one prompt; then chat with the flags that it prints");
  if (recipe_.spec.shape.measures_acceptance())
    throw usage_error("spec.shape", "auto measures acceptance on a prompt, but a chat has none yet")
        .hint("name an acceptance vector with spec.shape.accept, or a tree");
}

void Generate::read_prompts() {
  if (is_chat()) {
    check_chat();
    template_ = decode::chat_template_of(pair_.target(), recipe_.chat);
  } else if (!source_.empty()) {
    prompts_ =
        decode::read_prompts(source_, pair_.target(), saved_.has_value(), bounds_.prompt_room());
  } else if (saved_) {
    prompts_.sequences.emplace_back();  // the state itself is the prompt
  }
  if (recipe_.spec.fastest && prompts_.sequences.size() > 1)
    throw usage_error("--fastest", "expected one prompt to try drafts on, found {}",
                      prompts_.sequences.size())
        .hint("run it with one prompt; then run all prompts with the flags that it prints");
  if (saved_ && !saved_->chat_date.empty()) {
    if (!prompts_.date.empty() && prompts_.date != saved_->chat_date)
      throw recipe_error("chat.date", "is {}, but the saved state has the date {}", prompts_.date,
                         saved_->chat_date)
          .hint("set chat.date to the state's date, or save the state again");
    prompts_.date = saved_->chat_date;
  }
  require_same(cx_, prompts_);
  if (!recipe_.output.state.empty() && prompts_.sequences.size() > 1 && prompts_.shared == 0)
    throw usage_error("output.state",
                      "expected prompts with a shared beginning to save, found none")
        .hint("save the state of one prompt, or of a document given with --questions");
}

void Generate::place_adapters() {
  using decode::AdapterUse;
  decode::ModelFiles& files = pair_.target();
  if (files.adapters.empty()) {
    if (recipe_.run.adapters != recipe::AdapterUse::automatic)
      throw recipe_error("run.adapters",
                         "is {}, which needs a named adapter, but model.adapters has none",
                         recipe::yaml_text(recipe_.run.adapters))
          .hint("give an adapter a name, and use that name in lines of --prompts");
    return;
  }
  if (saved_ || !recipe_.output.state.empty())
    throw usage_error("model.adapters", "named adapters do not support saved states")
        .hint(
            "leave the name out to merge the adapter into the weights; the state then belongs to "
            "both");
  std::vector<int>& of = prompts_.adapters;
  of.resize(prompts_.sequences.size(), -1);
  const bool one = !of.empty() && std::ranges::all_of(of, [&](int a) { return a == of[0]; });
  if (one && of[0] < 0)
    cx_.warn(
        "no prompt selects a named adapter. To select one, add \"adapter\" to a line of --prompts");
  if (one && of[0] >= 0 && recipe_.run.adapters == recipe::AdapterUse::automatic) {
    decode::merge_named(files, static_cast<size_t>(of[0]));
    of.clear();
    return;
  }
  if (speculates())
    throw recipe_error("model.adapters",
                       "speculation does not support several named adapters in one run")
        .hint("set spec.draft=none, or select one adapter in all lines of --prompts");
  const bool scales = std::ranges::any_of(files.adapters, [](const model::NamedAdapter& a) {
    const auto* low_rank = std::get_if<model::LowRankAdapter>(a.adapter.get());
    return low_rank != nullptr && low_rank->scales_rows();
  });
  adapters_ = recipe_.run.adapters == recipe::AdapterUse::switched ||
                      (scales && recipe_.run.adapters == recipe::AdapterUse::automatic)
                  ? AdapterUse::switched
                  : AdapterUse::mix;
}

void Generate::size() {
  room_ = decode::room_for(prompts_, bounds_);
  if (is_chat()) {
    constexpr size_t kTokenBytes = 64;  // of a token's text and ids, each several times
    constexpr int kTurns = 64;          // whose prefills differ in their number of rows
    room_.texts = static_cast<size_t>(room_.longest) * kTokenBytes;
    room_.prompts = kTurns;
  }
  room_.prefix = room_.prefix || !recipe_.output.state.empty();
  if (speculates()) speculate::check_gamma(recipe_, bounds_.context, prompts_);
  if (recipe_.spec.fastest) {
    decode::SequenceRoom room = generation_.with_timing(room_);
    room.prefix = true;  // the beginning that all ways go on from
    ways_ = ways_to_try(asked_, room_.longest);
    return speculate::size_for(pair_, room, room_of_all_drafts(recipe_), recipe_.spec);
  }
  generation_.size(room_, bounds_.batch, [&](decode::EngineSpec& spec) {
    spec.adapters = adapters_;
    if (!room_.prefix) return;
    const decode::PrefixSource begin = prefix();
    const auto n = static_cast<int64_t>(n_saved() + begin.tokens.size());
    const bool short_forks = room_.longest - n <= kv::TokenIndex::kMaxForkTokens;
    spec.max_prompts = begin.index && short_forks ? 1 : 0;
  });
}

decode::PrefixSource Generate::prefix() const {
  decode::PrefixSource p{.saved = saved_ ? &*saved_ : nullptr,
                         .save_as = recipe_.output.state,
                         .chat_date = prompts_.date,
                         .existing = cx_.existing()};
  if (!prompts_.sequences.empty()) {
    const std::span<const int32_t> first = prompts_.sequences[0];
    const bool whole = !recipe_.output.state.empty() && prompts_.sequences.size() == 1;
    p.tokens = whole ? first : first.first(prompts_.shared);
  }
  const size_t n = n_saved() + p.tokens.size();
  p.index = recipe_.sampling.max_tokens > 0 && (decode::is_indexed_once(recipe_.cache, n) ||
                                                decode::is_indexed_once(pair_.self_cache(), n));
  return p;
}

int Generate::print_plain_plan() {
  const auto& prompts = prompts_.sequences;
  const decode::EngineSpec& spec = pair_.target_spec();
  cli::PlanView view{.files = pair_.target(),
                     .spec = spec,
                     .plan = pair_.plan(),
                     .limits = pair_.limits(),
                     .context_tokens = spec.max_tokens,
                     .sequences = std::max(1, static_cast<int>(prompts.size())),
                     .recipe_sha256 = point_.sha256,
                     .hosted = pair_.hosted()};
  const size_t shared = prompts_.shared;
  view.add_reading(n_saved(), prompts.empty() ? static_cast<size_t>(spec.max_tokens) : shared);
  // A sequence that adds nothing reads the last token again.
  for (const auto& ids : prompts)
    view.add_reading(n_saved() + shared, std::max<size_t>(1, ids.size() - shared));
  cli::print_plan(cx_, view);
  return 0;
}

int Generate::print_fastest_plan() {
  std::string lines;
  auto ways = nlohmann::ordered_json::array();
  for (const TriedWay& way : ways_) {
    if (!way.why_not.empty()) continue;
    lines += fmt::format("{}{}\n", lines.empty() ? "tries    " : "         ", way.name());
    ways.push_back(way.name());
  }
  return cli::print_plan(cx_, pair_, lines, {{"tries", ways}});
}

int Generate::print_plan() {
  note_sampling(cx_, recipe_.sampling, pair_.target());
  if (!speculates()) return print_plain_plan();
  if (recipe_.spec.fastest) return print_fastest_plan();
  if (generation_.chooses_kind())
    return cli::print_plan(cx_, pair_, "spec     fastest kind of draft at each step\n",
                           {{"rounds", "auto"}});
  if (const auto& tree = generation_.tree()) {
    std::string lines =
        fmt::format("tree     {} nodes on {} levels\n", tree->size(), tree->levels());
    nlohmann::ordered_json facts = {{"tree", speculate::tree_facts(*tree)}};
    if (recipe_.spec.draft.kind == speculate::DraftKind::nested) {
      const speculate::NestedShape shape = recipe_.spec.nested();
      const int most = shape.most(tree->levels());
      lines +=
          fmt::format("inner    {} steps per speculation step, drafts of {} tokens, at most {}\n",
                      shape.rounds, std::min(shape.enough, most), most);
      facts["nested"] = {{"rounds", shape.rounds}, {"enough", shape.enough}, {"most", most}};
    }
    const int gamma = recipe_.chooses_gamma() ? 0 : tree->levels() - 1;
    if (const auto sets =
            speculate::plan_sets(pair_, recipe_.spec.draft.alpha2.value, kMostGamma, gamma)) {
      lines += sets->lines(pair_.target_spec().savings, pair_.target().config);
      facts["offload"] = sets->json();
    }
    return cli::print_plan(cx_, pair_, lines, facts);
  }
  const int most = speculate::most_nodes(recipe_.spec.shape, bounds_.batch);
  return cli::print_plan(
      cx_, pair_,
      fmt::format("tree     chosen after the models are loaded, up to {} nodes\n", most),
      {{"tree", {{"most_nodes", most}}}});
}

Generate::Way Generate::way(const decode::GenerateSpec& how, speculate::RoundOptions options) {
  if (!recipe_.spec.fastest) return {generation_.way(std::move(options))};
  const speculate::ModelPair::Engines& engines = generation_.engines();
  Way way;
  way.fastest = &try_ways(cx_, engines, prompts_.sequences.front(), how, ways_);
  cx_.note(tried_text(ways_, *way.fastest));
  if (way.fastest->is_plain())
    way.plain = decode::plain_decoder(*engines.target);
  else
    way.rounds = rounds_of(*way.fastest, engines, std::move(options));
  return way;
}

void Generate::chat(decode::Engine& engine, decode::Decoder& decoder,
                    const decode::GenerateSpec& how) {
  if (const int most = engine.config().max_context;
      recipe_.run.context == 0 && room_.longest < most)
    cx_.note(fmt::format("context  {} tokens fit in memory, the model supports {}", room_.longest,
                         most));
  decode::Session session(engine, decoder);
  decode::Conversation conversation(session, *template_);
  ChatLoop(cx_, conversation, how, source_.system.value_or(""),
           decode::chat_settings(recipe_.chat).date)
      .run();
  cx_.verbose(fmt::format("memory   peak {}, planned {}", format_bytes(peak_resident_bytes()),
                          format_bytes(pair_.plan().peak({}))));
}

int Generate::run() {
  note_sampling(cx_, recipe_.sampling, pair_.target());
  decode::GenerateSpec how =
      decode::generate_spec(sampling_, recipe_.run.seed, recipe_.output.top_logprobs,
                            pair_.target().config, static_cast<int>(room_.longest));
  how.max_active = bounds_.batch;  // timing rounds took room for one more
  const auto& first = prompts_.sequences;
  decode::Engine& target =
      *generation_.load(how, first.empty() ? std::span<const int32_t>() : first.front()).target;
  const speculate::TreePlan& plan = generation_.plan();
  const bool declined = generation_.declines();
  if (cx_.group() && speculates() && !generation_.chooses_kind())
    cx_.group()->require_equal(
        "the tree",
        declined ? "none" : sha256_hex(fmt::format("{}", fmt::join(plan.tree.n_children, " "))));
  const double load_s = load_.seconds();
  if (declined)
    cx_.note(
        fmt::format("speculation would be slower: {:.3f} ms per token predicted, {:.3f} ms "
                    "without. Using plain decoding (override: spec.force=true)",
                    plan.predicted->cost.ms_per_token, plan.plain_ms));
  GenerateOutput output(cx_, recipe_.output.path, prompts_, target, pair_.plan(), pair_.hosted());
  const Way way = this->way(how, {.on_round = [&](const speculate::RoundEvent& e) {
                              if (!is_chat()) output.on_round(e);
                            }});
  if (is_chat()) {
    chat(target, way.decoder(), how);
    return 0;
  }
  decode::PrefixSource prefix = this->prefix();
  std::optional<speculate::PlainMeter> meter;
  if (way.rounds) {
    prefix.share = [&](std::span<const int32_t> tokens) { way.rounds->share(tokens); };
    meter.emplace(*way.rounds);
  }
  decode::PromptsReport report = decode::generate_prompts(
      cx_, target, meter ? *meter : way.decoder(), prompts_, prefix, how, output.events());
  if (meter) report.decode_s -= meter->seconds_spent();
  const nlohmann::ordered_json predicted =
      way.chooser != nullptr ? speculate::kinds_json(*way.chooser) : plan.json();
  nlohmann::ordered_json tried;
  if (way.fastest != nullptr)
    tried = {{"tried", tried_json(ways_, *way.fastest)},
             {"repeat", command_to_repeat(cx_, *way.fastest)}};
  output.finish(
      report, load_s, recipe_.run.seed, sampling_,
      {.rounds = way.rounds ? &way.rounds->stats() : nullptr,
       .within = way.rounds ? way.rounds->stats_within() : nullptr,
       .predicted = predicted.is_null() ? nullptr : &predicted,
       .fastest = tried.is_null() ? nullptr : &tried,
       .reads_channels = way.fastest == nullptr || way.fastest->recipe.spec.draft.sparse.any(),
       .declined = declined,
       .plain = meter ? meter->result() : std::nullopt,
       .remedy = speculate::remedy_of_loss(recipe_)});
  if (way.fastest != nullptr) cx_.note("repeat with: " + tried["repeat"].get<std::string>());
  return 0;
}

}  // namespace tandem::tools

using namespace tandem;
template recipe::Field recipe::fields_of(tools::GenerateTool<speculate::DraftKind::none>::Recipe&);
template recipe::Field recipe::fields_of(tools::GenerateTool<speculate::DraftKind::model>::Recipe&);
