#include "tools/pig_bench.h"

#include <new>

#include "base/parallel.h"
#include "bench/model_report.h"
#include "cli/plan_text.h"
#include "recipe/fields_of.h"
#include "recipe/value_of.h"
#include "tools/pig_bench_point.h"

namespace tandem::tools {
namespace {

using bench::ModelPhase;

void add_failure(const cli::Context& cx, BenchResults& results,
                 const cli::Point<BenchRecipe>& point, ModelPhase phase, const Error& error) {
  bench::Record record(cx.info.name);
  record.group("point") = point.id;
  record.group("recipe") = *point.record;
  record.group("workload")["phase"] = bench::phase_name(phase);
  const BenchRecipe& r = point.recipe;
  results.add_failure(
      record, bench::failed_row(r.model.path.value, r.run, r.cache, phase, error.what()), error);
}

}  // namespace

int PigBench::print_plan() {
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
  for (const cli::Point<BenchRecipe>& point : points_) {
    use_threads(point.recipe.run);
    for (const ModelPhase phase : point.recipe.bench.phases) {
      const int failed = plan_phase(point, phase, table);
      if (status == 0 || failed == exit_status(ErrorKind::memory)) status = failed;
    }
  }
  if (!cx_.plans_as_json()) cx_.out.write(table.render(table_format(cx_.format())));
  return status;
}

int PigBench::plan_phase(const cli::Point<BenchRecipe>& point, ModelPhase phase, io::Table& table) {
  const BenchRecipe& r = point.recipe;
  const cli::Placement place =
      cli::choose_placement(r.run, r.cache, r.model.offload, /*dry_run=*/true);
  const cli::MemoryLimits limits = cli::memory_limits(r.run, place);
  const decode::ModelFiles files = open_model(r);
  const std::string method = bench::method_name(r.cache), name(bench::phase_name(phase));
  nlohmann::ordered_json j = {{"event", "plan"},      {"point", point.id},
                              {"model", files.name},  {"context_tokens", r.run.context.value},
                              {"batch", r.run.batch}, {"method", method},
                              {"phase", name}};
  std::string peak, verdict;
  int status = 0;
  try {
    bench::ModelCase c = case_of(r, files.config, place);
    c.n_streamed = layers_to_stream(phase, r, c, files);
    const MemoryPlan plan = bench::phase_plan(phase, c, files);
    peak = format_bytes(plan.peak(place.device));
    verdict = limits.fits(plan) ? "fits" : "does not fit";
    if (c.n_streamed > 0)
      verdict +=
          fmt::format(", {} of {} layers in host memory", c.n_streamed, files.config.n_layers);
    if (!limits.fits(plan)) status = exit_status(ErrorKind::memory);
    j.update(cli::memory_json(plan, limits));
  } catch (const Error& e) {
    j["error"] = verdict = e.what();
    status = exit_status(e.kind());
  }
  if (cx_.plans_as_json()) cx_.out.write(j.dump() + "\n");
  table.add_row({point.id, files.name, std::to_string(r.run.context.value),
                 std::to_string(r.run.batch), method, name, cli::planned_device(limits), peak,
                 format_bytes(limits.on_gpu() ? limits.gpu_bytes : limits.host), verdict});
  return status;
}

int PigBench::run() {
  BenchResults results(cx_, points_.front().recipe.output.path, bench::model_table());
  double n_phases = 0;
  for (const cli::Point<BenchRecipe>& point : points_)
    n_phases += static_cast<double>(point.recipe.bench.phases.size());
  {
    cli::Progress progress(cx_.terminal, "bench", n_phases, "phases");
    for (const cli::Point<BenchRecipe>& point : points_) {
      if (cli::interrupted() != 0) break;
      run_point(point, results, progress);
    }
  }
  const int status = results.finish();
  for (const std::string& line : bench::break_even(decode_times_)) cx_.note(line);
  return status;
}

void PigBench::run_point(const cli::Point<BenchRecipe>& point, BenchResults& results,
                         cli::Progress& progress) {
  BenchPoint run(cx_, point, results, decode_times_);
  for (const ModelPhase phase : point.recipe.bench.phases) {
    if (cli::interrupted() != 0) return;
    progress.update(n_done_++);
    if (results.has({point.id, std::string(bench::phase_name(phase)), max_threads()})) continue;
    try {
      run.run(phase);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::interrupted) return;
      add_failure(cx_, results, point, phase, e);
    } catch (const std::bad_alloc&) {
      add_failure(cx_, results, point, phase, Error(ErrorKind::memory, "", "not enough memory"));
    }
  }
}

}  // namespace tandem::tools

template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::vector<tandem::bench::ModelPhase>&);

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::BenchRecipe&);
