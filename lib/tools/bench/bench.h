#pragma once
#include "tools/bench/draft_sweep.h"
#include "tools/bench/point_run.h"

namespace tandem::tools {

/// A run of pig-bench, magicdec-bench or sequoia-bench. It measures the phases of a model and
/// compares drafts with plain decoding; with bench.predict=only it calculates their speed-ups.
class Bench : public DraftSweep<PointRun> {
 public:
  using DraftSweep::DraftSweep;

  /// Lists the memory of each phase of a point, and of its drafts. Predictions have a line for each
  /// draft.
  int print_plan();
  /// Measures points without records. A phase or a draft that fails is a result too; an
  /// interruption ends the run. The exit status is BenchResults::finish's.
  int run();

 private:
  /// errors   kind recipe: only some of the points are calculated
  bool predicts_only() const;
  int plan_predictions();
  int run_predictions();
  int plan_phases();
  /// False: it was interrupted.
  bool run_phases(const cli::Point<Recipe>& point, BenchResults& results);

  double n_done_ = 0;  // phases, those of earlier runs included
};

/// The default work of a program.
enum class BenchWork : uint8_t { phases, drafts };

/// A program with its defaults.
template <BenchWork kWork>
struct BenchTool : Bench {
  struct Recipe : BenchRecipe {
    Recipe() {
      constexpr bool kDrafts = kWork == BenchWork::drafts;
      run.context = {kDrafts ? 32768 : 1024};
      bench.new_tokens = {kDrafts ? 96 : 64};
      if (kDrafts) bench.phases.clear();
    }
  };
  BenchTool(cli::Context& cx, const std::vector<cli::Point<Recipe>>& points)
      : Bench(cx, plain(points)) {}

 private:
  static std::vector<cli::Point<BenchRecipe>> plain(const std::vector<cli::Point<Recipe>>& points) {
    std::vector<cli::Point<BenchRecipe>> all;
    for (const auto& point : points) all.push_back({point, point.recipe});
    return all;
  }
};

}  // namespace tandem::tools
