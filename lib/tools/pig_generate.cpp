#include "tools/pig_generate.h"

#include <algorithm>

#include "cli/plan_text.h"
#include "decode/chat_settings.h"
#include "decode/fit/load_engine.h"
#include "kv/policies/token_index.h"
#include "model/spec/context.h"
#include "recipe/fields_of.h"
#include "tools/chat/chat_loop.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/results/generate_output.h"

namespace tandem::tools {

PigGenerate::PigGenerate(cli::Context& cx, const cli::Point<Recipe>& point)
    : cx_(cx),
      point_(point),
      recipe_(point.recipe),
      source_(prompt_source(cx, recipe_.chat, !recipe_.model.state.empty())),
      sizer_(recipe_.model, recipe_.run, {recipe_.cache}, cx),
      files_(sizer_.open_model()),
      sampling_(settled_sampling(cx, recipe_.sampling, files_)) {
  if (!recipe_.model.state.empty())
    saved_ = decode::open_state(recipe_.model.state, files_, sizer_.compute());
  decode::SequenceBounds bounds{.context = model::context_of(recipe_.run, files_.config),
                                .model_context = files_.config.max_context,
                                .saved = static_cast<int64_t>(n_saved()),
                                .max_tokens = recipe_.sampling.max_tokens};
  if (is_chat()) {
    check_chat();
    template_ = decode::chat_template_of(files_, recipe_.chat);
  } else if (!source_.empty()) {
    prompts_ = decode::read_prompts(source_, files_, saved_.has_value(), bounds.prompt_room());
  } else if (saved_) {
    prompts_.sequences.emplace_back();  // the state itself is the prompt
  }
  if (saved_ && !saved_->chat_date.empty()) {
    if (!prompts_.date.empty() && prompts_.date != saved_->chat_date)
      throw recipe_error("chat.date", "is {}, but the saved state has the date {}", prompts_.date,
                         saved_->chat_date)
          .hint("set chat.date to the state's date, or save the state again");
    prompts_.date = saved_->chat_date;
  }
  require_same(cx, prompts_);
  if (!recipe_.output.state.empty() && prompts_.sequences.size() > 1 && prompts_.shared == 0)
    throw usage_error("output.state",
                      "expected prompts with a shared beginning to save, found none")
        .hint("save the state of one prompt, or of a document given with --questions");
  place_adapters();
  bounds.batch = decode::batch_size(recipe_.run, std::max<size_t>(1, prompts_.sequences.size()));
  size(bounds);
  // Without run.context, a chat halves the model's context until the plan fits.
  constexpr int64_t kLeastContext = 1024;
  while (is_chat() && recipe_.run.context == 0 && bounds.context >= 2 * kLeastContext &&
         !sizer_.limits().fits(plan_)) {
    bounds.context /= 2;
    size(bounds);
  }
}

void PigGenerate::check_chat() const {
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
  if (!files_.adapters.empty())
    throw usage_error("model.adapters", "named adapters are not supported for a chat")
        .hint("leave the name out to merge the adapter into the weights");
  if (cx_.group())
    throw usage_error("--chat", "a chat on several ranks is not supported").hint(kBatch);
  if (recipe_.sampling.max_tokens == 0)
    throw usage_error("sampling.max_tokens", "expected at least 1 for a chat, found 0");
}

void PigGenerate::size(decode::SequenceBounds bounds) {
  decode::SequenceRoom room = decode::room_for(prompts_, bounds);
  if (is_chat()) {
    constexpr size_t kTokenBytes = 64;  // of a token's text and ids, each several times
    constexpr int kTurns = 64;          // whose prefills differ in their number of rows
    room.texts = static_cast<size_t>(room.longest) * kTokenBytes;
    room.prompts = kTurns;
  }
  room.prefix = room.prefix || !recipe_.output.state.empty();
  spec_ = sizer_.spec(room);
  spec_.adapters = adapters_;
  how_ = generate_spec(sampling_, recipe_.run.seed, recipe_.output.top_logprobs, files_.config,
                       spec_.max_tokens);
  if (room.prefix) {
    const decode::PrefixSource begin = prefix();
    const auto n = static_cast<int64_t>(n_saved() + begin.tokens.size());
    const bool short_forks = room.longest - n <= kv::TokenIndex::kMaxForkTokens;
    spec_.max_prompts = begin.index && short_forks ? 1 : 0;
  }
  hosted_ = decode::decide_hosted(sizer_, files_, spec_, room.batch);
  plan_ = sizer_.save_memory(files_.config, [&](const decode::Savings& savings) {
    spec_.savings = savings;
    MemoryPlan plan = decode::Engine::plan(files_, spec_);
    plan.add(decode::kTextsItem, room.texts);
    return plan;
  });
}

void PigGenerate::place_adapters() {
  using decode::AdapterUse;
  if (files_.adapters.empty()) {
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
    decode::merge_named(files_, static_cast<size_t>(of[0]));
    of.clear();
    return;
  }
  const bool scales = std::ranges::any_of(files_.adapters, [](const model::NamedAdapter& a) {
    const auto* low_rank = std::get_if<model::LowRankAdapter>(a.adapter.get());
    return low_rank != nullptr && low_rank->scales_rows();
  });
  adapters_ = recipe_.run.adapters == recipe::AdapterUse::switched ||
                      (scales && recipe_.run.adapters == recipe::AdapterUse::automatic)
                  ? AdapterUse::switched
                  : AdapterUse::mix;
}

decode::PrefixSource PigGenerate::prefix() const {
  decode::PrefixSource p{.saved = saved_ ? &*saved_ : nullptr,
                         .save_as = recipe_.output.state,
                         .chat_date = prompts_.date,
                         .existing = cx_.existing()};
  if (!prompts_.sequences.empty()) {
    const std::span<const int32_t> first = prompts_.sequences[0];
    const bool whole = !recipe_.output.state.empty() && prompts_.sequences.size() == 1;
    p.tokens = whole ? first : first.first(prompts_.shared);
  }
  p.index = recipe_.sampling.max_tokens > 0 &&
            decode::is_indexed_once(recipe_.cache, n_saved() + p.tokens.size());
  return p;
}

int PigGenerate::print_plan() {
  note_sampling(cx_, recipe_.sampling, files_);
  const auto& prompts = prompts_.sequences;
  cli::PlanView view{.files = files_,
                     .spec = spec_,
                     .plan = plan_,
                     .limits = sizer_.limits(),
                     .context_tokens = spec_.max_tokens,
                     .sequences = std::max(1, static_cast<int>(prompts.size())),
                     .recipe_sha256 = point_.sha256,
                     .hosted = hosted_ ? &*hosted_ : nullptr};
  const size_t shared = prompts_.shared;
  view.add_reading(n_saved(), prompts.empty() ? static_cast<size_t>(spec_.max_tokens) : shared);
  // A sequence that adds nothing reads the last token again.
  for (const auto& ids : prompts)
    view.add_reading(n_saved() + shared, std::max<size_t>(1, ids.size() - shared));
  cli::print_plan(cx_, view);
  return 0;
}

int PigGenerate::run_chat() {
  decode::admit_plan(cx_, plan_, sizer_.limits());
  if (recipe_.run.context == 0 && spec_.max_tokens < files_.config.max_context)
    cx_.note(fmt::format("context  {} tokens fit in memory, the model supports {}",
                         spec_.max_tokens, files_.config.max_context));
  const auto engine = decode::load_engine(cx_, std::move(files_), spec_, plan_);
  const auto decoder = decode::plain_decoder(*engine);
  decode::Conversation conversation(*engine, *decoder, std::move(*template_));
  ChatLoop(cx_, conversation, how_, source_.system.value_or(""),
           decode::chat_settings(recipe_.chat).date)
      .run();
  cx_.verbose(fmt::format("memory   peak {}, planned {}", format_bytes(peak_resident_bytes()),
                          format_bytes(plan_.peak({}))));
  return 0;
}

int PigGenerate::run() {
  note_sampling(cx_, recipe_.sampling, files_);
  if (is_chat()) return run_chat();
  decode::admit_plan(cx_, plan_, sizer_.limits());
  const auto engine = decode::load_engine(cx_, std::move(files_), spec_, plan_);
  const double load_s = load_.seconds();
  GenerateOutput output(cx_, recipe_.output.path, prompts_, *engine, plan_,
                        hosted_ ? &*hosted_ : nullptr);
  const auto decoder = decode::plain_decoder(*engine);
  const decode::PromptsReport report =
      decode::generate_prompts(cx_, *engine, *decoder, prompts_, prefix(), how_, output.events());
  output.finish(report, load_s, recipe_.run.seed, sampling_);
  return 0;
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::GenerateRecipe&);
