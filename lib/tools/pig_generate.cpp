#include "tools/pig_generate.h"

#include <algorithm>

#include "base/parallel.h"
#include "cli/plan_text.h"
#include "kv/policies/token_index.h"
#include "model/context.h"
#include "recipe/fields_of.h"
#include "tools/engines/load_engine.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {

PigGenerate::PigGenerate(cli::Context& cx, const cli::Point<GenerateRecipe>& point)
    : cx_(cx), point_(point), recipe_(point.recipe) {
  const decode::PromptSource source = prompt_source(cx, recipe_.chat, !recipe_.model.state.empty());
  place_ = cli::choose_placement(recipe_.run, recipe_.cache, recipe_.model.offload, cx.dry_run());
  files_ = decode::open_model(recipe_.model.path.value, static_cast<uint64_t>(recipe_.run.seed));
  if (!recipe_.model.state.empty())
    saved_ = decode::open_state(recipe_.model.state, files_, compute_type(recipe_.model));
  if (!source.empty())
    prompts_ = decode::read_prompts(source, files_, saved_.has_value());
  else if (saved_)
    prompts_.sequences.emplace_back();  // the state itself is the prompt
  if (!recipe_.output.state.empty() && prompts_.sequences.size() > 1 && prompts_.shared == 0)
    throw usage_error("output.state", "the prompts share no beginning that could be saved")
        .hint("save the state of one prompt, or of a document with --questions");
  spec_ = engine_spec();
  spec_.n_streamed = layers_to_stream(recipe_.model.offload, files_.config,
                                      cli::memory_limits(recipe_.run, place_), [&](int n) {
                                        spec_.n_streamed = n;
                                        return decode::Engine::plan(files_, spec_);
                                      });
}

decode::EngineSpec PigGenerate::engine_spec() const {
  const int64_t context = model::context_of(recipe_.run, files_.config);
  int64_t longest = 0, own = 0;
  auto fresh = static_cast<int64_t>(prompts_.shared);  // prompt tokens that are not in a state
  std::vector<int64_t> lengths;
  for (const auto& ids : prompts_.sequences) {
    const auto n = static_cast<int64_t>(n_saved() + ids.size());
    if (n > context)
      throw input_error("prompt", "has {} tokens, the context holds {}", n, context)
          .hint(n > files_.config.max_context
                    ? "shorten the prompt, or use a model with a longer context"
                    : "raise run.context, or leave it out");
    lengths.push_back(std::min(context, n + recipe_.sampling.max_tokens));
    longest = std::max(longest, lengths.back());
    fresh += static_cast<int64_t>(ids.size() - prompts_.shared);
  }
  if (lengths.empty()) lengths = {longest = context};
  const auto shared = static_cast<int64_t>(n_saved() + prompts_.shared);
  const int batch = batch_size(recipe_.run, lengths.size());
  std::sort(lengths.rbegin(), lengths.rend());
  for (int i = 0; i < batch; ++i) own += lengths[static_cast<size_t>(i)] - shared;
  const bool prefix = shared > 0 || !recipe_.output.state.empty();
  decode::EngineSpec spec;
  spec.compute = compute_type(recipe_.model);
  spec.device = place_.device;
  spec.plan_for = place_.plan_for;
  const int64_t rows = prompts_.sequences.empty() ? context : std::max<int64_t>(1, fresh);
  spec.prefill_chunk = static_cast<int>(std::min<int64_t>(recipe_.run.prefill_chunk, rows));
  spec.max_seqs = batch + (prefix ? 1 : 0);
  spec.max_extend_rows = spec.max_seqs;  // one token of each
  spec.max_tokens = static_cast<int>(longest);
  spec.total_tokens = shared + own;
  const bool short_forks =
      longest - static_cast<int64_t>(prefix_tokens()) <= kv::TokenIndex::kMaxForkTokens;
  spec.max_prompts = !prefix ? batch : indexes_prefix() && short_forks ? 1 : 0;
  spec.caches = {recipe_.cache};
  return spec;
}

