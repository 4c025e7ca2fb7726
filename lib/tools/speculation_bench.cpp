#include "tools/speculation_bench.h"

#include <new>

#include "tools/speculation_bench/measured_report.h"
#include "tools/speculation_bench/plan_table.h"
#include "tools/speculation_bench/point_run.h"

namespace tandem::tools {
namespace {

using Point = cli::Point<SpeculationBenchRecipe>;

}  // namespace

int SpeculationBench::print_plan() {
  if (points_.front().recipe.bench.predict == PredictMode::only) return plan_predictions();
  PlanTable table(cx_, points_.size());
  int status = 0;
  for (const Point& point : points_) {
    cli::use_threads(point.recipe.run.threads);
    PointRun run(cx_, point, /*dry_run=*/true);
    std::string refused;
    run.admit([&](const Way& way, const Error& e) {
      refused += fmt::format(", {}: {}", way.name(), e.what());
      status = exit_status(e.kind());
    });
    table.add(point, run.engines(), refused);
  }
  table.print();
  return table.fits() ? status : exit_status(ErrorKind::memory);
}

int SpeculationBench::run() {
  if (points_.front().recipe.bench.predict == PredictMode::only) return run_predictions();
  BenchResults results(cx_, points_.front().recipe.output.path, io::Table(measured_columns()));
  const auto fail = [&](const Point& point, const Way* way, const Error& e) {
    PointRun::fail(cx_, results, point, way, e);
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
