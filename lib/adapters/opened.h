#pragma once
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "adapters/adapter_recipe.h"
#include "decode/model_files.h"
#include "model/adapters/adapter_features.h"
#include "model/adapters/each_piece.h"

namespace tandem::adapters {

/// A base model and adapters to it.
struct OpenedAdapters {
  decode::ModelFiles base;
  std::string base_path;           // as the recipe names it
  uint64_t seed = 0;               // of a synthetic model
  std::vector<std::string> paths;  // as messages name them
  std::vector<model::WeightedAdapter> adapters;

  /// The base's weights with those of the adapters.
  std::unique_ptr<model::WeightSource> merged() const { return merged_with(adapters); }
  std::unique_ptr<model::WeightSource> merged_with(std::vector<model::WeightedAdapter> which) const;
  bool all_slices() const;
};

/// Opens a base and the adapters that a recipe lists.
/// errors   kind input: no such model; as model::open_adapter
OpenedAdapters open_adapters(const AdapterRecipe& recipe);

/// The folders that an earlier place of the list names too.
std::vector<std::string> repeated(const OpenedAdapters& opened);

/// errors   kind input: two adapters change the same units; names the first matrix
void check_exclusive(const OpenedAdapters& opened, std::span<const model::Overlap> overlaps);

/// Takes what a tuned model changes of the base as the one adapter.
/// errors   kind input, as model::extract_slices
void add_extracted(OpenedAdapters& opened, const std::string& tuned,
                   const model::WeightProgress& progress);

/// errors   kind usage: the output is one of the inputs, or within a base, a tuned model or an
///          adapter
void check_apart(const AdapterRecipe& recipe, const OpenedAdapters& opened);

}  // namespace tandem::adapters
