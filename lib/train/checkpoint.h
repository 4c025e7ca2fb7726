#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "train/best_validation.h"
#include "train/trainer.h"

namespace tandem::train {

/// What makes a run the one that it is, by recipe key: settings, model, data. Others may not go on
/// from its checkpoints.
using RunIdentity = std::map<std::string, std::string>;

/// How far a run is.
struct RunProgress {
  int64_t done = 0;  // steps, those that were skipped included
  BestValidation best = {};

  bool operator==(const RunProgress&) const = default;
};

/// Writes what a run continues from: a reader sees the old file or the whole new one.
/// errors   kind input: cannot create, no space left
void save_checkpoint(const std::filesystem::path& path, Trainer& trainer,
                     const RunProgress& progress, const RunIdentity& identity);
/// Goes on from it: the steps that follow have the bits that they would have had.
/// errors   kind input: no such file, cut short, not a checkpoint, of other trained values; kind
///          usage: of another run (names the keys that differ). Nothing has changed then
RunProgress load_checkpoint(const std::filesystem::path& path, Trainer& trainer,
                            const RunIdentity& identity);
/// How far the run was, without its values.
/// errors   kind input: no such file, cut short, not a checkpoint
RunProgress checkpoint_progress(const std::filesystem::path& path);

}  // namespace tandem::train
