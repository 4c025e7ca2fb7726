#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "model/adapters/adapter.h"
#include "train/selection/selection.h"

namespace tandem::train {

/// Units that adapters to one base hold values of, which a selection leaves out.
struct Excluded {
  std::vector<LayerUnits> units = {};  // [layers], or empty: of no adapter
  int n_adapters = 0;

  /// "o 8, d 350": how many of each matrix.
  std::string text() const;
  /// Of their units alone, not of where the adapters lie.
  std::string fingerprint() const;
};

/// errors   kind input: as model::Adapter::open
Excluded units_of_adapters(std::span<const std::filesystem::path> folders,
                           const model::ModelConfig& config, const model::AdapterBase& base);

}  // namespace tandem::train
