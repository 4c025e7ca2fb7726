#include "tools/bench/point_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/model_report.h"
#include "bench/speculation/measured_prediction.h"
#include "decode/suggested_sampling.h"
#include "kv/policy.h"
#include "machine/gpu_hardware.h"
#include "recipe/scalar.h"
#include "speculate/measure/channels_json.h"
#include "speculate/plan/prediction.h"
#include "speculate/plan/tree_plan.h"
#include "tools/bench/bench_prompts.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {
namespace {

using bench::Json;

const char kPlain[] = "plain";
constexpr std::string_view kSimulatedWords =
    "accepted tokens are simulated: drawn by alpha or an acceptance vector, not by verification";

bench::BenchSizes sizes_of(const BenchRecipe& r) {
  return {.batch = r.run.batch,
          .context = static_cast<int>(r.run.context.value),
          .new_tokens = r.bench.n_new()};
}

/// Phases name records of a point; the recipe has no draft of that name.
std::string phase_of(const bench::Way& way) {
  return way.draft.kind == speculate::DraftKind::none ? std::string(kPlain)
                                                      : "rounds " + way.name();
}

std::string temperature_text(const BenchRecipe& r) {
  return fmt::format("{:g}", r.sampling.temperature.value_or(0));
}

bench::Record record_of(const cli::Context& cx, const PointRun::Point& point,
                        const bench::Way* way) {
  const BenchRecipe& r = point.recipe;
  bench::Record record = named(bench::Record(cx.info.name), point);
  Json& workload = record.group("workload");
  workload = {{"phase", way != nullptr ? phase_of(*way) : "point"},
              {"batch", r.run.batch},
              {"prompt_tokens", r.run.context.value},
              {"context_tokens", r.run.context.value},
              {"new_tokens", r.bench.n_new()},
              {"temperature", r.sampling.temperature.value_or(0)}};
  if (way != nullptr && way->draft.kind != speculate::DraftKind::none) {
    workload["draft"] = speculate::draft_json(way->draft);
    if (way->chooses)
      workload["gamma"] = "auto";
    else if (way->is_chain() && !way->is_plain() && !way->nested)
      workload["gamma"] = way->gamma();
  }
  return record;
}

/// Which way was the fastest at a point.
std::string verdict(const BenchRecipe& r, const bench::PointRuns& runs) {
  const bench::WayRuns* best = nullptr;
  bench::Gain most;
  for (const bench::WayRuns& way : runs.ways) {
    if (!way.stats || way.error) continue;
    const bench::Gain gain = bench::gain_of(runs.ways.front(), way, runs.prefill_s);
    if (gain.speedup <= most.speedup) continue;
    best = &way;
    most = gain;
  }
  const std::string where = fmt::format("batch {} at {} tokens, temperature {}: ", r.run.batch,
                                        r.run.context.value, temperature_text(r));
  if (best == nullptr) return where + "plain decoding is the fastest";
  const std::string interval =
      most.interval ? fmt::format(" ({:.2f} to {:.2f})", most.interval->low, most.interval->high)
                    : "";
  return where + fmt::format("{} decodes {:.2f} times as fast{} and pays off from output token {}",
                             best->way.name(), most.speedup, interval, *most.pays_from);
}

}  // namespace

PointRun::PointRun(cli::Context& cx, const Point& point)
    : cx_(cx),
      point_(point),
      engines_(point.recipe.model, point.recipe.cache, point.recipe.run, sizes_of(point.recipe),
               cx) {}

void PointRun::fail(const cli::Context& cx, BenchResults& results, const Point& point,
                    const bench::Way* way, const Error& error) {
  results.add_failure(record_of(cx, point, way), error);
}

void PointRun::admit(const std::function<void(const bench::Way&, const Error&)>& report,
                     const BenchResults*) {
  const auto refused = [&](const bench::Way& way, const Error& e) {
    if (cx_.group() && e.kind() != ErrorKind::recipe) throw Error(e);  // others may have had none
    report(way, e);
  };
  const BenchRecipe& r = point_.recipe;
  bench::Way plain;
  plain.draft.name = kPlain;
  plain.draft.kind = speculate::DraftKind::none;
  ways_ = {plain};
  for (const speculate::NamedDraft& draft : r.bench.budgeted()) {
    if (draft.kind == speculate::DraftKind::none)
      ways_.front().draft = draft;
    else
      admit(draft, r.bench.simulate.value_or(engines_.target_files().synthetic()), refused);
  }
  // Another text with copies of its keys near may be one too many.
  for (const bench::Way& way : ways_)
    if (way.grows_trees() && times_trees() && !(way.nested && r.cache.is_hosted()))
      timed_[way.draft.name] = std::max(timed_[way.draft.name], way.proposal().size());
  for (const auto& [name, nodes] : timed_)
    engines_.add_timing(
        name,
        std::ranges::find(ways_, name, [](const bench::Way& w) { return w.draft.name; })
            ->proposer(),
        nodes);
  engines_.size();
}

