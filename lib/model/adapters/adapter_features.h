#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/adapters/fused_source.h"

namespace tandem::model {

/// Values of some features of a matrix in f32: its rows, of o and down its columns.
/// shapes   index ascending; result [features, in], of o and down [out, features]
std::vector<float> feature_values(const WeightSource& source, MatrixId id,
                                  std::span<const int32_t> index, const ModelConfig& config);

/// The features of a matrix that slices of a weight other than 0 change, ascending.
std::vector<int32_t> sliced_features(std::span<const WeightedAdapter> adapters, MatrixId id);

/// New values of a matrix, with their memory.
struct OwnedSlice {
  MatrixId id = {};
  std::vector<int32_t> index = {};  // ascending
  std::vector<float> values = {};   // as feature_values
};

/// The same without their memory, for write_adapter; `slices` must outlive the result.
std::vector<AdapterSlice> slice_views(std::span<const OwnedSlice> slices);

/// One adapter's slices out of those of many: the features that any of them changes, with the
/// values that they have in `fused`.
/// fused    fused_source of the same adapters, all of slices
std::vector<OwnedSlice> fused_slices(const WeightSource& fused,
                                     std::span<const WeightedAdapter> adapters,
                                     const ModelConfig& config);

/// Heads or channels of a matrix that two adapters of a list both change.
struct Overlap {
  size_t first = 0, second = 0;  // places in the list
  MatrixId id = {};
  int units = 0;
};

/// The overlaps of every two adapters, pair by pair. Factors change all units of their matrices, an
/// adapter of weight 0 none.
std::vector<Overlap> find_overlaps(std::span<const WeightedAdapter> adapters,
                                   const ModelConfig& config);

}  // namespace tandem::model