void PigGenerate::print_plan() {
  const MemoryPlan plan = decode::Engine::plan(files_, spec_);
  const cli::MemoryLimits limits = cli::memory_limits(recipe_.run, place_);
  int64_t tokens = 0;
  double pairs = 0;
  const auto add = [&](size_t before, size_t n) {
    tokens += static_cast<int64_t>(n);
    pairs += static_cast<double>(n) * (static_cast<double>(before) + static_cast<double>(n) / 2);
  };
  const size_t shared = prompts_.shared;
  if (prompts_.sequences.empty())
    add(0, static_cast<size_t>(spec_.max_tokens));
  else
    add(n_saved(), shared);
  // A sequence that adds nothing reads the last token again.
  for (const auto& ids : prompts_.sequences)
    add(n_saved() + shared, std::max<size_t>(1, ids.size() - shared));
  const cli::PlanView view{.files = files_,
                           .spec = spec_,
                           .plan = plan,
                           .limits = limits,
                           .prompt_tokens = tokens,
                           .prompt_pairs = pairs,
                           .context_tokens = spec_.max_tokens,
                           .sequences = std::max(1, static_cast<int>(prompts_.sequences.size())),
                           .recipe_sha256 = point_.sha256};
  const auto ceilings = bench::known_ceilings(max_threads());
  cx_.out.write(cx_.plans_as_json() ? cli::plan_json(view, ceilings) + "\n"
                                    : cli::plan_text(view, ceilings));
  cx_.out.flush();  // the plan first, then what is wrong with it
  limits.check(plan);
}

std::span<const int32_t> PigGenerate::fresh_prefix() const {
  if (prompts_.sequences.empty()) return {};
  const std::span<const int32_t> first = prompts_.sequences[0];
  const bool whole = !recipe_.output.state.empty() && prompts_.sequences.size() == 1;
  return whole ? first : first.first(prompts_.shared);
}

bool PigGenerate::indexes_prefix() const {
  // An index holds the mean of its keys, for all that follows: not of a few words that prompts
  // happen to begin with. What is shorter costs little to index again.
  const auto shortest = static_cast<size_t>(recipe_.cache.sinks + recipe_.cache.recent) +
                        size_t{kv::TokenIndex::kRoll};
  return recipe_.sampling.max_tokens > 0 && prefix_tokens() >= shortest;
}

SharedPrefix PigGenerate::read_prefix(decode::Engine& engine, decode::GenerateReport& report) {
  SharedPrefix p;
  const std::span<const int32_t> fresh = fresh_prefix();
  if (!saved_ && fresh.empty()) return p;
  const Stopwatch watch;
  p.slot = saved_ ? decode::restore_state(*saved_, engine, 0) : engine.cache().create();
  if (saved_) p.tokens = saved_->tokens;
  if (!fresh.empty()) read_tokens(cx_, engine, p.slot, fresh, report);
  // No end of a prompt, where a window would move on: only an index.
  if (indexes_prefix()) engine.cache().adopt_prompt(p.slot);
  p.tokens.insert(p.tokens.end(), fresh.begin(), fresh.end());
  report.prefill_s += watch.seconds();
  if (!recipe_.output.state.empty())
    decode::save_state(recipe_.output.state, engine, p.slot, p.tokens);
  return p;
}

void PigGenerate::read_all(decode::Engine& engine, std::span<const decode::Request> requests,
                           decode::GenerateReport& report) {
  const Stopwatch watch;
  for (const decode::Request& r : requests) {
    if (r.tokens.empty()) continue;
    const int slot =
        r.prefix_slot >= 0 ? engine.cache().fork(r.prefix_slot, 0) : engine.cache().create();
    read_tokens(cx_, engine, slot, r.tokens, report);
    engine.cache().release(slot);
  }
  report.prefill_s += watch.seconds();
}

void PigGenerate::run() {
  const MemoryPlan plan = decode::Engine::plan(files_, spec_);
  const decode::GenerateSpec how =
      generate_spec(recipe_.sampling, recipe_.run.seed, recipe_.output.top_logprobs, files_.config,
                    spec_.max_tokens);
  const auto loaded =
      load_engine(cx_, std::move(files_), spec_, plan, cli::memory_limits(recipe_.run, place_));
  decode::Engine& engine = *loaded;
  const double load_s = load_.seconds();
  GenerateOutput output(cx_, recipe_.output.path, prompts_, engine, plan);

  decode::GenerateReport before;  // of what is read here
  const SharedPrefix prefix = read_prefix(engine, before);
  std::vector<decode::Request> requests =
      requests_after(prefix, prompts_, prefix.tokens.size() - n_saved());
  if (recipe_.sampling.max_tokens == 0) {
    read_all(engine, requests, before);
    requests.clear();
  }
  decode::GenerateReport report = decode::generate(engine, requests, how, output.events());
  report.prefill_s += before.prefill_s;
  report.prompt_tokens += before.prompt_tokens;
  output.finish(report, load_s, recipe_.run.seed);
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::GenerateRecipe&);