void PointRun::admit(const speculate::NamedDraft& draft, bool simulates,
                     const std::function<void(const bench::Way&, const Error&)>& refused) {
  const BenchRecipe& r = point_.recipe;
  const auto note = [&](const std::string& text) { cx_.note(text); };
  const auto admit_way = [&](speculate::TokenTree tree, bool chooses) {
    bench::Way way{
        .draft = draft, .tree = std::move(tree), .simulated = simulates, .chooses = chooses};
    try {
      way.acceptance = bench::known_acceptance(draft, r.accept,
                                               static_cast<double>(r.run.context.value), simulates);
      engines_.add(way);
      ways_.push_back(std::move(way));
    } catch (const Error& e) {
      refused(way, e);
    }
  };
  if (draft.kind == speculate::DraftKind::nested) return admit_nested(draft, simulates, refused);
  if (draft.tree.empty()) {
    for (const int gamma : r.spec.gamma.values) admit_way(speculate::chain_tree(gamma + 1), false);
    // Prompt lookup proposes what it finds: its auto is the most, which may be listed too.
    const bool is_listed =
        !draft.proposes_by_model() &&
        std::ranges::find(r.spec.gamma.values, r.most_gamma()) != r.spec.gamma.values.end();
    if (r.spec.gamma.has_auto && !is_listed)
      admit_way(speculate::chain_tree(r.most_gamma() + 1), draft.proposes_by_model());
    return;
  }
  try {
    for (speculate::TokenTree& tree : bench::trees_of(draft, r.tree, r.accept, note))
      admit_way(std::move(tree), false);
  } catch (const Error& e) {
    refused({.draft = draft}, e);
  }
}

void PointRun::admit_nested(const speculate::NamedDraft& draft, bool simulates,
                            const std::function<void(const bench::Way&, const Error&)>& refused) {
  const BenchRecipe& r = point_.recipe;
  const auto context = static_cast<double>(r.run.context.value);
  bench::Way way{.draft = draft, .simulated = simulates};
  bench::NestedWay& nested = way.nested.emplace(bench::NestedWay::of(draft, r.bench.budgeted()));
  std::vector<speculate::TokenTree> trees;
  try {
    if (draft.tree.empty())
      for (const int gamma : r.spec.gamma1) trees.push_back(speculate::chain_tree(gamma + 1));
    else
      trees = bench::trees_of(draft, r.tree, r.accept, [&](const std::string& s) { cx_.note(s); });
    way.acceptance = bench::known_acceptance(nested.self, r.accept, context, simulates);
    speculate::NamedDraft small = nested.small;
    small.tree = draft.tree;
    nested.acceptance = bench::known_acceptance(small, r.accept, context, simulates);
  } catch (const Error& e) {
    return refused(way, e);
  }
  for (const speculate::TokenTree& tree : trees)
    for (const int enough : r.spec.gamma2)
      for (const int rounds : r.spec.inner_steps) {
        nested.tree = tree;
        nested.shape = {.rounds = rounds, .enough = enough};
        way.tree = nested.chain();
        try {
          engines_.add(way);
          ways_.push_back(way);
        } catch (const Error& e) {
          refused(way, e);
        }
      }
}

bench::MeasureSpec PointRun::measure_spec() {
  const BenchRecipe& r = point_.recipe;
  decode::Engine& target = engines_.target();
  bench::MeasureSpec spec{.how = decode::generate_spec(r.sampling, r.run.seed, 0, target.config(),
                                                       target.spec().max_tokens),
                          .warm_ups = r.bench.warm_ups,
                          .random_kv = r.bench.random_kv,
                          .interrupted = cli::agree_interrupted,
                          .verify = r.spec.verify,
                          .floor = r.spec.floors.rule(),
                          .verify_within = r.spec.inner_verify};
  spec.how.max_tokens = r.bench.n_new();
  spec.how.stops.clear();
  if (r.bench.prompts.empty()) spec.how.stop_ids.clear();  // all sequences are of one length
  return spec;
}

