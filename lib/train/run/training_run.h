#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "decode/fit/placement.h"
#include "decode/model_files.h"
#include "decode/run_context.h"
#include "train/data/epoch.h"
#include "train/data/training_data.h"
#include "train/run/metrics_file.h"
#include "train/run/run_checkpoints.h"
#include "train/run/run_report.h"
#include "train/run/train_recipe.h"
#include "train/selection/choose_set.h"
#include "train/selection/exclude.h"

namespace tandem::train {

/// Holds the state that a folder's run begins with.
struct RunStart {
  bool plans = false;         // only a plan is wanted: units that scores would choose are drawn
  bool resumes = false;       // goes on from the last checkpoint
  bool begins_again = false;  // empties the folder
};

/// A run from data to a trained model, kept in output.path: `metrics.jsonl`, a line a step and a
/// validation; checkpoints, from which --resume goes on with the same bits; at the end the model,
/// in `model/`. With validation data the result is that of the best validation, not of the last
/// step.
class TrainingRun {
 public:
  /// All must outlive this.
  /// settings   the effective recipe
  /// errors   kind recipe: a method that is not built yet, a selection of nothing; kind device: a
  ///          GPU; kind usage: a folder that holds a run already
  TrainingRun(const decode::RunContext& cx, const nlohmann::json& settings,
              const TrainRecipe& recipe, const decode::ModelFiles& files, const TrainingData& data,
              const RunStart& start);

  const MemoryPlan& plan() const { return plan_; }
  const decode::MemoryLimits& limits() const { return limits_; }
  /// The smallest change of settings that would make the plan fit.
  std::string memory_advice() const;
  /// Trained values, how far gradients go, work, memory.
  std::string text() const;
  void add_to(nlohmann::ordered_json& json) const;

  /// errors   kind memory, input, interrupted (the run so far is kept), numeric: losses that are
  ///          not finite
  void run();

  // In output.path.
  static constexpr const char *kMetrics = "metrics.jsonl", *kModel = "model", *kAdapter = "adapter";
  static constexpr const char* kPrompt = "prompt.txt";  // in kModel

 private:
  CalibrationData calibration() const;
  RunIdentity identity() const;
  /// What decides bits in addition to settings.
  std::string place() const;
  std::filesystem::path file(const char* name) const { return recipe_.output.path / name; }
  RunCheckpoints checkpoints() const;
  /// Whether the folder may be the run's.
  void check_folder() const;
  /// Of several ranks, rank 0 writes.
  bool writes() const { return cx_.place().rank == 0; }
  /// errors   kind input: the trained values of ranks differ, on rank 0
  void check_ranks(const Trainer& trainer, int64_t step) const;
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
  /// Of the adapters whose units are left out; empty without any.
  std::string excluded_line() const;
  Frontier frontier() const;
  Work work_of(std::span<const MicroBatch> parts) const;
  RunSize size() const;
  /// Gives the trainer the learning rate that a range test chooses, or the one that the run began
  /// with.
  /// errors   kind numeric: no rate trains without diverging
  void find_rate(Trainer& trainer, RunProgress& at, MetricsFile* metrics);
  /// Trains from `at` to the end of the run.
  /// errors   kind numeric: many steps in a row without a finite loss or gradient
  void go_on(Trainer& trainer, RunProgress& at, RunCheckpoints& checkpoints, RunReport& report);
  /// Keeps frozen weights as codes if their source does and the method can train next to them.
  void place_codes();
  MemoryPlan plan_of(const TrainerSpec& spec) const;
  /// Where the samples of a step come from: "train.jsonl:3, train.jsonl:17".
  std::string records_of(int64_t step) const;
  /// Warns of a step that was left out.
  /// errors   kind numeric: too many in a row
  void report_skipped(int64_t step, const StepResult& result, int in_a_row) const;
  bool validates_at(int64_t step) const;
  Epoch epoch(int64_t number) const;
  std::vector<MicroBatch> parts_of(const Epoch& epoch, int64_t step) const;
  /// Micro-batches of a step of the run.
  std::vector<MicroBatch> batches(int64_t step);
  LossSum validate(Trainer& trainer) const;
  bool writes_model() const { return !files_.synthetic() && !files_.gguf; }
  /// True for methods whose result can be an adapter.
  bool writes_adapter() const;
  void export_trained(std::span<const float> values) const;
  /// The text of the first training record up to its answer; empty where it has none, or holds
  /// control tokens of a chat.
  std::string first_prompt() const;

  const decode::RunContext& cx_;
  const nlohmann::json& settings_;
  const TrainRecipe& recipe_;
  const decode::ModelFiles& files_;
  const TrainingData& data_;
  RunStart start_;
  int64_t steps_per_epoch_, n_steps_;
  decode::Placement place_;
  TrainerSpec spec_;
  Excluded excluded_;
  TrainedSet set_;
  decode::MemoryLimits limits_;
  size_t program_bytes_ = 0, driver_bytes_ = 0;
  MemoryPlan plan_;
  std::vector<Epoch> epoch_;  // the one in hand, if any
  int64_t epoch_number_ = -1;
};

}  // namespace tandem::train
