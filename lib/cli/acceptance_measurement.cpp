#include "cli/acceptance_measurement.h"

#include <algorithm>

#include "cli/generate_flags.h"
#include "cli/load_engine.h"
#include "cli/output.h"
#include "cli/plan_text.h"
#include "model/context.h"
#include "ops/linear.h"
#include "spec/acceptance_meter.h"
#include "spec/pair.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;

ops::VerifyRule verify_rule(const AcceptanceRecipe& recipe, const ops::SampleRule& target) {
  ops::VerifyRule rule;
  rule.target = target;
  rule.draft.temperature = target.temperature;
  // At temperature 0 both rules take the child that is the target's best token.
  const bool drawn = recipe.accept.rule == AcceptRule::sequoia && target.temperature > 0;
  rule.accept_by = drawn ? AcceptBy::residual : AcceptBy::match;
  rule.wants_logprobs = false;
  return rule;
}

std::string method_of(const ops::VerifyRule& rule) {
  if (rule.accept_by == AcceptBy::residual) return "sequoia";
  return rule.target.temperature > 0 ? "topk-sample" : "topk-greedy";
}

}  // namespace

void AcceptanceRecipe::check(recipe::Problems& p) const {
  draft.require(p);
  refuse_states(model, output, p);
  if (output.top_logprobs > 0)
    p.field("output.top_logprobs", "output.top_logprobs: a vector lists no tokens");
  if (sampling.max_tokens < 2)
    p.field("sampling.max_tokens", "sampling.max_tokens: the target must write 2 tokens at least");
}

AcceptanceMeasurement::AcceptanceMeasurement(Context& cx, const Point<AcceptanceRecipe>& point)
    : cx_(cx), recipe_(point.recipe) {
  const decode::PromptSource source = prompt_source(cx);
  const auto seed = static_cast<uint64_t>(recipe_.run.seed);
  device_ = choose_device(recipe_.run, {});
  target_files_ = decode::open_model(recipe_.model.path.value, seed);
  draft_files_ = decode::open_model(recipe_.draft.path.value, seed);
  spec::check_vocabularies(target_files_, draft_files_);
  if (recipe_.accept.width > target_files_.config.vocab_size)
    throw recipe_error("accept.width", "is {}, the vocabulary has {} tokens", recipe_.accept.width,
                       target_files_.config.vocab_size);
  if (!source.empty()) prompts_ = decode::read_prompts(source, target_files_, false);
  const int64_t context = std::min(model::context_of(recipe_.run, target_files_.config),
                                   model::context_of(recipe_.run, draft_files_.config));
  int64_t longest = prompts_.sequences.empty() ? context : 0;
  for (const auto& ids : prompts_.sequences) {
    const auto n = static_cast<int64_t>(ids.size());
    if (n + 2 > context)
      throw input_error("prompt", "has {} tokens, the context of both models holds {}", n, context)
          .hint("shorten the prompt, or use models with a longer context");
    longest = std::max(longest, std::min(context, n + recipe_.sampling.max_tokens));
  }
  for (decode::EngineSpec* spec : {&target_, &draft_}) {
    spec->compute = compute_type(recipe_.model);
    spec->device = device_;
    spec->prefill_chunk = static_cast<int>(std::min<int64_t>(recipe_.run.prefill_chunk, longest));
    spec->max_seqs = 1;
    spec->max_tokens = static_cast<int>(longest);
    spec->total_tokens = longest;
    spec->max_logit_rows = spec::AcceptanceMeter::kRowsAtOnce;
    spec->caches = {recipe::Cache{}};
  }
  target_.n_streamed = layers_to_stream(recipe_.model.offload, target_files_.config,
                                        memory_limits(recipe_.run, device_), [&](int n) {
                                          target_.n_streamed = n;
                                          return plan();
                                        });
}

MemoryPlan AcceptanceMeasurement::plan() const {
  MemoryPlan both = pair_plan(target_files_, target_, draft_files_, draft_);
  both.add("speculation/logits of both models",
           size_t{2} * spec::AcceptanceMeter::kRowsAtOnce *
               static_cast<size_t>(target_files_.config.vocab_size) * sizeof(float));
  return both;
}

void AcceptanceMeasurement::print_plan() {
  const MemoryPlan both = plan();
  const MemoryLimits limits = memory_limits(recipe_.run, device_);
  cx_.out.write(fmt::format("model    {}\ndraft    {}\n{}\n", target_files_.name, draft_files_.name,
                            memory_lines(both, limits)));
  cx_.out.flush();  // the plan first, then what is wrong with it
  limits.check(both);
}

void AcceptanceMeasurement::run() {
  const decode::GenerateSpec how = generate_spec(recipe_.sampling, recipe_.run.seed, 0,
                                                 target_files_.config, target_.max_tokens);
  const MemoryPlan both = plan();
  admit_plan(cx_, both, memory_limits(recipe_.run, device_));
  ResultFile result(recipe_.output.path, cx_.file_mode(), cx_.out);
  const auto target = load_admitted(cx_, std::move(target_files_), target_, both);
  const auto draft = load_admitted(cx_, std::move(draft_files_), draft_, both);
  const ops::VerifyRule rule = verify_rule(recipe_, how.sampler.rule);
  spec::AcceptanceMeter meter(*target, *draft, rule, recipe_.accept.width);
  std::vector<std::vector<int32_t>> texts = prompts_.sequences;
  std::vector<decode::Request> requests;
  for (const auto& ids : prompts_.sequences)
    requests.push_back({.prefix_slot = -1, .prefix = {}, .tokens = ids});
  {
    Progress progress(cx_.terminal, "texts", static_cast<double>(texts.size()), "");
    decode::GenerateEvents events;
    events.interrupted = [] { return interrupted() != 0; };
    events.on_token = [&](const decode::TokenEvent& e) {
      texts[static_cast<size_t>(e.seq)].push_back(e.id);
    };
    double done = 0;
    events.on_finish = [&](int, decode::Finish, const std::string&) { progress.update(++done); };
    decode::generate(*target, requests, how, events);
  }
  Progress progress(cx_.terminal, "measure", static_cast<double>(texts.size()), "texts");
  for (size_t i = 0; i < texts.size(); ++i) {
    meter.add(static_cast<int>(i), recipe_.run.seed, texts[i],
              static_cast<int>(prompts_.sequences[i].size()));
    progress.update(static_cast<double>(i + 1));
  }

  std::vector<double> p, error;
  double all = 0;
  for (int k = 0; k < meter.width(); ++k) {
    p.push_back(meter.mean(k));
    error.push_back(meter.standard_error(k));
    all += p.back();
  }
  const Json vector = {{"format", "acceptance-vector/1"},
                       {"method", method_of(rule)},
                       {"p", p},
                       {"residual", std::max(0.0, 1 - all)},
                       {"stderr", error},
                       {"samples", meter.samples()},
                       {"target", target->files().name},
                       {"draft", draft->files().name},
                       {"temperature", recipe_.sampling.temperature},
                       {"top_p", recipe_.sampling.top_p},
                       {"seed", recipe_.run.seed}};
  result.write(vector.dump() + "\n");
  result.commit();
  cx_.out.flush();
  cx_.note(fmt::format("{} positions; the first child is accepted in {:.1f} % (+- {:.1f}), one of {} in {:.1f} %",
                       meter.samples(), 100 * p[0], 100 * error[0], meter.width(), 100 * all));
}

}  // namespace tandem::cli
