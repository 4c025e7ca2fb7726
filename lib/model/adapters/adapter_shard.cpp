#include "model/weights/shard.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "model/adapters/adapter_features.h"
#include "model/adapters/low_rank_format.h"

namespace tandem::model {
namespace {

/// Columns [first, first + n) of each row.
std::vector<float> columns_of(std::span<const float> rows, int64_t width, int64_t first,
                              int64_t n) {
  std::vector<float> own;
  for (int64_t at = first; at < std::ssize(rows); at += width) {
    const auto part = rows.subspan(static_cast<size_t>(at), static_cast<size_t>(n));
    own.insert(own.end(), part.begin(), part.end());
  }
  return own;
}

Adapter shard_slices(const Adapter& adapter, const std::string& name, const ModelConfig& whole,
                     const Shard& shard) {
  std::vector<OwnedSlice> own;
  for (int layer = 0; layer < whole.n_layers; ++layer)
    for (const Role w : kLayerRoles) {
      const std::span<const int32_t> all = adapter.index({w, layer});
      const Shard::Part part = own_features(w, whole, shard);
      const auto begin = std::ranges::lower_bound(all, part.first),
                 end = std::ranges::lower_bound(all, part.first + part.n);
      if (begin == end) continue;
      OwnedSlice slice{.id = {w, layer}};
      for (auto i = begin; i != end; ++i) slice.index.push_back(*i - part.first);
      const auto values = adapter.values({w, layer});
      const int64_t first = begin - all.begin(), n = end - begin;
      const int64_t in = shape_of(w, whole)[1];
      slice.values = ends_in_stream(w) ? columns_of(values, std::ssize(all), first, n)
                                       : std::vector<float>(values.begin() + first * in,
                                                            values.begin() + (first + n) * in);
      own.push_back(std::move(slice));
    }
  const AdapterInfo info = adapter.info();
  return Adapter::parse_part(io::Safetensors::hold(adapter_bytes(info, slice_views(own)), name),
                             config_of(whole, shard), info.base);
}

LowRankAdapter shard_factors(const LowRankAdapter& adapter, const std::string& name,
                             const ModelConfig& whole, const Shard& shard) {
  if (adapter.scales_rows())
    throw recipe_error(
        "model.adapters",
        "'{}' is a DoRA adapter: named DoRA adapters are not supported with tensor parallelism",
        name)
        .hint("omit the adapter's name to merge it into the weights");
  std::deque<std::vector<float>> numbers;
  std::vector<io::TensorView> tensors;
  nlohmann::json ranks = nlohmann::json::object(), alphas = nlohmann::json::object();
  const auto add = [&](const std::string& path, const char* of, const io::Shape& shape,
                       std::vector<float> values) {
    numbers.push_back(std::move(values));
    tensors.push_back(
        {factor_name(path, of), DType::f32, shape, std::as_bytes(std::span(numbers.back()))});
  };
  for (int layer = 0; layer < whole.n_layers; ++layer)
    for (const Role w : kLayerRoles) {
      if (!adapter.holds({w, layer})) continue;
      const int64_t rank = adapter.rank({w, layer}), in = shape_of(w, whole)[1];
      const Shard::Part part = own_features(w, whole, shard);
      const std::string path = module_path({w, layer});
      std::vector<float> a = adapter.first_factor({w, layer}),
                         b = adapter.second_factor({w, layer});
      if (ends_in_stream(w))
        a = columns_of(a, in, part.first, part.n);
      else
        b = {b.begin() + part.first * rank, b.begin() + (part.first + part.n) * rank};
      const io::Shape of_a = {rank, std::ssize(a) / rank}, of_b = {std::ssize(b) / rank, rank};
      add(path, kFactorA, of_a, std::move(a));
      add(path, kFactorB, of_b, std::move(b));
      ranks[path] = rank;
      alphas[path] = double{adapter.gamma({w, layer})} * static_cast<double>(rank);
    }
  std::vector<std::string> paths;
  for (const auto& [path, rank] : ranks.items()) paths.push_back(path);
  const nlohmann::json said = {{"peft_type", "LORA"},     {"r", 1},
                               {"lora_alpha", 1},         {"rank_pattern", ranks},
                               {"alpha_pattern", alphas}, {"target_modules", paths}};
  return LowRankAdapter::parse(
      io::Safetensors::hold(io::safetensors_bytes(tensors, {{"format", "pt"}}), name), said.dump(),
      config_of(whole, shard));
}

}  // namespace

NamedAdapter shard_adapter(const NamedAdapter& named, const ModelConfig& whole,
                           const Shard& shard) {
  const auto* slices = std::get_if<Adapter>(named.adapter.get());
  AnyAdapter part = slices != nullptr
                        ? AnyAdapter(shard_slices(*slices, named.name, whole, shard))
                        : AnyAdapter(shard_factors(std::get<LowRankAdapter>(*named.adapter),
                                                   named.name, whole, shard));
  return {.name = named.name,
          .adapter = std::make_shared<const AnyAdapter>(std::move(part)),
          .weight = named.weight};
}

}  // namespace tandem::model
