#include "tools/bench/bench.h"

#include <algorithm>

#include "base/clock.h"
#include "base/parallel.h"
#include "bench/model_report.h"
#include "cli/plan_text.h"
#include "decode/fit/hosted.h"
#include "decode/fit/load_engine.h"
#include "decode/fit/memory_text.h"
#include "decode/fit/rank_plan.h"
#include "decode/fit/sizing.h"
#include "machine/gpu_hardware.h"
#include "machine/hosted_report.h"
#include "recipe/fields_of.h"
#include "recipe/value_of.h"

namespace tandem::tools {
namespace {

using bench::ModelPhase;
using Point = cli::Point<BenchRecipe>;

/// A phase of a point, sized.
struct SizedPhase {
  bench::ModelCase c;
  MemoryPlan plan;
};
/// With the adapters that the phase has.
decode::ModelFiles open_model(const decode::EngineSizer& sizer, const BenchRecipe& r,
                              ModelPhase phase) {
  decode::ModelFiles files = sizer.open_model();
  if (phase == ModelPhase::prefill || phase == ModelPhase::decode || phase == ModelPhase::switching)
    bench::add_adapters(files, r.bench, static_cast<uint64_t>(r.run.seed));
  return files;
}

/// errors   kind recipe: sizes beyond the model's; those of savings_of
SizedPhase size_phase(const decode::EngineSizer& sizer, ModelPhase phase, const BenchRecipe& r,
                      const decode::ModelFiles& files) {
  SizedPhase sized{.c = bench::model_case(r.bench, r.run, r.cache, r.model.compute, files.config,
                                          sizer.device()),
                   .plan = {}};
  sized.c.plan_for = sizer.place().plan_for;
  sized.c.n_ranks = sizer.n_ranks();
  sized.c.comm = sizer.comm();
  if (sizer.group())
    sized.c.agree_on_time = [group = sizer.group()](double ms) {
      (void)cli::agree_interrupted();
      return group->agree(ms);
    };
  bench::ModelCase& c = sized.c;
  c.hosted =
      decode::decide_hosted(sizer, files, c.cache, c.max_tokens(), c.batch,
                            [&](const recipe::Cache& decided, const decode::Savings& savings) {
                              bench::ModelCase with = c;
                              with.cache = decided;
                              with.savings = savings;
                              return bench::phase_plan(phase, with, files);
                            });
  if (c.hosted) c.cache = c.hosted->chosen().cache;
  sized.plan = sizer.save_memory(files.config, [&](const decode::Savings& savings) {
    sized.c.savings = savings;
    return bench::phase_plan(phase, sized.c, files);
  });
  return sized;
}

/// The phases of one point, in their order; prefill and decode share an engine.
class BenchPoint {
 public:
  /// Sets the thread count, and measures the machine's limits where they are not known.
  BenchPoint(cli::Context& cx, const Point& point, BenchResults& results);

  /// Measures a phase and adds its record.
  /// errors   kind input (no such model), recipe, memory, numeric, interrupted
  void run(bench::ModelPhase phase);

 private:
  void report(const bench::ModelIdentity& identity, const bench::PhaseResult& result);
  /// What bounds the CPU; warns where it was measured on a busy machine.
  /// seen   what a phase has reached
  void find_limits(const machine::SeenRates& seen);

