#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/model_report.h"
#include "bench/record.h"
#include "bench/roofline.h"
#include "bench/speculation/measured_report.h"
#include "cli/context.h"
#include "speculate/tree/timing.h"
#include "tools/bench/bench_recipe.h"

namespace tandem::tools {

/// A point on its way: which of its ways to decode are measured, and on what.
class PointRun {
 public:
  using Recipe = BenchRecipe;
  using Point = cli::Point<Recipe>;
  using Part = bench::Way;
  static constexpr std::string_view kWords = bench::kRoundWords;
  static std::vector<bench::RecordView> views() {
    return {bench::model_view(), bench::measured_view(), bench::predicted_view()};
  }
  static bool is_empty(const Recipe& r) { return r.bench.drafts.empty(); }
  static std::string name_of(const bench::Way& way) { return way.name(); }

  /// errors   those of BenchEngines
  PointRun(cli::Context& cx, const Point& point);

  /// Admits the ways that can be measured, and sizes the engines for them.
  /// refused  gets the others
  void admit(const std::function<void(const bench::Way&, const Error&)>& refused,
             const BenchResults* earlier);
  const bench::BenchEngines& engines() const { return engines_; }

  /// Measures all of them and reports each by `results`.
  void run(BenchResults& results);
  /// Records a way that was refused or failed; null: all of the point.
  static void fail(const cli::Context& cx, BenchResults& results, const Point& point,
                   const bench::Way* way, const Error& error);

 private:
  using Times = std::map<std::string, speculate::TimingTable>;  // by the draft's name

  void admit(const speculate::NamedDraft& draft, bool simulates,
             const std::function<void(const bench::Way&, const Error&)>& refused);
  void admit_nested(const speculate::NamedDraft& draft, bool simulates,
                    const std::function<void(const bench::Way&, const Error&)>& refused);
  bench::MeasureSpec measure_spec();
  /// Forwards of every draft that proposes trees, where these are predicted, and of what verifies
  /// them.
  Times time_forwards(const decode::SamplerSpec& sampler);
  bool times_trees() const { return point_.recipe.bench.predict == PredictMode::also; }
  void report(BenchResults& results, const bench::PointRuns& runs, const bench::WayRuns& way);
  void add_facts(bench::Record& record, const bench::Way& way);
  /// What streaming layers from host memory reached.
  void add_streaming(bench::Record& record, const bench::WayRuns& way);
  /// A chain's by the same draft at other gammas; where there is none by the roofline, if the
  /// machine is given. A tree's by timed forwards.
  void add_prediction(bench::Record& record, const bench::PointRuns& runs,
                      const bench::WayRuns& way);

  cli::Context& cx_;
  const Point& point_;
  bench::BenchEngines engines_;
  std::vector<bench::Way> ways_;
  bench::BenchPrompts prompts_;
  std::map<std::string, int> timed_;  // drafts that propose trees: nodes of the largest
  Times times_;
  machine::Ceilings link_;                    // where layers are streamed
  bool peak_is_own_ = reset_peak_resident();  // the system counts it for every point separately
};

}  // namespace tandem::tools
