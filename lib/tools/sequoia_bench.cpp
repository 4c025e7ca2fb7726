#include "tools/sequoia_bench.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/rng.h"
#include "bench/gpu_hardware.h"
#include "bench/record.h"
#include "bench/stats.h"
#include "recipe/fields_of.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/speculation/proposals.h"
#include "tools/speculation/tree_plan.h"

namespace tandem::tools {
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

speculate::TreeTable table_for(const SequoiaBenchRecipe& r,
                               const speculate::AcceptanceVector& acceptance) {
  const auto [fewest, most] = std::ranges::minmax(r.tree.levels);
  return {acceptance,
          {.max_size = std::ranges::max(r.tree.sizes), .min_levels = fewest, .max_levels = most}};
}

speculate::AcceptanceVector read_vector(const SequoiaBenchRecipe& r) {
  speculate::AcceptanceVector vector = speculate::read_acceptance(r.accept.path, r.accept.layout);
  return r.tree.max_branch ? vector.first_children(*r.tree.max_branch) : vector;
}

}  // namespace

void SequoiaBenchRecipe::check(recipe::Problems& p) const {
  draft.require(p);
  if (accept.path.empty()) p.field("accept.path", "accept.path: name an acceptance vector");
  if (tree.sizes.empty()) p.field("tree.sizes", "tree.sizes: name one at least");
  if (tree.levels.empty()) p.field("tree.levels", "tree.levels: name one at least");
  if (!model.state.empty()) p.field("model.state", "model.state: states are read by pig-generate");
}

SequoiaBench::SequoiaBench(cli::Context& cx, const cli::Point<Recipe>& point)
    : cx_(cx),
      point_(point),
      recipe_(point.recipe),
      acceptance_(read_vector(recipe_)),
      pair_(recipe_.model, recipe_.run, recipe_.draft, Proposer::other_model, cx.dry_run()),
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
  const int room = std::max(longest, timed_context() + kTimingTokens);
  size_for(pair_,
           {.batch = batch, .prefix = true, .longest = room, .total = int64_t{batch + 1} * room},
           speculate::TreeRoom::any(std::ranges::max(recipe_.tree.sizes)));
  PhiloxStream rng(static_cast<uint64_t>(recipe_.run.seed));
  const auto vocab = static_cast<uint32_t>(pair_.target().config.vocab_size);
  for (int b = 0; b < batch; ++b) {
    decode::Request& request = requests_.emplace_back();
    for (int i = 0; i < context_; ++i)
      request.tokens.push_back(static_cast<int32_t>(rng.below(vocab)));
  }
}

int SequoiaBench::print_plan() {
  return pair_.print_plan(
      cx_,
      fmt::format("trees    {} sizes, {} bounds of levels\n", recipe_.tree.sizes.size(),
                  recipe_.tree.levels.size()),
      {{"trees", {{"sizes", recipe_.tree.sizes}, {"levels", recipe_.tree.levels}}}});
}

SequoiaBench::Measured SequoiaBench::measure(decode::Engine& target, speculate::Rounds* rounds) {
  Measured m;
  decode::GenerateSpec how = generate_spec(recipe_.sampling, recipe_.run.seed, 0, target.config(),
                                           target.spec().max_tokens);
  how.max_tokens = recipe_.bench.new_tokens;
  how.stop_ids.clear();  // texts of random weights end anywhere
  how.stops.clear();
  decode::GenerateEvents events;
  events.interrupted = cli::is_interrupted;
  const auto text = [&] {
    return rounds != nullptr ? decode::generate(target, *rounds, requests_, how, events)
                             : decode::generate(target, requests_, how, events);
  };
  // Graphs are recorded and products chosen beforehand, for as many texts at once as are left; of
  // several, other seeds' end at other rounds.
  const int warm_ups = recipe_.run.batch > 1 ? recipe_.bench.texts : 1;
  for (int i = 0; i < warm_ups; ++i) {
    how.sampler.seed = recipe_.run.seed + i;
    (void)text();
  }
  for (int i = 0; i < recipe_.bench.texts; ++i) {
    how.sampler.seed = recipe_.run.seed + i;
    std::optional<speculate::RoundStats> before;
    if (rounds != nullptr) before = rounds->stats();
    const decode::GenerateReport r = text();
    const auto steps = static_cast<double>(r.decode_steps);
    m.step_ms.push_back(1e3 * r.decode_s / steps);
    m.steps += steps;
    m.seconds += r.decode_s;
    m.tokens += static_cast<double>(r.tokens_decoded);
    if (!before) continue;
    const speculate::RoundStats s = rounds->stats().since(*before);
    m.rounds += static_cast<double>(s.rounds);
    m.emitted += static_cast<double>(s.emitted);
    m.draft_s += s.draft_s;
    m.target_s += s.target_s;
    m.verify_s += s.verify_s;
    m.host_s += s.host_s;
  }
  return m;
}

