#include "tools/magicdec_bench.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <set>

#include "base/parallel.h"
#include "bench/gpu_hardware.h"
#include "bench/model_report.h"
#include "bench/record.h"
#include "cli/plan_text.h"
#include "recipe/fields_of.h"
#include "tools/magicdec/measured_prediction.h"
#include "tools/magicdec/measured_report.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {
namespace {

using bench::Json;
using Point = cli::Point<MagicdecBenchRecipe>;

const char kPlain[] = "plain";

BenchSizes sizes_of(const MagicdecBenchRecipe& r) {
  return {.batch = r.run.batch,
          .context = static_cast<int>(r.run.context.value),
          .new_tokens = r.bench.new_tokens};
}

/// Numbers of drafted tokens that are measured. auto: steps that grow with the number, since the
/// speed-up is flat about its best one.
std::vector<int> gammas_of(const MagicdecBenchRecipe& r) {
  if (!r.spec.gamma.automatic()) return r.spec.gamma.values;
  std::vector<int> list;
  for (const int gamma : {1, 2, 3, 4, 6, 8, 12, 16})
    if (gamma <= r.spec.most_gamma && gamma < r.bench.new_tokens &&
        (gamma + 1) * r.run.batch <= kv::kMaxTreeRows)
      list.push_back(gamma);
  return list;
}

/// All ways to decode at a point, plain decoding first.
std::vector<Way> ways_of(const MagicdecBenchRecipe& r) {
  std::vector<Way> ways(1);
  ways.front().draft.name = kPlain;
  ways.front().draft.kind = DraftKind::none;
  for (const NamedDraft& draft : r.bench.budgeted()) {
    if (draft.kind == DraftKind::none) {
      ways.front().draft = draft;
      continue;
    }
    for (const int gamma : gammas_of(r)) ways.push_back({.draft = draft, .gamma = gamma});
  }
  return ways;
}

/// Phases name records of a point; the recipe has no draft of that name.
std::string phase_of(const Way& way) {
  return way.gamma == 0 ? std::string(kPlain) : "rounds " + way.name();
}

std::string temperature_text(const MagicdecBenchRecipe& r) {
  return fmt::format("{:g}", r.sampling.temperature);
}

std::vector<std::string> row_of(const MagicdecBenchRecipe& r, std::vector<std::string> cells) {
  cells.insert(cells.begin(), {std::to_string(r.run.context.value), std::to_string(r.run.batch),
                               temperature_text(r)});
  cells.resize(measured_columns().size());
  return cells;
}

bench::Record record_of(const cli::Context& cx, const Point& point, const Way* way) {
  const MagicdecBenchRecipe& r = point.recipe;
  bench::Record record = named(bench::Record(cx.info.name), point);
  Json& workload = record.group("workload");
  workload = {{"phase", way != nullptr ? phase_of(*way) : "point"},
              {"batch", r.run.batch},
              {"prompt_tokens", r.run.context.value},
              {"context_tokens", r.run.context.value},
              {"new_tokens", r.bench.new_tokens},
              {"temperature", r.sampling.temperature}};
  if (way != nullptr && way->gamma > 0) {
    workload["draft"] = draft_json(way->draft);
    workload["gamma"] = way->gamma;
  }
  return record;
}

/// Which way was the fastest at a point.
std::string verdict(const MagicdecBenchRecipe& r, const PointRuns& runs) {
  const WayRuns* best = nullptr;
  Gain most;
  for (const WayRuns& way : runs.ways) {
    if (!way.stats || way.error) continue;
    const Gain gain = gain_of(runs.ways.front(), way, runs.prefill_s);
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
  return where +
         fmt::format("{} decodes {:.2f} times as fast{}, and pays from token {} of the output",
                     best->way.name(), most.speedup, interval, *most.pays_from);
}

/// Whether accepted tokens are drawn instead of found.
bool simulates(const MagicdecBenchRecipe& r, const decode::ModelFiles& target) {
  return r.bench.simulate.value_or(target.synthetic());
}

}  // namespace

std::vector<NamedDraft> MagicdecBenchSection::budgeted() const {
  std::vector<NamedDraft> list = drafts;
  for (NamedDraft& draft : list)
    if (budget && draft.bounded()) draft.budget = *budget;
  return list;
}

void MagicdecBenchSection::check(recipe::Problems& p) const {
  if (drafts.empty()) p.field("drafts", "bench.drafts is empty; name one at least");
  if (predict == PredictMode::only && !hardware.complete())
    p.field("hardware",
            "bench.hardware: name a card (h200, a100-80, ...), or give read_gbps and bf16_tflops");
  std::set<std::string> names;
  for (const NamedDraft& d : budgeted()) {
    if (!names.insert(d.name).second)
      p.field("drafts", "bench.drafts uses the name '{}' twice", d.name);
    if (d.kind == DraftKind::model && d.path.value.empty())
      p.field("drafts", "bench.drafts: '{}' is of kind model; name its folder as path", d.name);
    if (d.bounded() && d.budget.value <= d.sinks.value + d.window.value)
      p.field("drafts",
              "bench.drafts: '{}' has a budget of {} tokens, expected more than its {} sinks and "
              "its window of {}",
              d.name, d.budget.value, d.sinks.value, d.window.value);
  }
}

void MagicdecBenchRecipe::check(recipe::Problems& p) const {
  if (run.context.value < 1)
    p.field("run.context", "run.context: expected the tokens of a sequence, found 0");
  if (run.batch < 1) p.field("run.batch", "run.batch: expected a number of sequences, found 0");
  if (bench.predict != PredictMode::only) check_measurement(p);
  if (!model.state.empty()) p.field("model.state", "model.state: states are read by pig-generate");
}

void MagicdecBenchRecipe::check_measurement(recipe::Problems& p) const {
  for (const int gamma : spec.gamma.values)
    if (gamma >= bench.new_tokens)
      p.field("spec.gamma",
              "spec.gamma: is {} tokens, but a sequence gets only {} new ones; lower it, or raise "
              "bench.new_tokens",
              gamma, bench.new_tokens);
  if (run.context.value < 2)
    p.field("run.context", "run.context: expected prompts of 2 tokens or more, found {}",
            run.context.value);
}

/// A point on its way: which of its ways to decode are measured, and on what.
class MagicdecBench::PointRun {
 public:
  PointRun(cli::Context& cx, const Point& point, bool dry_run)
      : cx_(cx),
        point_(point),
        engines_(point.recipe.model, point.recipe.run, sizes_of(point.recipe), dry_run) {}

