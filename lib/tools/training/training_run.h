#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/context.h"
#include "decode/fit/placement.h"
#include "decode/model_files.h"
#include "tools/training/metrics_file.h"
#include "tools/training/run_checkpoints.h"
#include "tools/training/run_report.h"
#include "tools/training/train_recipe.h"
#include "train/data/epoch.h"
#include "train/data/training_data.h"
#include "train/selection/choose_set.h"
#include "train/selection/exclude.h"

namespace tandem::tools {

/// A run from data to a trained model, kept in output.path: `metrics.jsonl`, a line a step and a
/// validation; checkpoints, from which --resume goes on with the same bits; at the end the model,
/// in `model/`. With validation data the result is that of the best validation, not of the last
/// step.
class TrainingRun {
 public:
  /// All must outlive this.
  /// plans    only a plan is wanted: units that scores would choose are drawn at random
  /// errors   kind recipe: a method that is not built yet, a selection of nothing; kind device: a
  ///          GPU; kind usage: a folder that holds a run already
  TrainingRun(cli::Context& cx, const cli::PointName& point, const TrainRecipe& recipe,
              const decode::ModelFiles& files, const train::TrainingData& data, bool plans);

  const MemoryPlan& plan() const { return plan_; }
  const decode::MemoryLimits& limits() const { return limits_; }
  /// The smallest change of settings that would make the plan fit.
  std::string memory_advice() const;
  /// Trained values, how far gradients go, work, memory.
  std::string text() const;
  void add_to(nlohmann::ordered_json& json) const;

  /// errors   kind memory, input, interrupted (the run so far is kept), numeric: losses that are
  ///          not finite
  int run();

 private:
  static constexpr const char* kMetrics = "metrics.jsonl";

  train::CalibrationData calibration() const;
  train::RunIdentity identity() const;
  /// What decides bits in addition to settings.
  std::string place() const;
  std::filesystem::path file(const char* name) const { return recipe_.output.path / name; }
  RunCheckpoints checkpoints() const;
  /// Whether the folder may be the run's.
  void check_folder() const;
  /// Of several ranks, rank 0 writes.
  bool writes() const { return cx_.place().rank == 0; }
  /// errors   kind input: the trained values of ranks differ, on rank 0
  void check_ranks(const train::Trainer& trainer, int64_t step) const;
  /// Makes it; empties it to begin again.
  void open_folder(RunCheckpoints& kept) const;
  std::string values_line() const;
  std::string ranks_line() const;
  /// What a step sends, from each rank.
  double bytes_a_step() const;
  /// How long that takes alone, in seconds; 0 where the link's rate is not known.
  double traffic_seconds() const;
  /// Names the matrices of which some layers train no slice; empty for other methods.
  std::string uneven_lines() const;
  /// Commands that use what the run has written.
  std::string next_lines() const;
  /// Of the adapters whose units are left out; empty without any.
  std::string excluded_line() const;
  train::Frontier frontier() const;
  train::Work work_of(std::span<const train::MicroBatch> parts) const;
  RunSize size() const;
  /// Gives the trainer the learning rate that a range test chooses, or the one that the run began
  /// with.
  /// errors   kind numeric: no rate trains without diverging
  void find_rate(train::Trainer& trainer, train::RunProgress& at, MetricsFile* metrics);
  /// Trains from `at` to the end of the run.
  /// errors   kind numeric: many steps in a row without a finite loss or gradient
  void go_on(train::Trainer& trainer, train::RunProgress& at, RunCheckpoints& checkpoints,
             RunReport& report);
  /// Keeps frozen weights as codes if their source does and the method can train next to them.
  void place_codes();
  MemoryPlan plan_of(const train::TrainerSpec& spec) const;
  /// Where the samples of a step come from: "train.jsonl:3, train.jsonl:17".
  std::string records_of(int64_t step) const;
  /// Warns of a step that was left out.
  /// errors   kind numeric: too many in a row
  void report_skipped(int64_t step, const train::StepResult& result, int in_a_row) const;
  bool validates_at(int64_t step) const;
  train::Epoch epoch(int64_t number) const;
  std::vector<train::MicroBatch> parts_of(const train::Epoch& epoch, int64_t step) const;
  /// Micro-batches of a step of the run.
  std::vector<train::MicroBatch> batches(int64_t step);
  train::LossSum validate(train::Trainer& trainer) const;
  bool writes_model() const { return !files_.synthetic() && !files_.gguf; }
  /// True for methods whose result can be an adapter.
  bool writes_adapter() const;
  void export_trained(std::span<const float> values) const;
  /// The text of the first training record up to its answer; empty where it has none, or holds
  /// control tokens of a chat.
  std::string first_prompt() const;

  cli::Context& cx_;
  const cli::PointName& point_;
  const TrainRecipe& recipe_;
  const decode::ModelFiles& files_;
  const train::TrainingData& data_;
  int64_t steps_per_epoch_, n_steps_;
  decode::Placement place_;
  train::TrainerSpec spec_;
  train::Excluded excluded_;
  train::TrainedSet set_;
  decode::MemoryLimits limits_;
  size_t program_bytes_ = 0, driver_bytes_ = 0;
  MemoryPlan plan_;
  std::vector<train::Epoch> epoch_;  // the one in hand, if any
  int64_t epoch_number_ = -1;
};

}  // namespace tandem::tools
