#pragma once
#include <memory>
#include <vector>

#include "bench/hardware.h"
#include "bench/model_report.h"
#include "cli/device.h"
#include "tools/pig_bench.h"

namespace tandem::tools {

/// The phases of one point of pig-bench, in their order; prefill and decode share an engine.
class BenchPoint {
 public:
  /// Sets the thread count, and measures the machine's limits where they are not known.
  BenchPoint(cli::Context& cx, const cli::Point<BenchRecipe>& point, BenchResults& results,
             std::vector<bench::DecodeTime>& decode_times);

  /// Measures a phase and adds its record and row; a decode's time also to `decode_times`.
  /// errors   kind input (no such model), recipe, memory, numeric, interrupted
  void run(bench::ModelPhase phase);

 private:
  void report(const bench::ModelCase& c, const bench::ModelIdentity& identity,
              const bench::PhaseResult& result);

  cli::Context& cx_;
  const cli::Point<BenchRecipe>& point_;
  BenchResults& results_;
  std::vector<bench::DecodeTime>& decode_times_;
  bench::Ceilings ceilings_;
  MemoryPlan plan_;
  std::unique_ptr<bench::EngineBench> engine_;
  int n_streamed_ = 0;  // layers that the engine keeps in host memory
  double load_ms_ = 0;
  bool peak_is_own_ = false;  // the system counts the peak of memory anew for every phase
};

/// Its model.
/// errors   kind input: no such model
decode::ModelFiles open_model(const BenchRecipe& recipe);
/// errors   kind recipe: sizes beyond the model's
bench::ModelCase case_of(const BenchRecipe& recipe, const model::ModelConfig& config,
                         const cli::Placement& place);
/// Layers that a phase of this case keeps in host memory, as model.offload says.
/// errors   kind recipe
int layers_to_stream(bench::ModelPhase phase, const BenchRecipe& recipe, bench::ModelCase c,
                     const decode::ModelFiles& files);
/// run.threads, or all usable cores.
void use_threads(const recipe::Run& run);

}  // namespace tandem::tools
