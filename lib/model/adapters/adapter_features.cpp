#include "model/adapters/adapter_features.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace tandem::model {
namespace {

/// Values of a matrix that are read at a time.
constexpr int64_t kScoredAtOnce = int64_t{1} << 20;

/// The features that an adapter changes: its slices', or of factors all.
std::vector<int32_t> features_of(const WeightedAdapter& given, MatrixId id,
                                 const ModelConfig& config) {
  if (given.weight == 0 || !holds(given.adapter, id)) return {};
  if (const auto* slices = std::get_if<Adapter>(&given.adapter)) {
    const auto index = slices->index(id);
    return {index.begin(), index.end()};
  }
  const io::Shape shape = shape_of(id.role, config);
  std::vector<int32_t> all(static_cast<size_t>(shape[ends_in_stream(id.role) ? 1 : 0]));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

std::vector<float> feature_values(const WeightSource& source, MatrixId id,
                                  std::span<const int32_t> index, const ModelConfig& config) {
  const io::Shape shape = shape_of(id.role, config);
  const int64_t rows = shape[0], cols = shape[1];
  std::vector<float> values;
  if (!ends_in_stream(id.role)) {
    values.resize(index.size() * static_cast<size_t>(cols));
    for (size_t i = 0; i < index.size();) {
      size_t to = i + 1;  // neighbours are read together
      while (to < index.size() && index[to] == index[to - 1] + 1) ++to;
      source.rows(id, index[i], int64_t{index[to - 1]} + 1, DType::f32,
                  values.data() + i * static_cast<size_t>(cols));
      i = to;
    }
    return values;
  }
  values.reserve(index.size() * static_cast<size_t>(rows));
  const int64_t each = std::max<int64_t>(1, kScoredAtOnce / cols);
  std::vector<float> piece;
  for (int64_t begin = 0; begin < rows; begin += each) {
    const int64_t end = std::min(rows, begin + each);
    piece.resize(static_cast<size_t>((end - begin) * cols));
    source.rows(id, begin, end, DType::f32, piece.data());
    for (const float* row = piece.data(); row != piece.data() + piece.size(); row += cols)
      for (const int32_t column : index) values.push_back(row[column]);
  }
  return values;
}

std::vector<int32_t> sliced_features(std::span<const WeightedAdapter> adapters, MatrixId id) {
  std::vector<int32_t> all;
  for (const WeightedAdapter& given : adapters)
    if (const auto* slices = std::get_if<Adapter>(&given.adapter);
        slices != nullptr && given.weight != 0)
      std::ranges::copy(slices->index(id), std::back_inserter(all));
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<AdapterSlice> slice_views(std::span<const OwnedSlice> slices) {
  std::vector<AdapterSlice> views;
  for (const OwnedSlice& s : slices) views.push_back({s.id, s.index, s.values});
  return views;
}

std::vector<OwnedSlice> fused_slices(const WeightSource& fused,
                                     std::span<const WeightedAdapter> adapters,
                                     const ModelConfig& config) {
  std::vector<OwnedSlice> slices;
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Role weight : kLayerRoles) {
      std::vector<int32_t> index = sliced_features(adapters, {weight, layer});
      if (index.empty()) continue;
      std::vector<float> values = feature_values(fused, {weight, layer}, index, config);
      slices.push_back({{weight, layer}, std::move(index), std::move(values)});
    }
  return slices;
}

std::vector<Overlap> find_overlaps(std::span<const WeightedAdapter> adapters,
                                   const ModelConfig& config) {
  std::vector<Overlap> found;
  for (size_t second = 1; second < adapters.size(); ++second)
    for (size_t first = 0; first < second; ++first)
      for (const Role role : kLayerRoles)
        for (int layer = 0; layer < config.n_layers; ++layer) {
          const MatrixId id{role, layer};
          const auto a = features_of(adapters[first], id, config),
                     b = features_of(adapters[second], id, config);
          std::vector<int32_t> both;
          std::ranges::set_intersection(a, b, std::back_inserter(both));
          if (!both.empty())
            found.push_back(
                {first, second, id, static_cast<int>(both.size()) / unit_features(role, config)});
        }
  return found;
}

}  // namespace tandem::model