  cli::Context& cx_;
  const Point& point_;
  BenchResults& results_;
  decode::EngineSizer sizer_;
  machine::Ceilings ceilings_;
  SizedPhase sized_;  // the engine's, where there is one
  std::unique_ptr<bench::EngineBench> engine_;
  double load_ms_ = 0;
  bool peak_is_own_ = false;  // the system counts the peak of memory for every phase separately
};

BenchPoint::BenchPoint(cli::Context& cx, const Point& point, BenchResults& results)
    : cx_(cx),
      point_(point),
      results_(results),
      sizer_(point.recipe.model, point.recipe.run, {point.recipe.cache}, cx) {
  cx.use_threads(point.recipe.run.threads);
  if (sizer_.device().kind == Device::Kind::cuda) {
    const cli::Progress progress(cx.terminal, "measuring the limits of this GPU", 0, "");
    ceilings_ = machine::gpu_ceilings(sizer_.device());
  } else {
    find_limits({});
  }
  peak_is_own_ = reset_peak_resident();
}

void BenchPoint::find_limits(const machine::SeenRates& seen) {
  const cli::Progress progress(cx_.terminal, "measuring the limits of this machine", 0, "");
  ceilings_ = machine::cached_ceilings(max_threads(), seen);
  if (const std::string text = machine::doubt_text(ceilings_); !text.empty()) cx_.warn(text);
}

void BenchPoint::run(ModelPhase phase) {
  const bool whole = phase == ModelPhase::prefill || phase == ModelPhase::decode;
  // An engine that is there has its adapters.
  decode::ModelFiles files =
      whole && engine_ ? sizer_.open_model() : open_model(sizer_, point_.recipe, phase);
  const model::ModelConfig config = files.config;
  if (!whole) engine_.reset();
  if (!engine_) {
    sized_ = size_phase(sizer_, phase, point_.recipe, files);
    decode::admit_plan(cx_, sized_.plan, sizer_.limits());
  }
  const bench::ModelCase& c = sized_.c;
  const bench::ModelIdentity identity = bench::identify(files, c.dtype);
  if (whole && !engine_) {
    const Stopwatch watch;
    decode::LoadProgress progress(cx_, sized_.plan);
    engine_ = std::make_unique<bench::EngineBench>(std::move(files), c, cli::is_interrupted,
                                                   std::ref(progress));
    load_ms_ = 1e3 * watch.seconds();
    decode::warn_unpinned(cx_, engine_->engine());
  }
  if (phase == ModelPhase::prefill) report(identity, engine_->prefill());
  if (phase == ModelPhase::decode) report(identity, engine_->decode());
  if (phase == ModelPhase::switching) {
    decode::LoadProgress progress(cx_, sized_.plan);
    const auto engine =
        bench::switching_engine(std::move(files), c, cli::is_interrupted, std::ref(progress));
    report(identity, bench::bench_switch(*engine, c));  // while its memory is in use
  }
  if (phase == ModelPhase::load) {
    decode::LoadProgress progress(cx_, sized_.plan);
    report(identity, bench::bench_load([&] { return sizer_.open_model(); }, c, cli::is_interrupted,
                                       std::ref(progress)));
  }
  if (phase == ModelPhase::linear)
    report(identity, bench::bench_linear(c, config, cli::is_interrupted));
  if (phase == ModelPhase::attention)
    report(identity, bench::bench_attention(c, config, cli::is_interrupted));
}

void BenchPoint::report(const bench::ModelIdentity& identity, const bench::PhaseResult& result) {
  const bench::ModelCase& c = sized_.c;
  const size_t peak = peak_resident_bytes();  // before limits may be measured
  const machine::SeenRates seen =
      bench::seen_rates(result.work, bench::median(result.samples.ms), c.dtype);
  if (c.device.kind == Device::Kind::cpu && machine::is_beaten(ceilings_, seen)) find_limits(seen);
  bench::Record record = named(bench::Record(cx_.info.name, &ceilings_), point_);
  bench::add_result(record, c, identity, result, ceilings_);
  if (engine_) record.set_timing("load", {.ms = {load_ms_}});
  bench::add_memory(record, sized_.plan, peak, c.device);
  if (const std::string text = bench::steadiness(result.samples.ms).text(); !text.empty())
    cx_.warn(fmt::format(
        "{} {} of {} at {} tokens is {}. Measure again without other work on these cores, or raise "
        "bench.max_time",
        bench::method_name(c.cache), bench::phase_name(result.phase), identity.name, c.context,
        text));
  if (!peak_is_own_) record.warn("memory.cpu.peak covers the process over all points so far");
  if (!ceilings_.doubt.empty()) record.warn(machine::doubt_text(ceilings_));
  results_.add(record);
  peak_is_own_ = reset_peak_resident();
}

/// Adds a row or prints a line.
/// result   the exit status that the phase asks for
/// ranks    the plan of ranks, of a decode step
int plan_phase(cli::Context& cx, const Point& point, ModelPhase phase, io::Table& table,
               std::string& ranks) {
  const BenchRecipe& r = point.recipe;
  const decode::EngineSizer sizer(r.model, r.run, {r.cache}, cx);
  const decode::MemoryLimits limits = sizer.limits();
  const decode::ModelFiles files = open_model(sizer, r, phase);
  const std::string method = bench::method_name(r.cache), name(bench::phase_name(phase));
  nlohmann::ordered_json j = {{"event", "plan"},      {"point", point.id},
                              {"model", files.name},  {"context_tokens", r.run.context.value},
                              {"batch", r.run.batch}, {"method", method},
                              {"phase", name}};
  std::string peak, verdict;
  int status = 0;
  try {
    const auto [c, plan] = size_phase(sizer, phase, r, files);
    peak = format_bytes(plan.peak(sizer.device()));
    verdict = limits.fits(plan) ? "fits" : "does not fit";
    if (const std::string saved = c.savings.text(files.config.n_layers); !saved.empty())
      verdict += ", " + saved;
    if (c.hosted) {
      verdict += ", attend " + machine::hosted_choice(*c.hosted);
      j["hosted"] = machine::hosted_json(*c.hosted);
    }
    j["prompt_passes"] = c.savings.prompt_passes;
    if (phase == ModelPhase::decode) {
      const decode::RankPlan shared =
          decode::rank_plan(files, bench::phase_engine(phase, c), c.batch, limits);
      ranks = shared.lines();
      if (!ranks.empty()) j["ranks"] = shared.json();
    }
    if (!limits.fits(plan)) status = exit_status(ErrorKind::memory);
    j.update(decode::memory_json(plan, limits));
  } catch (const Error& e) {
    j["error"] = verdict = e.what();
    status = exit_status(e.kind());
  }
  if (cx.plans_as_json()) cx.write_plan(j.dump());
  table.add_row({point.id, files.name, std::to_string(r.run.context.value),
                 std::to_string(r.run.batch), method, name, decode::planned_device(limits), peak,
                 format_bytes(limits.on_gpu() ? limits.gpu_bytes : limits.host), verdict});
  return status;
}

void add_failure(const cli::Context& cx, BenchResults& results, const Point& point,
                 ModelPhase phase, const Error& error) {
  bench::Record record = named(bench::Record(cx.info.name), point);
  const BenchRecipe& r = point.recipe;
  record.group("model")["name"] = r.model.path.value;
  bench::Json& workload = record.group("workload");
  workload = {{"phase", bench::phase_name(phase)}, {"method", bench::method_name(r.cache)}};
  if (r.run.context > 0) workload["prompt_tokens"] = r.run.context.value;
  if (r.run.batch > 0) workload["batch"] = r.run.batch;
  results.add_failure(record, error);
}

}  // namespace

int Bench::plan_phases() {
  io::Table table({{"point", io::Align::left},
                   {"model", io::Align::left},
                   {"context"},
                   {"batch"},
                   {"method", io::Align::left},
                   {"phase", io::Align::left},
                   {"device", io::Align::left},
                   {"planned peak"},
                   {"available"},
                   {"verdict", io::Align::left}});
  int status = 0;
  std::string details;
  for (const Point& point : points_) {
    for (const ModelPhase phase : point.recipe.bench.phases) {
      std::string ranks;
      const int failed = plan_phase(cx_, point, phase, table, ranks);
      if (!ranks.empty())
        details += (points_.size() > 1 ? fmt::format("point    {}\n", point.id) : "") + ranks;
      if (status == 0 || failed == exit_status(ErrorKind::memory)) status = failed;
    }
  }
  if (!cx_.plans_as_json())
    cx_.out.write(table.render(bench::table_format(cx_.format())) + details);
  return status;
}

bool Bench::predicts_only() const {
  const auto only = [](const Point& p) { return p.recipe.bench.predict == PredictMode::only; };
  const bool all = std::ranges::all_of(points_, only);
  if (!all && std::ranges::any_of(points_, only))
    throw recipe_error("bench.predict", "only cannot be swept together with other values")
        .hint("run the tool once to calculate and once to measure");
  return all;
}

int Bench::print_plan() {
  if (predicts_only()) return plan_predictions();
  const auto has_phases = [](const Point& p) { return !p.recipe.bench.phases.empty(); };
  const auto has_drafts = [](const Point& p) { return !p.recipe.bench.drafts.empty(); };
  const int phases = std::ranges::any_of(points_, has_phases) ? plan_phases() : 0;
  const int drafts = std::ranges::any_of(points_, has_drafts) ? DraftSweep::print_plan() : 0;
  return phases != 0 ? phases : drafts;
}

int Bench::run() {
  if (predicts_only()) return run_predictions();
  BenchResults results(cx_, points_.front().recipe.output.path, PointRun::views());
  for (const Point& point : points_)
    if (cli::is_interrupted() || !run_phases(point, results) || !run_point(point, results)) break;
  return finish(results);
}

bool Bench::run_phases(const Point& point, BenchResults& results) {
  const std::vector<ModelPhase>& phases = point.recipe.bench.phases;
  if (phases.empty()) return true;
  double n_phases = 0;
  for (const Point& p : points_) n_phases += static_cast<double>(p.recipe.bench.phases.size());
  cli::Progress progress(cx_.terminal, "bench", n_phases, "phases");
  BenchPoint run(cx_, point, results);
  for (const ModelPhase phase : phases) {
    if (cli::is_interrupted()) return false;
    progress.update(n_done_++);
    if (results.has(point.id, std::string(bench::phase_name(phase)))) continue;
    const auto fail = [&](const Error& e) { add_failure(cx_, results, point, phase, e); };
    if (!attempt(
            cx_, [&] { run.run(phase); }, fail))
      return false;
  }
  return true;
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(
    tandem::tools::BenchTool<tandem::tools::BenchWork::drafts>::Recipe&);
template tandem::recipe::Field tandem::recipe::fields_of(
    tandem::tools::BenchTool<tandem::tools::BenchWork::phases>::Recipe&);
template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::vector<tandem::bench::ModelPhase>&);
