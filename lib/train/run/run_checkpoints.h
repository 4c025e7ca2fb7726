#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint.h"

namespace tandem::train {

/// Checkpoints of a run, in its folder: `step-000123.safetensors`, the last `keep` of them and
/// those that any of these names as its best.
class RunCheckpoints {
 public:
  RunCheckpoints(std::filesystem::path folder, RunIdentity identity, int keep);

  std::filesystem::path file(int64_t step) const;
  /// Whether there are files with such names.
  bool any() const { return !steps_in_folder().empty(); }
  /// Of a run that is begun again.
  void remove_all();

  /// Goes on from the newest whole one; step 0 if there is none at all. Files that are damaged or
  /// none of this run's are left where they are, and named; so is the one that is gone on from.
  /// errors   kind usage: of another run; kind input: no file is whole
  RunProgress resume(Trainer& trainer, const std::function<void(const std::string&)>& warn);
  /// Writes one, then removes those that are no longer kept: a save that fails leaves the ones
  /// before it whole.
  /// errors   kind input: no space left
  void save(Trainer& trainer, const RunProgress& progress);
  /// The weights of the best validation.
  /// errors   kind input: its checkpoint is missing or cut short
  void load_best(Trainer& trainer, const BestValidation& best) const;

 private:
  struct Kept {
    int64_t step = 0, best = 0;  // best: the step that it names, 0 = none
  };

  /// Warns if it is not the newest, or of another device, or its best checkpoint is lost; then the
  /// search for the best begins again.
  void check_found(CheckpointInfo& found, int64_t newest,
                   const std::function<void(const std::string&)>& warn) const;
  std::vector<int64_t> steps_in_folder() const;  // newest first
  void remove_old();

  std::filesystem::path folder_;
  RunIdentity identity_;
  size_t keep_;
  std::vector<Kept> kept_;  // known to be whole, oldest first
};

}  // namespace tandem::train
