#pragma once
#include "tools/bench/plan_table.h"
#include "tools/results/bench_results.h"

namespace tandem::tools {

/// A sweep whose points measure drafts, each by a PointRun. A Part is one draft, or one way to
/// decode. A part that is refused or fails does not end its point, and no point ends the sweep.
template <class PointRun>
class DraftSweep {
 public:
  using Recipe = typename PointRun::Recipe;
  using Part = typename PointRun::Part;

  DraftSweep(cli::Context& cx, std::vector<cli::Point<Recipe>> points)
      : cx_(cx), points_(std::move(points)) {}

  /// One line a point: the room that it needs; of a single point in detail.
  int print_plan() {
    PlanTable table(cx_, points_.size());
    for (const cli::Point<Recipe>& point : points_) {
      if (PointRun::is_empty(point.recipe)) continue;
      cx_.use_threads(point.recipe.run.threads);
      PointRun run(cx_, point);
      run.admit([&](const Part& part, const Error& e) { table.refuse(PointRun::name_of(part), e); },
                nullptr);
      table.add(point, run.engines());
    }
    return table.finish();
  }

  /// The exit status is BenchResults::finish's.
  int run() {
    BenchResults results(cx_, points_.front().recipe.output.path, PointRun::views());
    for (const cli::Point<Recipe>& point : points_)
      if (cli::is_interrupted() || !run_point(point, results)) break;
    return finish(results);
  }

  /// Serves --from.
  static int print_from(cli::Context& cx, const std::filesystem::path& records) {
    return print_records_of(cx, records, PointRun::views());
  }

 protected:
  /// False: it was interrupted. Parts measured until then stay.
  bool run_point(const cli::Point<Recipe>& point, BenchResults& results) {
    if (PointRun::is_empty(point.recipe)) return true;
    has_parts_ = true;
    cx_.use_threads(point.recipe.run.threads);
    const auto fail = [&](const Part* part, const Error& e) {
      PointRun::fail(cx_, results, point, part, e);
    };
    const auto work = [&] {
      PointRun run(cx_, point);
      run.admit([&](const Part& part, const Error& e) { fail(&part, e); }, &results);
      run.run(results);
    };
    return attempt(cx_, work, [&](const Error& e) { fail(nullptr, e); });
  }
  int finish(BenchResults& results) {
    if (has_parts_) cx_.note(std::string(PointRun::kWords));
    return results.finish();
  }

  cli::Context& cx_;
  const std::vector<cli::Point<Recipe>> points_;
  bool has_parts_ = false;
};

}  // namespace tandem::tools