PointRun::Times PointRun::time_forwards(const decode::SamplerSpec& sampler) {
  Times times;
  for (const bench::Way& way : ways_) {
    if (!timed_.contains(way.draft.name) || times.contains(way.draft.name)) continue;
    const speculate::Reader verifier =
        way.nested ? engines_.drafter(way.nested->self) : speculate::Reader(engines_.target());
    times[way.draft.name] =
        speculate::measure_times(cx_, verifier, engines_.drafter(way.proposer()),
                                 {.contexts = {engines_.timed_context()},
                                  .largest_tree = timed_.at(way.draft.name),
                                  .batch = point_.recipe.run.batch,
                                  .sampler = sampler});
  }
  return times;
}

void PointRun::run(BenchResults& results) {
  const BenchRecipe& r = point_.recipe;
  const auto missing = [&](const bench::Way& way) {
    return !results.has(point_.id, phase_of(way));
  };
  if (std::ranges::none_of(ways_, missing)) return;
  prompts_ = bench_prompts(r.data, engines_.target_files(),
                           {.context = sizes_of(r).context,
                            .batch = r.run.batch,
                            .batches = r.bench.batches,
                            .seed = static_cast<uint64_t>(r.run.seed),
                            .lines = r.bench.prompts});
  for (const auto& batch : prompts_.batches) {
    decode::PromptSet prompts;
    prompts.sequences = batch;
    require_same(cx_, prompts);
  }
  if (engines_.streams()) link_ = machine::gpu_ceilings(engines_.device());  // while it is idle
  engines_.load(cx_);
  const bench::MeasureSpec spec = measure_spec();
  times_ = time_forwards(spec.how.sampler);
  cli::Progress progress(
      cx_.terminal, fmt::format("batch {} at {} tokens", r.run.batch, r.run.context.value),
      static_cast<double>(ways_.size()) * (r.bench.batches + r.bench.warm_ups), "runs");
  double n_done = 0;
  const bench::PointRuns runs = bench::measure_ways(engines_, prompts_, ways_, spec,
                                                    [&] { return progress.go_on(++n_done); });
  for (const bench::WayRuns& way : runs.ways)
    if (missing(way.way)) report(results, runs, way);
  if (std::ranges::any_of(ways_, &bench::Way::simulated)) cx_.note(std::string(kSimulatedWords));
  cx_.note(verdict(r, runs));
}

void PointRun::report(BenchResults& results, const bench::PointRuns& runs,
                      const bench::WayRuns& way) {
  const BenchRecipe& r = point_.recipe;
  if (way.error) return fail(cx_, results, point_, &way.way, *way.error);
  bench::Record record = record_of(cx_, point_, &way.way);
  add_facts(record, way.way);
  bench::add_measured(record, runs, way, prompts_.mean_tokens());
  if (way.stats) add_streaming(record, way);
  const speculate::NamedDraft& draft = way.way.draft;
  if (way.stats && draft.kind == speculate::DraftKind::self && draft.sparse.any())
    record.group("spec")["channels"] = speculate::channels_json(
        engines_.target(), engines_.drafter(draft).reading.channels, *way.stats);
  bench::add_memory(record, engines_.plan(), peak_resident_bytes(), engines_.device());
  if (!peak_is_own_) record.warn("memory.cpu.peak covers the process over all points so far");
  if (way.way.simulated) record.warn(std::string(kSimulatedWords));
  if (r.bench.predict != PredictMode::no) add_prediction(record, runs, way);
  results.add(record);
}

