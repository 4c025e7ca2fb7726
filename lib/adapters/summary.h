#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "io/table.h"
#include "model/adapters/adapter_features.h"
#include "model/adapters/each_piece.h"

namespace tandem::adapters {

/// What an adapter changes of one kind of matrix, over all layers.
struct MatrixChange {
  model::Role weight = model::Role::down;
  std::vector<int> units = {};  // [layers] heads or channels; 0 where a matrix changes as a whole
  std::vector<int> ranks = {};  // [layers] of factors, else 0
  int64_t n_matrices = 0;       // that it changes
  double change = 0;            // Frobenius norm of new less old weights
  double base = 0;              // of the old weights of these matrices
};

/// An adapter in figures.
struct AdapterSummary {
  model::AdapterInfo info = {};   // of PEFT: the format alone
  float weight = 1;               // which the change has been multiplied by
  nlohmann::json selection = {};  // how its parts were chosen; null: it does not say
  int64_t n_values = 0;           // in its file
  int64_t n_weights = 0;          // of the model
  std::vector<MatrixChange> changes = {};
  std::vector<std::string> others = {};  // weights that PEFT's adapter changes in other ways

  std::string text(const std::string& path, io::TableFormat format) const;
  nlohmann::ordered_json json(const std::string& path) const;
};

/// Reads the matrices that it changes, of both.
/// merged   the base with this adapter alone, at its weight
/// errors   kind input (the sources, a selection that is no JSON), interrupted
AdapterSummary summarise(const model::WeightedAdapter& given, const model::ModelConfig& config,
                         const model::WeightSource& base, const model::WeightSource& merged,
                         const model::WeightProgress& progress);

/// A table of the units that two adapters of a list both change; adapters count from 1, in JSON
/// from 0.
std::string overlaps_text(std::span<const model::Overlap> overlaps, io::TableFormat format);
nlohmann::ordered_json overlaps_json(std::span<const model::Overlap> overlaps);

/// "53 in layers 0-2, 54 in layer 3": counts by layer, equal neighbours together, without zeros.
std::string counts_text(std::span<const int> counts);

/// A weight as it was written: 0.7, not the nearest f32 to 17 digits.
double written_weight(float weight);

}  // namespace tandem::adapters
