#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/adapters/adapter.h"
#include "model/weights.h"
#include "tools/adapters/progress.h"

namespace tandem::tools {

/// What an adapter changes of one kind of matrix, over all layers.
struct MatrixChange {
  model::Weight weight = model::Weight::w_down;
  std::vector<int> units = {};  // [layers] heads or channels; 0 where a matrix changes as a whole
  int64_t n_matrices = 0;       // that it changes
  double change = 0;            // Frobenius norm of new less old weights
  double base = 0;              // of the old weights of these matrices
};

/// An adapter in figures.
struct AdapterSummary {
  model::AdapterInfo info = {};
  nlohmann::json selection = {};  // how its parts were chosen; null: it does not say
  int64_t n_values = 0;           // in its file
  int64_t n_weights = 0;          // of the model
  std::vector<MatrixChange> changes = {};

  std::string text(const std::string& path) const;
  nlohmann::ordered_json json(const std::string& path) const;
};

/// Reads the matrices that it changes, of both.
/// errors   kind input (the sources, a selection that is no JSON), interrupted
AdapterSummary summarise(const model::Adapter& adapter, const model::ModelConfig& config,
                         const model::WeightSource& base, const model::WeightSource& merged,
                         const WeightProgress& progress);

}  // namespace tandem::tools