struct SequoiaBench::Figures {
  const speculate::TokenTree& tree;
  Measured measured;
  double expected;   // tokens a round, by the vector
  double per_round;  // as they were
  std::string rule;  // that verified them
  double draft_ms, target_ms, verify_ms, host_us, round_ms, ms_per_token, plain_ms;
  std::optional<double> predicted_ms;

  double speedup() const { return plain_ms / ms_per_token; }
  std::vector<std::string> row() const {
    const auto ms = [](double x) { return fmt::format("{:.3f}", x); };
    return {std::to_string(tree.size()),
            std::to_string(tree.levels()),
            fmt::format("{:.2f}", per_round),
            fmt::format("{:.2f}", expected),
            ms(draft_ms),
            ms(target_ms),
            ms(verify_ms),
            host_us > 0 ? fmt::format("{:.0f}", host_us) : "",
            ms(round_ms),
            predicted_ms ? ms(*predicted_ms) : "",
            predicted_ms ? fmt::format("{:+.1f} %", 100 * (*predicted_ms / round_ms - 1)) : "",
            ms(ms_per_token),
            ms(plain_ms),
            fmt::format("{:.2f}", speedup())};
  }
};

SequoiaBench::Figures SequoiaBench::figures_of(const ModelPair::Engines& engines,
                                               const speculate::TokenTree& tree,
                                               const Baseline& baseline) {
  const bool simulated = recipe_.bench.simulate;
  const auto rounds =
      speculate::model_rounds(*engines.target, *engines.draft, tree,
                              {.verify = recipe_.spec.verify,
                               .simulate = simulated ? std::optional(acceptance_) : std::nullopt});
  const Measured m = measure(*engines.target, rounds.get());
  const double expected = speculate::expected_tokens(tree, acceptance_),
               per_round = m.emitted / m.rounds;
  const Measured& plain = baseline.plain;
  Figures f{.tree = tree,
            .measured = m,
            .expected = expected,
            .per_round = per_round,
            .rule = rounds->stats().rule,
            .draft_ms = 1e3 * m.draft_s / m.steps,
            .target_ms = 1e3 * m.target_s / m.steps,
            .verify_ms = 1e3 * m.verify_s / m.steps,
            .host_us = 1e6 * m.host_s / m.steps,
            .round_ms = bench::median(m.step_ms),
            // Simulated paths scatter about what the vector makes of the tree; own ones are what
            // they are.
            .ms_per_token = 1e3 * m.seconds / (m.rounds * (simulated ? expected : per_round)),
            .plain_ms = 1e3 * plain.seconds / plain.tokens,
            .predicted_ms = {}};
  if (baseline.times) {
    const speculate::PricedTree priced =
        speculate::price_tree(tree, acceptance_, baseline.times->buckets.back(),
                              baseline.times->overhead_ms, baseline.times->skip_deepest);
    f.predicted_ms = priced.cost.ms_per_token * priced.expected;
  }
  return f;
}

