#include "tools/magicdec_acceptance.h"

#include <new>

#include "tools/draft_acceptance/point.h"
#include "tools/speculation_bench/plan_table.h"

namespace tandem::tools {

using Point = AcceptancePoint::Point;

int MagicdecAcceptance::print_plan() {
  PlanTable table(cx_, points_.size());
  int status = 0;
  for (const Point& point : points_) {
    cli::use_threads(point.recipe.run.threads);
    AcceptancePoint run(cx_, point, /*dry_run=*/true);
    std::string refused;
    run.admit([](const NamedDraft&) { return true; },
              [&](const NamedDraft& draft, const Error& e) {
                refused += fmt::format(", {}: {}", draft.name, e.what());
                status = exit_status(e.kind());
              });
    table.add(point, run.engines(), refused);
  }
  table.print();
  return table.fits() ? status : exit_status(ErrorKind::memory);
}

int MagicdecAcceptance::run() {
  BenchResults results(cx_, points_.front().recipe.output.path, io::Table(acceptance_columns()));
  const auto fail = [&](const Point& point, const NamedDraft* draft, const Error& e) {
    AcceptancePoint::fail(results, cx_, point, draft, e);
  };
  for (const Point& point : points_) {
    if (cli::is_interrupted()) break;
    cli::use_threads(point.recipe.run.threads);
    try {
      AcceptancePoint run(cx_, point, /*dry_run=*/false);
      run.admit(
          [&](const NamedDraft& draft) { return !AcceptancePoint::has_all(results, point, draft); },
          [&](const NamedDraft& draft, const Error& e) { fail(point, &draft, e); });
      run.run(results);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::interrupted) break;  // points measured until then stay
      fail(point, nullptr, e);
    } catch (const std::bad_alloc&) {
      fail(point, nullptr, Error(ErrorKind::memory, "", "not enough memory"));
    }
  }
  cx_.note(kAcceptanceWords);
  return results.finish();
}

}  // namespace tandem::tools
