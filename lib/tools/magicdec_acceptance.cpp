#include "tools/magicdec_acceptance.h"

#include "tools/draft_acceptance/point.h"
#include "tools/speculation_bench/plan_table.h"

namespace tandem::tools {

using Point = AcceptancePoint::Point;

int MagicdecAcceptance::print_plan() {
  PlanTable table(cx_, points_.size());
  for (const Point& point : points_) {
    cx_.use_threads(point.recipe.run.threads);
    AcceptancePoint run(cx_, point);
    run.admit(
        [](const speculate::NamedDraft&) { return true; },
        [&](const speculate::NamedDraft& draft, const Error& e) { table.refuse(draft.name, e); });
    table.add(point, run.engines());
  }
  return table.finish();
}

int MagicdecAcceptance::print_from(cli::Context& cx, const std::filesystem::path& records) {
  return print_records_of(cx, records, {acceptance_view()});
}

int MagicdecAcceptance::run() {
  BenchResults results(cx_, points_.front().recipe.output.path, {acceptance_view()});
  const auto fail = [&](const Point& point, const speculate::NamedDraft* draft, const Error& e) {
    AcceptancePoint::fail(results, cx_, point, draft, e);
  };
  for (const Point& point : points_) {
    if (cli::is_interrupted()) break;
    cx_.use_threads(point.recipe.run.threads);
    const auto work = [&] {
      AcceptancePoint run(cx_, point);
      run.admit(
          [&](const speculate::NamedDraft& draft) {
            return !AcceptancePoint::has_all(results, point, draft);
          },
          [&](const speculate::NamedDraft& draft, const Error& e) { fail(point, &draft, e); });
      run.run(results);
    };
    const auto failed = [&](const Error& e) { fail(point, nullptr, e); };
    if (!attempt(cx_, work, failed)) break;  // points measured until then stay
  }
  cx_.note(kAcceptanceWords);
  return results.finish();
}

}  // namespace tandem::tools
