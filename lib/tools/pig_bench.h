#pragma once
#include <filesystem>
#include <vector>

#include "bench/model_bench.h"
#include "cli/context.h"
#include "tools/results/bench_results.h"

namespace tandem::tools {

struct BenchRecipe {
  recipe::Model model;
  recipe::RankedRun run;
  recipe::Cache cache;
  bench::ModelBench bench;
  BenchOutput output;

  BenchRecipe() {
    run.context = {1024};
    run.batch = 1;
  }
  template <class V>
  void fields(V& v) {
    v("model", model, "model");
    v("run", run, "device, threads, seed, sizes");
    v("cache", cache, "KV cache and attention policy");
    v("bench", bench, "phases to measure and their duration");
    v("output", output, "file of records");
  }
  void check(recipe::Problems& p) const {
    if (!model.state.empty())
      p.field("model.state", "pig-bench does not support saved states; leave it out");
  }
};

/// A run of pig-bench: the phases of every point of a sweep.
class PigBench {
 public:
  using Recipe = BenchRecipe;

  PigBench(cli::Context& cx, const std::vector<cli::Point<Recipe>>& points)
      : cx_(cx), points_(points) {}

  /// One line a point and phase, what it needs and whether that fits. The exit
  /// status: 0, else that of the memory that is missing or of the first error.
  int print_plan();
  /// Measures the missing phases, then prints the table and the break-even points. A phase that
  /// fails is a result too; an interruption ends the run. The exit status is
  /// BenchResults::finish's.
  int run();
  /// Serves --from.
  static int print_from(cli::Context& cx, const std::filesystem::path& records);

 private:
  void run_point(const cli::Point<BenchRecipe>& point, BenchResults& results,
                 cli::Progress& progress);

  cli::Context& cx_;
  const std::vector<cli::Point<Recipe>>& points_;
  double n_done_ = 0;  // phases, those of earlier runs included
};

}  // namespace tandem::tools
