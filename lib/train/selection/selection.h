#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/trained_set.h"

namespace tandem::train {

using model::PerMatrix;

/// Selected units of a layer, ascending: heads of q and o, KV heads of k and v, FFN channels of up,
/// gate and down. Rows of a unit are trained, of o and down its columns.
using LayerUnits = PerMatrix<std::vector<int32_t>>;

/// Which units, chosen at random or by scores.
struct SelectionSpec {
  enum class Scope : uint8_t { per_layer, global };

  PerMatrix<double> ratio = {};  // of the units, 0 to 1
  Scope scope = Scope::per_layer;
  uint64_t seed = 0;
  int first_layer = 0, last_layer = -1;   // of those that may be trained; -1 = the model's last
  std::vector<LayerUnits> excluded = {};  // [layers] those of other adapters; or empty
};

/// The matrix's key in section `train.select.ratios`.
std::string_view ratio_name(Role role);

/// How many of each layer's units are taken: floor(ratio units) in each, and the rest up to
/// floor(ratio units layers) spread evenly.
std::vector<int> counts_per_layer(double ratio, int units, int layers);

/// S2FT-R: units drawn at random without replacement, by seed, matrix and layer alone.
/// errors   kind recipe: no ratio gives a unit, one is out of range, or too few units are left
std::vector<LayerUnits> select_random(const SelectionSpec& spec, const model::ModelConfig& config);

/// Scores of units: [layers][units].
using Scores = PerMatrix<std::vector<std::vector<double>>>;

/// S2FT-W, A, S and G: the units with the smallest scores, or the largest; the lower unit of
/// equals.
/// errors   as select_random
std::vector<LayerUnits> select_by_score(const SelectionSpec& spec, const model::ModelConfig& config,
                                        const Scores& scores, bool largest);

/// Sums of squares by feature of a layer's products: rows of qkv and gate_up, columns of o and
/// down. Of weights, of their gradients, or of the activations there.
using FeatureSquares = model::PerStack<std::vector<double>>;

/// Roots of the sums over the features of each unit.
/// shapes   squares [layers]
Scores scores_of(const std::vector<FeatureSquares>& squares, const model::ModelConfig& config);

/// The trained set of selected units: rows of q, k, v, gate and up, columns of o and down.
TrainedSet slices_of(const std::vector<LayerUnits>& units, const model::ModelConfig& config);

/// How many units such a set has: "o 16 of 64 heads (25 %), d 1408 of 14080 channels (10 %)".
std::string budget_text(const TrainedSet& set, const model::ModelConfig& config);

}  // namespace tandem::train
