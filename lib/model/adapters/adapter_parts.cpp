#include "model/adapters/adapter_parts.h"

#include <numeric>

#include "base/error.h"
#include "model/adapters/adapter_features.h"

namespace tandem::model {
namespace {

PartNumbers slice_numbers(const NamedAdapter& adapter, const PartShape& shape,
                          const ModelConfig& config, const WeightSource& base) {
  PartNumbers part{.index = slice_features(*adapter.adapter, shape, config),
                   .values = slice_values(*adapter.adapter, shape)};
  // Of what else is merged into the weights, an adapter's change is none.
  const std::vector<float> before = base_values(*adapter.adapter, shape, config, base.base());
  for (size_t i = 0; i < before.size(); ++i)
    part.values[i] = adapter.weight * (part.values[i] - before[i]);
  return part;
}

/// First ranks of a matrix's weights among its inner activations, and their number at the end.
std::vector<int64_t> rank_begins(const LowRankAdapter& adapter, int layer, Role of) {
  std::vector<int64_t> begins = {0};
  for (const Role w : members(of))
    begins.push_back(begins.back() + (adapter.holds({w, layer}) ? adapter.rank({w, layer}) : 0));
  return begins;
}

PartNumbers factor_numbers(const NamedAdapter& named, const PartShape& shape) {
  const auto& adapter = std::get<LowRankAdapter>(*named.adapter);
  PartNumbers part;
  part.index.resize(static_cast<size_t>(shape.n));
  const std::vector<int64_t> begins = rank_begins(adapter, shape.layer, shape.of);
  const int32_t first = shape.kind == PartKind::second
                            ? static_cast<int32_t>(begins[static_cast<size_t>(shape.which)])
                            : 0;
  std::iota(part.index.begin(), part.index.end(), first);
  const std::span<const Role> weights = members(shape.of);
  if (shape.kind == PartKind::second) {
    const Role w = weights[static_cast<size_t>(shape.which)];
    part.values = transposed(adapter.second_factor({w, shape.layer}), shape.width, shape.n);
    const float by = named.weight * adapter.gamma({w, shape.layer});
    for (float& x : part.values) x *= by;
    return part;
  }
  for (const Role w : weights)
    if (adapter.holds({w, shape.layer})) {
      const std::vector<float> a = adapter.first_factor({w, shape.layer});
      part.values.insert(part.values.end(), a.begin(), a.end());
    }
  return part;
}

void add_slice_shapes(const Adapter& adapter, const ModelConfig& config, int layer, Role of,
                      std::vector<PartShape>& shapes) {
  int64_t n = 0;
  for (const Role w : members(of)) n += std::ssize(adapter.index({w, layer}));
  if (n == 0) return;
  const io::Shape shape = shape_of(members(of).front(), config);
  shapes.push_back(
      {.layer = layer, .of = of, .n = n, .width = ends_in_stream(of) ? shape[0] : shape[1]});
}

void add_factor_shapes(const LowRankAdapter& adapter, const ModelConfig& config, int layer, Role of,
                       std::vector<PartShape>& shapes) {
  const int64_t ranks = rank_begins(adapter, layer, of).back();
  if (ranks == 0) return;
  shapes.push_back({.layer = layer,
                    .of = of,
                    .kind = PartKind::first,
                    .n = ranks,
                    .width = shape_of(of, config)[1]});
  int which = 0;
  for (const Role role : members(of)) {
    if (adapter.holds({role, layer}))
      shapes.push_back({.layer = layer,
                        .of = of,
                        .kind = PartKind::second,
                        .which = which,
                        .n = adapter.rank({role, layer}),
                        .width = shape_of(role, config)[0]});
    ++which;
  }
}

}  // namespace

std::vector<float> transposed(std::span<const float> values, int64_t rows, int64_t columns) {
  std::vector<float> to(values.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      to[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
  return to;
}

std::vector<PartShape> part_shapes(const NamedAdapter& named, const ModelConfig& config) {
  std::vector<PartShape> shapes;
  const auto* slices = std::get_if<Adapter>(named.adapter.get());
  const auto* factors = std::get_if<LowRankAdapter>(named.adapter.get());
  if (factors != nullptr && factors->scales_rows())
    throw recipe_error(
        "model.adapters",
        "'{}' is a DoRA adapter, which also scales the base: run.adapters mix does not support it",
        named.name)
        .hint(
            "set run.adapters to switch, or omit the adapter's name to merge it into the weights");
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Role of : kLayerStacks)
      slices != nullptr ? add_slice_shapes(*slices, config, layer, of, shapes)
                        : add_factor_shapes(*factors, config, layer, of, shapes);
  return shapes;
}

PartNumbers part_numbers(const NamedAdapter& adapter, const PartShape& shape,
                         const ModelConfig& config, const WeightSource& base) {
  return shape.kind == PartKind::slices ? slice_numbers(adapter, shape, config, base)
                                        : factor_numbers(adapter, shape);
}

std::vector<int32_t> slice_features(const AnyAdapter& adapter, const PartShape& shape,
                                    const ModelConfig& config) {
  std::vector<int32_t> all;
  for (const Role w : members(shape.of)) {
    const auto first = static_cast<int32_t>(first_row(w, config));
    for (const int32_t feature : std::get<Adapter>(adapter).index({w, shape.layer}))
      all.push_back(first + feature);
  }
  return all;
}

std::vector<float> slice_values(const AnyAdapter& adapter, const PartShape& shape) {
  const auto& slices = std::get<Adapter>(adapter);
  std::vector<float> all;
  for (const Role w : members(shape.of)) {
    if (!slices.holds({w, shape.layer})) continue;
    std::vector<float> values = slices.values({w, shape.layer});
    if (ends_in_stream(shape.of)) values = transposed(values, shape.width, shape.n);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<float> base_values(const AnyAdapter& adapter, const PartShape& shape,
                               const ModelConfig& config, const WeightSource& base) {
  const auto& slices = std::get<Adapter>(adapter);
  std::vector<float> all;
  for (const Role w : members(shape.of)) {
    std::vector<float> values =
        feature_values(base, {w, shape.layer}, slices.index({w, shape.layer}), config);
    if (ends_in_stream(shape.of)) values = transposed(values, shape.width, shape.n);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace tandem::model
