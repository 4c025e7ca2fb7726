#include "cli/round_benchmark.h"

#include <algorithm>

#include "base/rng.h"
#include "bench/gpu_hardware.h"
#include "bench/record.h"
#include "bench/stats.h"
#include "cli/generate_flags.h"
#include "cli/proposals.h"
#include "cli/tree_plan.h"

namespace tandem::cli {
namespace {

using bench::Json;

io::Table rounds_table() {
  return io::Table({{"nodes"},
                    {"levels"},
                    {"tokens a round"},
                    {"expected"},
                    {"draft ms"},
                    {"target ms"},
                    {"verify ms"},
                    {"host us"},
                    {"round ms"},
                    {"predicted"},
                    {"error"},
                    {"ms a token"},
                    {"plain"},
                    {"speed-up"}});
}

spec::TreeTable table_for(const RoundBenchRecipe& r, const spec::AcceptanceVector& acceptance) {
  const auto [fewest, most] = std::ranges::minmax(r.tree.levels);
  return {acceptance,
          {.max_size = std::ranges::max(r.tree.sizes), .min_levels = fewest, .max_levels = most}};
}

spec::AcceptanceVector read_vector(const RoundBenchRecipe& r) {
  spec::AcceptanceVector vector = spec::read_acceptance(r.accept.path, r.accept.layout);
  return r.tree.max_branch ? vector.first_children(*r.tree.max_branch) : vector;
}

}  // namespace

void RoundBenchRecipe::check(recipe::Problems& p) const {
  draft.require(p);
  if (accept.path.empty()) p.field("accept.path", "accept.path: name an acceptance vector");
  if (tree.sizes.empty()) p.field("tree.sizes", "name a size at least");
  if (tree.levels.empty()) p.field("tree.levels", "name a number of levels at least");
  if (!model.state.empty()) p.field("model.state", "sequoia-bench continues no saved state");
}

RoundBenchmark::RoundBenchmark(Context& cx, const Point<RoundBenchRecipe>& point)
    : cx_(cx),
      point_(point),
      recipe_(point.recipe),
      acceptance_(read_vector(recipe_)),
      pair_(recipe_.model, recipe_.run, recipe_.draft.path.value),
      context_(static_cast<int>(recipe_.run.context.value)),
      trees_(table_for(recipe_, acceptance_)) {
  const int batch = recipe_.run.batch, longest = context_ + recipe_.bench.new_tokens;
  if (longest > pair_.target().config.max_context)
    throw recipe_error("run.context", "{} tokens and {} new ones, the model takes {}", context_,
                       recipe_.bench.new_tokens, pair_.target().config.max_context);
  for (const int size : recipe_.tree.sizes)
    if (size * batch > kv::kMaxTreeRows)
      throw recipe_error("tree.sizes", "{} nodes for each of {} sequences, a step takes {} rows",
                         size, batch, kv::kMaxTreeRows);
  largest_ = roomiest_tree(std::ranges::max(recipe_.tree.sizes), pair_.device());
  const int room = std::max(longest, timed_context() + kTimingTokens);
  size_for(pair_,
           {.batch = batch, .prefix = true, .longest = room, .total = int64_t{batch + 1} * room},
           largest_);
  PhiloxStream rng(static_cast<uint64_t>(recipe_.run.seed));
  const auto vocab = static_cast<uint32_t>(pair_.target().config.vocab_size);
  for (int b = 0; b < batch; ++b) {
    decode::Request& request = requests_.emplace_back();
    for (int i = 0; i < context_; ++i)
      request.tokens.push_back(static_cast<int32_t>(rng.below(vocab)));
  }
}

MemoryPlan RoundBenchmark::plan() const { return speculation_plan(pair_, largest_); }

void RoundBenchmark::print_plan() {
  pair_.print_plan(cx_, plan(),
                   fmt::format("trees    {} sizes, {} bounds of levels\n",
                               recipe_.tree.sizes.size(), recipe_.tree.levels.size()));
}

RoundBenchmark::Measured RoundBenchmark::measure(decode::Engine& target, spec::Rounds* rounds) {
  Measured m;
  decode::GenerateSpec how = generate_spec(recipe_.sampling, recipe_.run.seed, 0, target.config(),
                                           target.spec().max_tokens);
  how.max_tokens = recipe_.bench.new_tokens;
  how.stop_ids.clear();  // texts of random weights end anywhere
  how.stops.clear();
  decode::GenerateEvents events;
  events.interrupted = [] { return interrupted() != 0; };
  const auto text = [&] {
    return rounds != nullptr ? decode::generate(target, *rounds, requests_, how, events)
                             : decode::generate(target, requests_, how, events);
  };
  for (int i = 0; i < recipe_.bench.texts; ++i) {
    how.sampler.seed = recipe_.run.seed + i;
    (void)text();  // graphs are recorded for this seed, products chosen
    const spec::RoundStats before =
        rounds != nullptr ? rounds->stats() : spec::RoundStats("", 1, 0);
    const decode::GenerateReport r = text();
    const auto steps = static_cast<double>(r.decode_steps);
    m.step_ms.push_back(1e3 * r.decode_s / steps);
    m.steps += steps;
    m.seconds += r.decode_s;
    m.tokens += static_cast<double>(r.tokens_decoded);
    if (rounds == nullptr) continue;
    const spec::RoundStats s = rounds->stats().since(before);
    m.rounds += static_cast<double>(s.rounds);
    m.emitted += static_cast<double>(s.emitted);
    m.draft_s += s.draft_s;
    m.target_s += s.target_s;
    m.verify_s += s.verify_s;
    m.host_s += s.host_s;
  }
  return m;
}

void RoundBenchmark::run_tree(const ModelPair::Engines& engines, int size, int levels,
                              const Measured& plain, const spec::TimingTable* times,
                              BenchResults& results) {
  if (!trees_.expected(size, levels)) {
    cx_.note(
        fmt::format("no tree of {} nodes has at most {} levels under this vector", size, levels));
    return;
  }
  const spec::TokenTree tree = trees_.tree(size, levels);
  std::optional<spec::AcceptanceVector> simulated;
  if (recipe_.bench.simulate) simulated = acceptance_;
  const auto rounds = spec::model_rounds(*engines.target, *engines.draft, tree,
                                         {.on_round = {}, .simulate = simulated});
  const Measured m = measure(*engines.target, rounds.get());
  const double round_ms = bench::median(m.step_ms),
               expected = spec::expected_tokens(tree, acceptance_);
  // Simulated paths scatter about what the vector makes of the tree; own ones are what they are.
  const double per_round = m.emitted / m.rounds;
  const double ms_per_token =
      1e3 * m.seconds / (m.rounds * (recipe_.bench.simulate ? expected : per_round));
  const double plain_ms = 1e3 * plain.seconds / plain.tokens;
  const double draft_ms = 1e3 * m.draft_s / m.steps, target_ms = 1e3 * m.target_s / m.steps,
               verify_ms = 1e3 * m.verify_s / m.steps, host_us = 1e6 * m.host_s / m.steps;

  bench::Record record(cx_.info.name);
  record.group("point") = point_.id;
  record.group("recipe") = point_.record;
  record.group("model") = {{"name", engines.target->files().name},
                           {"draft", engines.draft->files().name},
                           {"dtype", dtype_name(engines.target->model().options().dtype)}};
  Json& workload = record.group("workload");
  workload = {{"phase", "rounds"},
              {"device", pair_.device().name()},
              {"batch", recipe_.run.batch},
              {"prompt_tokens", context_},
              {"new_tokens", recipe_.bench.new_tokens},
              {"prompt", "random tokens"},
              {"texts", recipe_.bench.texts},
              {"temperature", recipe_.sampling.temperature}};
  if (engines.target->spec().n_streamed > 0)
    workload["layers_streamed"] = engines.target->spec().n_streamed;
  if (pair_.device().kind == Device::Kind::cuda)
    workload["gpu"] = cuda::device_info(pair_.device().index).name;
  workload["tree"] = {{"size", tree.size()},
                      {"levels", tree.levels()},
                      {"max_levels", levels},
                      {"widths", tree.widths()},
                      {"expected_tokens", expected}};
  workload["vector"] = {
      {"file", acceptance_.file}, {"sha256", acceptance_.sha256}, {"method", acceptance_.method}};
  workload["simulated_acceptance"] = recipe_.bench.simulate;
  record.set_timing("round", {.ms = m.step_ms});
  record.set_timing("plain_step", {.ms = plain.step_ms});
  Json& result = record.group("spec");
  result = {{"rounds", m.rounds},
            {"tokens_per_round", per_round},
            {"draft_ms", draft_ms},
            {"target_ms", target_ms},
            {"verify_ms", verify_ms},
            {"round_ms", round_ms},
            {"ms_per_token", ms_per_token},
            {"plain_ms_per_token", plain_ms},
            {"speedup", plain_ms / ms_per_token}};
  if (m.host_s > 0) result["host_us"] = host_us;
  std::string predicted, error;
  if (times != nullptr) {
    const spec::PricedTree priced = spec::price_tree(tree, acceptance_, times->buckets.back(),
                                                     times->overhead_ms, times->skip_deepest);
    const double ms = priced.cost.ms_per_token * priced.expected;
    result["predicted_round_ms"] = ms;
    result["predicted_over_measured"] = ms / round_ms;
    predicted = fmt::format("{:.3f}", ms);
    error = fmt::format("{:+.1f} %", 100 * (ms / round_ms - 1));
  }
  if (engines.target->spec().n_streamed > 0) {
    const double bytes = static_cast<double>(engines.target->streamed_bytes());
    result["streamed_gbps"] = bytes / round_ms * 1e-6;
    const bench::Ceilings limits = bench::gpu_ceilings(pair_.device());
    result["copy_in_gbps"] = limits.copy_in_gbps;
    result["frac_of_copy_in"] = bytes / round_ms * 1e-6 / limits.copy_in_gbps;
  }
  if (recipe_.bench.simulate)
    record.warn("accepted paths are simulated: drawn from the vector, whatever verification said");
  results.add(
      record,
      {std::to_string(tree.size()), std::to_string(tree.levels()), fmt::format("{:.2f}", per_round),
       fmt::format("{:.2f}", expected), fmt::format("{:.3f}", draft_ms),
       fmt::format("{:.3f}", target_ms), fmt::format("{:.3f}", verify_ms),
       m.host_s > 0 ? fmt::format("{:.0f}", host_us) : "", fmt::format("{:.3f}", round_ms),
       predicted, error, fmt::format("{:.3f}", ms_per_token), fmt::format("{:.3f}", plain_ms),
       fmt::format("{:.2f}", plain_ms / ms_per_token)});
}

int RoundBenchmark::run() {
  BenchResults results(cx_, recipe_.output.path, rounds_table());
  const ModelPair::Engines engines = pair_.load(cx_, plan());
  const Measured plain = measure(*engines.target, nullptr);
  std::optional<spec::TimingTable> times;
  if (recipe_.bench.predict) {
    bench::RoundTimesSpec spec;
    spec.contexts = {timed_context()};
    spec.largest_tree = std::ranges::max(recipe_.tree.sizes);
    spec.batch = recipe_.run.batch;
    spec.sampler =
        generate_spec(recipe_.sampling, recipe_.run.seed, 0, engines.target->config(), 0).sampler;
    times = measured_times(cx_, engines, spec).first;
  }
  Progress progress(cx_.terminal, "bench",
                    static_cast<double>(recipe_.tree.sizes.size() * recipe_.tree.levels.size()),
                    "trees");
  double done = 0;
  for (const int size : recipe_.tree.sizes)
    for (const int levels : recipe_.tree.levels) {
      progress.update(done++);
      run_tree(engines, size, levels, plain, times ? &*times : nullptr, results);
    }
  if (recipe_.bench.simulate)
    cx_.note("accepted paths were simulated: drawn from the vector, whatever verification said");
  return results.finish();
}

}  // namespace tandem::cli
