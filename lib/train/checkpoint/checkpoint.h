#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "train/checkpoint/best_validation.h"
#include "train/trainer.h"

namespace tandem::train {

/// The run that a checkpoint is of.
struct RunIdentity {
  /// By recipe key: settings, model, data. Others may not go on from its checkpoints.
  std::map<std::string, std::string> settings = {};
  /// Device and instruction set: a run may move, but sums are rounded otherwise elsewhere.
  std::string place = {};
  /// Gives settings of an earlier version the present form; empty: they have it.
  std::function<std::map<std::string, std::string>(std::map<std::string, std::string>)> upgraded =
      {};
};

/// How far a run is.
struct RunProgress {
  int64_t done = 0;  // steps, those that were skipped included
  BestValidation best = {};
  double rate = 0;  // that a range test has chosen; 0 = none

  bool operator==(const RunProgress&) const = default;
};

/// Writes what a run continues from: a reader sees the old file or the whole new one. Of several
/// ranks rank 0 writes, and all call it.
/// errors   kind input: cannot create, no space left
void save_checkpoint(const std::filesystem::path& path, Trainer& trainer,
                     const RunProgress& progress, const RunIdentity& identity);
/// What a checkpoint holds in addition to values.
struct CheckpointInfo {
  RunProgress progress;
  std::string place;
};
/// Goes on from it: the steps that follow have the bits that they would have had.
/// step     that it must be of; nullopt: any
/// errors   kind input: no such file, cut short, not a checkpoint, any byte changed, of another
///          step, of other trained values; kind usage: of another run (names the keys that
///          differ). Nothing has changed then
CheckpointInfo load_checkpoint(const std::filesystem::path& path, Trainer& trainer,
                               const RunIdentity& identity, std::optional<int64_t> step = {});
/// Checks all values and loads none.
/// errors   kind input: no such file, cut short, not a checkpoint, any byte changed, of another step
CheckpointInfo check_checkpoint(const std::filesystem::path& path,
                                std::optional<int64_t> step = {});

}  // namespace tandem::train
