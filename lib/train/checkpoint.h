#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "train/trainer.h"

namespace tandem::train {

/// What makes a run the one that it is, by recipe key: settings, model, data. Others may not go on
/// from its checkpoints.
using RunIdentity = std::map<std::string, std::string>;

/// Writes what a run continues from: a reader sees the old file or the whole new one.
/// done     steps of the run, those that were skipped included
/// errors   kind input: cannot create, no space left
void save_checkpoint(const std::filesystem::path& path, Trainer& trainer, int64_t done,
                     const RunIdentity& identity);
/// Goes on from it: the steps that follow have the bits that they would have had.
/// result   steps done
/// errors   kind input: no such file, not a checkpoint, of other trained values; kind usage: of
///          another run (names the keys that differ)
int64_t load_checkpoint(const std::filesystem::path& path, Trainer& trainer,
                        const RunIdentity& identity);

}  // namespace tandem::train
