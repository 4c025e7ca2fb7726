#include "tools/speculation_bench.h"

#include "bench/speculation/measured_report.h"
#include "tools/speculation_bench/plan_table.h"
#include "tools/speculation_bench/point_run.h"

namespace tandem::tools {
namespace {

using Point = cli::Point<SpeculationBenchRecipe>;

}  // namespace

int SpeculationBench::print_plan() {
  if (points_.front().recipe.bench.predict == PredictMode::only) return plan_predictions();
  PlanTable table(cx_, points_.size());
  for (const Point& point : points_) {
    cx_.use_threads(point.recipe.run.threads);
    PointRun run(cx_, point);
    run.admit([&](const bench::Way& way, const Error& e) { table.refuse(way.name(), e); });
    table.add(point, run.engines());
  }
  return table.finish();
}

int SpeculationBench::print_from(cli::Context& cx, const std::filesystem::path& records) {
  return print_records_of(cx, records, {bench::measured_view(), bench::predicted_view()});
}

int SpeculationBench::run() {
  if (points_.front().recipe.bench.predict == PredictMode::only) return run_predictions();
  BenchResults results(cx_, points_.front().recipe.output.path, {bench::measured_view()});
  const auto fail = [&](const Point& point, const bench::Way* way, const Error& e) {
    PointRun::fail(cx_, results, point, way, e);
  };
  for (const Point& point : points_) {
    if (cli::is_interrupted()) break;
    cx_.use_threads(point.recipe.run.threads);
    const auto work = [&] {
      PointRun run(cx_, point);
      run.admit([&](const bench::Way& way, const Error& e) { fail(point, &way, e); });
      run.run(results);
    };
    const auto failed = [&](const Error& e) { fail(point, nullptr, e); };
    if (!attempt(cx_, work, failed)) break;  // points measured until then stay
  }
  cx_.note(bench::kRoundWords);
  return results.finish();
}

}  // namespace tandem::tools
