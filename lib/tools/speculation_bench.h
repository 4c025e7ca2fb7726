#pragma once
#include <vector>

#include "cli/context.h"
#include "tools/speculation_bench/bench_recipe.h"

namespace tandem::tools {

/// A run of magicdec-bench or sequoia-bench: whether speculation pays, with which draft, and by how
/// much.
class SpeculationBench {
 public:
  using Recipe = SpeculationBenchRecipe;

  SpeculationBench(cli::Context& cx, const std::vector<cli::Point<Recipe>>& points)
      : cx_(cx), points_(points) {}

  /// One line a point, and with predictions alone a draft: the room that it needs; of a single
  /// point in detail.
  int print_plan();
  /// The exit status is BenchResults::finish's.
  int run();
  /// Serves --from.
  static int print_from(cli::Context& cx, const std::filesystem::path& records);

 private:
  int plan_predictions();
  int run_predictions();

  cli::Context& cx_;
  const std::vector<cli::Point<Recipe>>& points_;
};

}  // namespace tandem::tools
