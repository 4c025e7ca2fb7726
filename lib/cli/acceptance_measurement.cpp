#include "cli/acceptance_measurement.h"

#include <algorithm>

#include "cli/generate_flags.h"
#include "cli/output.h"
#include "cli/shared_prefix.h"
#include "spec/measure/acceptance_meter.h"
#include "spec/measure/depth_meter.h"

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

/// Runs `generate` behind a progress line.
void write_texts(Context& cx, decode::GenerateEvents& events, size_t n,
                 const std::function<void()>& generate) {
  Progress progress(cx.terminal, "texts", static_cast<double>(n), "");
  double done = 0;
  events.interrupted = [] { return interrupted() != 0; };
  events.on_finish = [&](int, decode::Finish, const std::string&) { progress.update(++done); };
  generate();
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
    : cx_(cx), recipe_(point.recipe), pair_(recipe_.model, recipe_.run, recipe_.draft.path.value) {
  const decode::PromptSource source = prompt_source(cx);
  const int vocab = pair_.target().config.vocab_size;
  if (recipe_.accept.width > vocab)
    throw recipe_error("accept.width", "is {}, the vocabulary has {} tokens", recipe_.accept.width,
                       vocab);
  if (!source.empty()) prompts_ = decode::read_prompts(source, pair_.target(), false);
  prompts_.shared = 0;  // texts come one after the other
  const spec::RoundNeeds needs{.rows = 1, .logit_rows = spec::AcceptanceMeter::kRowsAtOnce};
  pair_.size(room_for(prompts_, pair_.context(), recipe_.sampling.max_tokens, 1, 2), needs, needs);
  pair_.stream_layers([&] { return plan(); });
}

MemoryPlan AcceptanceMeasurement::plan() const {
  MemoryPlan both = pair_.plan();
  both.add("speculation/logits of both models",
           size_t{2} * spec::AcceptanceMeter::kRowsAtOnce *
               static_cast<size_t>(pair_.target().config.vocab_size) * sizeof(float));
  return both;
}

void AcceptanceMeasurement::print_plan() { pair_.print_plan(cx_, plan()); }

spec::ChanceSums AcceptanceMeasurement::measure_positions(const ModelPair::Engines& engines,
                                                          const ops::VerifyRule& rule,
                                                          const decode::GenerateSpec& how) {
  spec::AcceptanceMeter meter(*engines.target, *engines.draft, rule, recipe_.accept.width);
  std::vector<std::vector<int32_t>> texts = prompts_.sequences;
  decode::GenerateEvents events;
  events.on_token = [&](const decode::TokenEvent& e) {
    texts[static_cast<size_t>(e.seq)].push_back(e.id);
  };
  write_texts(cx_, events, texts.size(), [&] {
    decode::generate(*engines.target, requests_after({}, prompts_, 0), how, events);
  });
  Progress progress(cx_.terminal, "measure", static_cast<double>(texts.size()), "texts");
  for (size_t i = 0; i < texts.size(); ++i) {
    meter.add(static_cast<int>(i), recipe_.run.seed, texts[i],
              static_cast<int>(prompts_.sequences[i].size()));
    progress.update(static_cast<double>(i + 1));
  }
  return meter.sums();
}

std::vector<spec::ChanceSums> AcceptanceMeasurement::measure_depths(
    const ModelPair::Engines& engines, const ops::VerifyRule& rule,
    const decode::GenerateSpec& how) {
  spec::DepthMeter meter(*engines.target, *engines.draft, rule, recipe_.accept.width,
                         recipe_.accept.depths);
  decode::GenerateEvents events;
  write_texts(cx_, events, prompts_.sequences.size(), [&] {
    decode::generate(*engines.target, meter, requests_after({}, prompts_, 0), how, events);
  });
  std::vector<spec::ChanceSums> rows = meter.rows();
  while (rows.size() > 1 && rows.back().samples() == 0) rows.pop_back();  // no node was that deep
  return rows;
}

void AcceptanceMeasurement::run() {
  const decode::GenerateSpec how = generate_spec(
      recipe_.sampling, recipe_.run.seed, 0, pair_.target().config, pair_.target_spec().max_tokens);
  ResultFile result(recipe_.output.path, cx_.file_mode(), cx_.out);
  const ModelPair::Engines engines = pair_.load(cx_, plan());
  const ops::VerifyRule rule = verify_rule(recipe_, how.sampler.rule);
  const std::vector<spec::ChanceSums> rows =
      recipe_.accept.depths > 1 ? measure_depths(engines, rule, how)
                                : std::vector{measure_positions(engines, rule, how)};

  Json p = Json::array(), error = Json::array(), residual = Json::array(), samples = Json::array();
  for (const spec::ChanceSums& row : rows) {
    std::vector<double> means, errors;
    double all = 0;
    for (int k = 0; k < row.width(); ++k) {
      means.push_back(row.mean(k));
      errors.push_back(row.standard_error(k));
      all += means.back();
    }
    cx_.note(
        fmt::format("{}{} positions; the first child is accepted in {:.1f} % (+- {:.1f}), one of "
                    "{} in {:.1f} %",
                    rows.size() > 1 ? fmt::format("depth {}: ", p.size()) : "", row.samples(),
                    100 * means[0], 100 * errors[0], row.width(), 100 * all));
    p.push_back(means);
    error.push_back(errors);
    residual.push_back(std::max(0.0, 1 - all));
    samples.push_back(row.samples());
  }
  const auto one_or_all = [](const Json& list) { return list.size() == 1 ? list[0] : list; };
  const Json vector = {{"format", "acceptance-vector/1"},
                       {"method", method_of(rule)},
                       {rows.size() == 1 ? "p" : "rows", one_or_all(p)},
                       {"residual", one_or_all(residual)},
                       {"stderr", one_or_all(error)},
                       {"samples", one_or_all(samples)},
                       {"target", engines.target->files().name},
                       {"draft", engines.draft->files().name},
                       {"temperature", recipe_.sampling.temperature},
                       {"top_p", recipe_.sampling.top_p},
                       {"seed", recipe_.run.seed}};
  result.write(vector.dump() + "\n");
  result.commit();
  cx_.out.flush();
}

}  // namespace tandem::cli
