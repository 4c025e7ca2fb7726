#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "train/checkpoint/best_validation.h"
#include "train/range_test.h"
#include "train/run/event_file.h"
#include "train/settings.h"

namespace tandem::train {

/// metrics.jsonl of a run: a line for a range test, each step and each validation.
class MetricsFile {
 public:
  /// Keeps the lines of the first `done` steps, drops what a run wrote after its last checkpoint.
  /// log      tensorboard: the figures go to an event file next to it, too
  /// errors   kind input: cannot be read or written; holds other lines than those of a run
  MetricsFile(const std::filesystem::path& path, int64_t done, StepLog log = StepLog::jsonl);

  /// Loss of the run's first step, in this process or an earlier one.
  std::optional<double> first_loss() const { return first_loss_; }
  /// errors   kind input: cannot be written
  void add_range_test(const RangeTest& test);
  void add_step(int64_t step, int64_t epoch, const StepResult& result, double seconds);
  /// best   the search, this validation included
  void add_validation(int64_t step, double loss, const BestValidation& best);
  /// All lines are in the file.
  void sync();

 private:
  void add(const nlohmann::ordered_json& line);

  std::filesystem::path path_;
  std::ofstream out_;
  std::optional<EventFile> events_;
  std::optional<double> first_loss_;
};

}  // namespace tandem::train
