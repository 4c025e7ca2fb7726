#include "tools/speculation_bench.h"

#include <new>
#include <nlohmann/json.hpp>

#include "cli/plan_text.h"
#include "tools/speculation_bench/measured_report.h"
#include "tools/speculation_bench/point_run.h"

namespace tandem::tools {
namespace {

using bench::Json;
using Point = cli::Point<SpeculationBenchRecipe>;

}  // namespace

int SpeculationBench::print_plan() {
  if (points_.front().recipe.bench.predict == PredictMode::only) return plan_predictions();
  io::Table table({{"point", io::Align::left},
                   {"context"},
                   {"batch"},
                   {"device", io::Align::left},
                   {"planned peak"},
                   {"available"},
                   {"verdict", io::Align::left}});
  int status = 0;
  std::string detail;
  for (const Point& point : points_) {
    const SpeculationBenchRecipe& r = point.recipe;
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
    if (points_.size() == 1)
      detail = cli::gpu_line(limits) + cli::memory_lines(plan, limits) + "\n";
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
  if (cx_.plans_as_json()) return status;
  cx_.out.write(table.render(table_format(cx_.format())));
  cx_.out.write(detail);
  return status;
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