  /// Admits the ways that can be measured, and sizes the engines for them.
  /// refused  gets the others
  void admit(const std::function<void(const Way&, const Error&)>& refused) {
    const bool simulated = simulates(point_.recipe, engines_.target_files());
    for (Way& way : ways_of(point_.recipe)) try {
        if (way.gamma > 0) {
          if (simulated) way.alpha = alpha_of(way.draft);
          engines_.add(way.draft, way.gamma);
        }
        ways_.push_back(std::move(way));
      } catch (const Error& e) {
        refused(way, e);
      }
    engines_.size();
  }
  const BenchEngines& engines() const { return engines_; }

  /// Measures all of them and reports each by `results`.
  void run(BenchResults& results);

 private:
  /// errors   kind recipe: prompt lookup, whose acceptance nothing simulates; no alpha is known
  double alpha_of(const NamedDraft& draft) const {
    if (draft.kind == DraftKind::ngram)
      throw recipe_error("bench.simulate", "'{}' finds its tokens in the text, which is simulated",
                         draft.name)
          .hint("leave it out, or measure a model with weights");
    return assumed_alpha(draft, static_cast<double>(point_.recipe.run.context.value)).value;
  }
  void report(BenchResults& results, const PointRuns& runs, const WayRuns& way);
  /// By the same draft at other gammas; where there is none by the roofline, if the machine is
  /// given.
  /// result   the speed-up
  std::optional<double> add_prediction(bench::Record& record, const PointRuns& runs,
                                       const WayRuns& way);