void PointRun::add_facts(bench::Record& record, const bench::Way& way) {
  const BenchRecipe& r = point_.recipe;
  decode::Engine& target = engines_.target();
  record.group("model") = {{"name", target.files().name},
                           {"dtype", dtype_name(target.model().options().dtype)}};
  if (way.draft.kind == speculate::DraftKind::model)
    record.group("model")["draft"] = way.draft.path.value;
  if (way.nested && !way.nested->looks_up())
    record.group("model")["draft"] = way.nested->small.path.value;
  Json& workload = record.group("workload");
  workload["device"] = target.spec().device.name();
  if (target.spec().device.kind == Device::Kind::cuda)
    workload["gpu"] = cuda::device_info(target.spec().device.index).name;
  if (const int n = engines_.n_ranks(); n > 1) workload["ranks"] = n;
  if (!kv::needs_of(r.cache).reads_all)
    workload["cache"] = {{"kind", recipe::yaml_text(r.cache.kind)},
                         {"place", recipe::yaml_text(r.cache.place)}};
  if (const model::ChannelSets* sets = target.model().sets()) {
    const model::StreamedParts parts =
        model::streamed_parts(target.config().n_layers, target.model().options().places());
    workload["parts_streamed"] = {
        {"rest", parts.rest}, {"ffn", parts.ffn}, {"attention", parts.attention}};
    workload["set_channels"] = sets->n_set();
    workload["exchanged"] = {{"bytes", sets->exchanged().bytes},
                             {"ms", 1e3 * sets->exchanged().seconds},
                             {"note", "of all runs so far, warm-ups too; each way"}};
  } else if (engines_.streams()) {
    workload["layers_streamed"] = target.spec().savings.n_streamed;
  }
  workload["dataset"] = r.bench.random_kv ? "random keys and values" : prompts_.source;
  if (!r.bench.prompts.empty()) workload["prompt_tokens"] = prompts_.mean_tokens();
  workload["n_prompts"] = r.run.batch * r.bench.batches;
  workload["distinct_prompts"] = prompts_.distinct;
  workload["prompts_overlap"] = prompts_.overlap;
  workload["batches"] = r.bench.batches;
  workload["warm_ups"] = r.bench.warm_ups;
  workload["seed"] = r.run.seed;
  workload["simulated_acceptance"] = way.simulated;
  if (way.acceptance && !way.acceptance->file.empty())
    workload["vector"] = {{"file", way.acceptance->file},
                          {"sha256", way.acceptance->sha256},
                          {"method", way.acceptance->method}};
}

void PointRun::add_streaming(bench::Record& record, const bench::WayRuns& way) {
  if (!engines_.streams()) return;
  const double gbps = 1e-9 * static_cast<double>(engines_.target().streamed_bytes()) / way.step_s();
  Json& spec = record.group("spec");
  spec["streamed_gbps"] = gbps;
  const double limit = std::max(gbps, link_.copy_in_gbps);  // copies of a step show it, too
  spec["copy_in_gbps"] = limit;
  spec["frac_of_copy_in"] = gbps / limit;
}

void PointRun::add_prediction(bench::Record& record, const bench::PointRuns& runs,
                              const bench::WayRuns& way) {
  const BenchRecipe& r = point_.recipe;
  if (!way.stats) return;
  std::optional<double> speedup;
  // The roofline knows targets that read all keys.
  if (r.bench.hardware.complete() && way.way.is_chain() && !way.way.nested &&
      speculate::key_choice(way.way.draft.cache, 1) &&
      !recipe::is_quantized(way.way.draft.weights) && kv::needs_of(r.cache).reads_all) {
    speculate::NamedDraft draft = way.way.draft;
    draft.alpha = way.way.acceptance ? way.way.acceptance->rows.front().front()
                                     : way.stats->share_of_tested();
    decode::Engine& target = engines_.target();
    const DType dtype = target.model().options().dtype;
    const speculate::Prediction p =
        speculate::predict(r.bench.hardware, speculate::costs_of(target.config(), dtype), draft,
                           {.work = {r.run.batch, static_cast<double>(r.run.context.value)},
                            .gamma = way.way.chooses ? 0 : way.way.gamma(),
                            .most_gamma = way.way.gamma(),
                            .new_tokens = r.bench.n_new(),
                            .longest = target.config().max_context,
                            .dtype = dtype});
    record.group("predicted_roofline") = speculate::prediction_json(p, r.run.batch);
    speedup = p.chain.speedup;
  }
  const auto times = times_.find(way.way.draft.name);
  const auto predicted = [&]() -> std::optional<bench::MeasuredPrediction> {
    if (way.way.nested)
      return bench::predict_nested(runs, way, times != times_.end() ? &times->second : nullptr);
    return times != times_.end() ? bench::predict_from_forwards(runs, way, times->second)
                                 : bench::predict_from_others(runs, way);
  };
  if (const auto p = predicted()) {
    record.group("predicted") = prediction_json(*p, way.way);
    record.group("spec")["predicted_over_measured"] = 1e-3 * p->round_ms() / way.step_s();
    speedup = p->speedup();
  }
  if (speedup) record.group("spec")["speedup_predicted"] = *speedup;
}

}  // namespace tandem::tools
