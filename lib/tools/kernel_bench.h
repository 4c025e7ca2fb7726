#pragma once
#include <vector>

#include "bench/kernel_bench.h"
#include "cli/context.h"
#include "recipe/sections.h"
#include "tools/results/bench_results.h"

namespace tandem::tools {

struct KernelBenchRecipe {
  recipe::Run run;
  bench::KernelShapes bench;
  BenchOutput output;

  template <class V>
  void fields(V& v) {
    v("run", run, "device and threads");
    v("bench", bench, "kernels and their shapes");
    v("output", output, "file of records");
  }
};

/// A run of kernel-bench: checks every kernel against its reference, then times it.
class KernelBench {
 public:
  using Recipe = KernelBenchRecipe;

  /// errors   kind device: a run on a GPU
  KernelBench(cli::Context& cx, const std::vector<cli::Point<Recipe>>& points);

  /// The cases and their memory.
  int print_plan();
  /// The exit status is BenchResults::finish's, or 7 where a kernel differs from its reference.
  int run();
  /// Serves --from.
  static int print_from(cli::Context& cx, const std::filesystem::path& records);

 private:
  /// --limits: measures again what runs are compared with, at one thread and at each point's.
  int measure_limits();

  cli::Context& cx_;
  const std::vector<cli::Point<Recipe>>& points_;
};

}  // namespace tandem::tools