bench::Record SequoiaBench::record_of(const ModelPair::Engines& engines, const Figures& f,
                                      const Baseline& baseline) const {
  const decode::EngineSpec& target = engines.target->spec();
  bench::Record record = named(bench::Record(cx_.info.name), point_);
  record.group("model") = {{"name", engines.target->files().name},
                           {"draft", engines.draft->files().name},
                           {"dtype", dtype_name(engines.target->model().options().dtype)}};
  Json& workload = record.group("workload");
  workload = {{"phase", "rounds"},
              {"device", target.device.name()},
              {"batch", recipe_.run.batch},
              {"prompt_tokens", context_},
              {"new_tokens", recipe_.bench.new_tokens},
              {"prompt", "random tokens"},
              {"texts", recipe_.bench.texts},
              {"temperature", recipe_.sampling.temperature}};
  if (target.n_streamed > 0) workload["layers_streamed"] = target.n_streamed;
  if (target.device.kind == Device::Kind::cuda)
    workload["gpu"] = cuda::device_info(target.device.index).name;
  workload["tree"] = {{"size", f.tree.size()},
                      {"levels", f.tree.levels()},
                      {"widths", f.tree.widths()},
                      {"expected_tokens", f.expected}};
  workload["vector"] = {
      {"file", acceptance_.file}, {"sha256", acceptance_.sha256}, {"method", acceptance_.method}};
  workload["simulated_acceptance"] = recipe_.bench.simulate;
  record.set_timing("round", {.ms = f.measured.step_ms});
  record.set_timing("plain_step", {.ms = baseline.plain.step_ms});
  Json& result = record.group("spec");
  result = {{"verify", f.rule},
            {"rounds", f.measured.rounds},
            {"tokens_per_round", f.per_round},
            {"draft_ms", f.draft_ms},
            {"target_ms", f.target_ms},
            {"verify_ms", f.verify_ms},
            {"round_ms", f.round_ms},
            {"ms_per_token", f.ms_per_token},
            {"plain_ms_per_token", f.plain_ms},
            {"speedup", f.speedup()}};
  if (f.host_us > 0) result["host_us"] = f.host_us;
  if (f.predicted_ms) {
    result["predicted_round_ms"] = *f.predicted_ms;
    result["predicted_over_measured"] = *f.predicted_ms / f.round_ms;
  }
  if (target.n_streamed > 0) {
    const double gbps = static_cast<double>(engines.target->streamed_bytes()) / f.round_ms * 1e-6;
    result["streamed_gbps"] = gbps;
    result["copy_in_gbps"] = baseline.limits.copy_in_gbps;
    result["frac_of_copy_in"] = gbps / baseline.limits.copy_in_gbps;
  }
  if (recipe_.bench.simulate)
    record.warn("accepted paths are simulated: drawn from the vector, not from verification");
  return record;
}

SequoiaBench::Baseline SequoiaBench::measure_baseline(const ModelPair::Engines& engines) {
  Baseline baseline;
  baseline.plain = measure(*engines.target, nullptr);
  if (!recipe_.bench.predict) return baseline;
  bench::RoundTimesSpec spec;
  spec.contexts = {timed_context()};
  spec.largest_tree = std::ranges::max(recipe_.tree.sizes);
  spec.batch = recipe_.run.batch;
  spec.sampler =
      generate_spec(recipe_.sampling, recipe_.run.seed, 0, engines.target->config(), 0).sampler;
  baseline.times = measure_times(cx_, engines, spec);
  return baseline;
}

int SequoiaBench::run() {
  BenchResults results(cx_, recipe_.output.path, rounds_table());
  bench::Ceilings limits;  // of the link while it is idle: streamed layers keep it busy
  if (pair_.target_spec().n_streamed > 0) limits = bench::gpu_ceilings(pair_.device());
  const ModelPair::Engines engines = pair_.load(cx_);
  Baseline baseline = measure_baseline(engines);
  baseline.limits = limits;
  cli::Progress progress(
      cx_.terminal, "bench",
      static_cast<double>(recipe_.tree.sizes.size() * recipe_.tree.levels.size()), "trees");
  double done = 0;
  std::set<std::vector<int>> shapes;
  try {
    for (const int size : recipe_.tree.sizes)
      for (const int levels : recipe_.tree.levels) {
        progress.update(done++);
        if (!trees_.expected(size, levels)) {
          cx_.note(fmt::format("no tree of {} nodes has at most {} levels under this vector", size,
                               levels));
          continue;
        }
        const speculate::TokenTree tree = trees_.tree(size, levels);
        if (!shapes.insert(tree.n_children).second) continue;  // more levels are of no use to it
        const Figures f = figures_of(engines, tree, baseline);
        results.add(record_of(engines, f, baseline), f.row());
      }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted) throw;  // points measured until then stay
  }
  if (recipe_.bench.simulate)
    cx_.note("accepted paths were simulated: drawn from the vector, not from verification");
  return results.finish();
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::SequoiaBenchRecipe&);
