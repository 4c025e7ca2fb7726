#pragma once
#include "tools/speculation_bench/draft_sweep.h"
#include "tools/speculation_bench/point_run.h"

namespace tandem::tools {

/// A run of magicdec-bench or sequoia-bench: whether speculation pays, with which draft, and by how
/// much; measured, or with bench.predict=only calculated.
class SpeculationBench : public DraftSweep<PointRun> {
 public:
  using DraftSweep::DraftSweep;

  /// Predictions have a line for each draft of a point.
  int print_plan() { return predicts_only() ? plan_predictions() : DraftSweep::print_plan(); }
  int run() { return predicts_only() ? run_predictions() : DraftSweep::run(); }

 private:
  bool predicts_only() const { return points_.front().recipe.bench.predict == PredictMode::only; }
  int plan_predictions();
  int run_predictions();
};

}  // namespace tandem::tools