  cli::Context& cx_;
  const Point& point_;
  BenchEngines engines_;
  std::vector<Way> ways_;
  BenchPrompts prompts_;
  bool peak_is_own_ = reset_peak_resident();  // the system counts it for every point separately
};

void MagicdecBench::PointRun::run(BenchResults& results) {
  const MagicdecBenchRecipe& r = point_.recipe;
  const auto missing = [&](const Way& way) {
    return !results.has({point_.id, phase_of(way), max_threads()});
  };
  if (std::ranges::none_of(ways_, missing)) return;
  prompts_ = bench_prompts(r.data, engines_.target_files(),
                           {.context = sizes_of(r).context,
                            .batch = r.run.batch,
                            .batches = r.bench.batches,
                            .seed = static_cast<uint64_t>(r.run.seed)});
  engines_.load(cx_);
  decode::Engine& target = engines_.target();
  MeasureSpec spec{
      .how = generate_spec(r.sampling, r.run.seed, 0, target.config(), target.spec().max_tokens),
      .warm_ups = r.bench.warm_ups,
      .random_kv = r.bench.random_kv,
      .verify = r.spec.verify};
  spec.how.max_tokens = r.bench.new_tokens;
  spec.how.stop_ids.clear();  // all sequences are of one length
  spec.how.stops.clear();
  cli::Progress progress(
      cx_.terminal, fmt::format("batch {} at {} tokens", r.run.batch, r.run.context.value),
      static_cast<double>(ways_.size()) * (r.bench.batches + r.bench.warm_ups), "runs");
  double n_done = 0;
  const PointRuns runs =
      measure_ways(engines_, prompts_, ways_, spec, [&] { return progress.go_on(++n_done); });
  for (const WayRuns& way : runs.ways)
    if (missing(way.way)) report(results, runs, way);
  cx_.note(verdict(r, runs));
}

void MagicdecBench::PointRun::report(BenchResults& results, const PointRuns& runs,
                                     const WayRuns& way) {
  const MagicdecBenchRecipe& r = point_.recipe;
  bench::Record record = record_of(cx_, point_, &way.way);
  if (way.error) {
    results.add_failure(record, row_of(r, {way.way.name(), way.error->what()}), *way.error);
    return;
  }
  decode::Engine& target = engines_.target();
  record.group("model") = {{"name", target.files().name},
                           {"dtype", dtype_name(target.model().options().dtype)}};
  if (way.way.draft.kind == DraftKind::model)
    record.group("model")["draft"] = way.way.draft.path.value;
  Json& workload = record.group("workload");
  workload["device"] = target.spec().device.name();
  if (target.spec().device.kind == Device::Kind::cuda)
    workload["gpu"] = cuda::device_info(target.spec().device.index).name;
  workload["dataset"] = r.bench.random_kv ? "random keys and values" : prompts_.source;
  workload["n_prompts"] = r.run.batch * r.bench.batches;
  workload["distinct_prompts"] = prompts_.distinct;
  workload["prompts_overlap"] = prompts_.overlap;
  workload["batches"] = r.bench.batches;
  workload["warm_ups"] = r.bench.warm_ups;
  workload["seed"] = r.run.seed;
  workload["simulated_acceptance"] = way.way.alpha.has_value();
  add_measured(record, runs, way, sizes_of(r).context);
  bench::add_memory(record, engines_.plan(), peak_resident_bytes(), engines_.device());
  if (!peak_is_own_) record.warn("memory.cpu.peak is that of the whole process, all points so far");
  if (way.way.alpha)
    record.warn("accepted tokens are simulated: drawn by alpha, not found by verification");
  const std::optional<double> predicted =
      r.bench.predict == PredictMode::no ? std::nullopt : add_prediction(record, runs, way);
  results.add(record, row_of(r, measured_cells(runs, way, predicted)));
}

std::optional<double> MagicdecBench::PointRun::add_prediction(bench::Record& record,
                                                              const PointRuns& runs,
                                                              const WayRuns& way) {
  const MagicdecBenchRecipe& r = point_.recipe;
  if (!way.stats) return std::nullopt;
  std::optional<double> speedup;
  if (r.bench.hardware.complete()) {
    NamedDraft draft = way.way.draft;
    draft.alpha = way.way.alpha.value_or(way.stats->share_of_tested());
    decode::Engine& target = engines_.target();
    const DType dtype = target.model().options().dtype;
    const Prediction p =
        predict(r.bench.hardware, speculate::costs_of(target.config(), dtype), draft,
                {.work = {r.run.batch, static_cast<double>(r.run.context.value)},
                 .gamma = way.way.gamma,
                 .new_tokens = r.bench.new_tokens,
                 .longest = target.config().max_context,
                 .dtype = dtype});
    record.group("predicted_roofline") = prediction_json(p, r.run.batch);
    speedup = p.chain.speedup;
  }
  if (const auto measured = predict_from_others(runs, way)) {
    record.group("predicted") = prediction_json(*measured);
    speedup = measured->choice.speedup;
  }
  if (speedup) record.group("spec")["speedup_predicted"] = *speedup;
  return speedup;
}

int MagicdecBench::print_plan() {
  if (points_.front().recipe.bench.predict == PredictMode::only) return plan_predictions();
  io::Table table({{"point", io::Align::left},
                   {"context"},
                   {"batch"},
                   {"device", io::Align::left},
                   {"planned peak"},
                   {"available"},
                   {"verdict", io::Align::left}});
  int status = 0;
  for (const Point& point : points_) {
    const MagicdecBenchRecipe& r = point.recipe;
    cli::use_threads(r.run.threads);
    PointRun run(cx_, point, /*dry_run=*/true);
    std::string verdict;
    run.admit([&](const Way& way, const Error& e) {
      verdict += fmt::format(", {}: {}", way.name(), e.what());
      status = exit_status(e.kind());
    });
    const MemoryPlan& plan = run.engines().plan();
    const cli::MemoryLimits limits = run.engines().limits();
    const bool fits = limits.fits(plan);
    if (!fits) status = exit_status(ErrorKind::memory);
    Json line = {{"event", "plan"},
                 {"point", point.id},
                 {"context_tokens", r.run.context.value},
                 {"batch", r.run.batch}};
    line.update(cli::memory_json(plan, limits));
    if (cx_.plans_as_json()) cx_.out.write(line.dump() + "\n");
    table.add_row({point.id, std::to_string(r.run.context.value), std::to_string(r.run.batch),
                   cli::planned_device(limits), format_bytes(plan.peak(run.engines().device())),
                   format_bytes(limits.on_gpu() ? limits.gpu_bytes : limits.host),
                   (fits ? "fits" : "does not fit") + verdict});
  }
  if (!cx_.plans_as_json()) cx_.out.write(table.render(table_format(cx_.format())));
  return status;
}

int MagicdecBench::run() {
  if (points_.front().recipe.bench.predict == PredictMode::only) return run_predictions();
  BenchResults results(cx_, points_.front().recipe.output.path, io::Table(measured_columns()));
  const auto fail = [&](const Point& point, const Way* way, const Error& e) {
    const std::string name = way != nullptr ? way->name() : "all";
    results.add_failure(record_of(cx_, point, way), row_of(point.recipe, {name, e.what()}), e);
  };
  for (const Point& point : points_) {
    if (cli::is_interrupted()) break;
    cli::use_threads(point.recipe.run.threads);
    try {
      PointRun run(cx_, point, /*dry_run=*/false);
      run.admit([&](const Way& way, const Error& e) { fail(point, &way, e); });
      run.run(results);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::interrupted) break;  // points measured until then stay
      fail(point, nullptr, e);
    } catch (const std::bad_alloc&) {
      fail(point, nullptr, Error(ErrorKind::memory, "", "not enough memory"));
    }
  }
  cx_.note(kRoundWords);
  return results.finish();
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::MagicdecBenchRecipe&);
