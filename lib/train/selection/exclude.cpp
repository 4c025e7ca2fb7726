#include "train/selection/exclude.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/sha256.h"

namespace tandem::train {
namespace {

void add_units(const model::Adapter& adapter, const model::ModelConfig& config,
               std::vector<LayerUnits>& units) {
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Role role : model::kLayerRoles) {
      const int width = model::unit_features(role, config);
      std::vector<int32_t>& all = units[static_cast<size_t>(layer)][role];
      for (const int32_t feature : adapter.index({role, layer}))
        if (feature % width == 0) all.push_back(feature / width);
    }
}

}  // namespace

Excluded units_of_adapters(std::span<const std::filesystem::path> folders,
                           const model::ModelConfig& config, const model::AdapterBase& base) {
  Excluded excluded;
  for (const std::filesystem::path& folder : folders) {
    excluded.units.resize(static_cast<size_t>(config.n_layers));
    ++excluded.n_adapters;
    add_units(model::Adapter::open(model::adapter_folder(folder), config, base), config,
              excluded.units);
  }
  for (LayerUnits& layer : excluded.units)
    for (std::vector<int32_t>& all : layer) {
      std::ranges::sort(all);
      all.erase(std::unique(all.begin(), all.end()), all.end());
    }
  return excluded;
}

std::string Excluded::text() const {
  std::string text;
  for (const Role role : model::kLayerRoles) {
    size_t n = 0;
    for (const LayerUnits& layer : units) n += layer[role].size();
    if (n > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", ratio_name(role), n);
  }
  return text;
}

std::string Excluded::fingerprint() const {
  std::string text;
  for (const LayerUnits& layer : units)
    for (const std::vector<int32_t>& all : layer) {
      for (const int32_t unit : all) text += fmt::format("{} ", unit);
      text += ';';
    }
  return text.empty() ? "none" : sha256_hex(text).substr(0, 16);
}

}  // namespace tandem::train
