#pragma once
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "decode/model_files.h"
#include "model/adapters/adapter.h"
#include "model/adapters/low_rank_adapter.h"

/// Adapters with seeded numbers, for the tests that serve them.
namespace tandem::test {

struct SliceCase {
  uint64_t seed = 1;
  double share = 0.1;  // of the features of each weight, at least one
  std::vector<model::Role> weights = {model::Role::o, model::Role::down};
  float change = 0.05f;  // uniform, at most, of each number
  int first = 0;         // features from there on are chosen among, to keep adapters disjoint
  int stride = 1;        // every how many of them
};

/// Writes an adapter of slices to a model; its values are the base's, each a little changed.
inline std::filesystem::path write_slices(const std::filesystem::path& folder,
                                          const std::filesystem::path& model, const SliceCase& c) {
  const decode::ModelFiles files = decode::open_model(model.string(), 0);
  PhiloxStream draw(c.seed);
  std::vector<std::vector<float>> values;
  std::vector<model::AdapterSlice> slices;
  values.reserve(c.weights.size() * static_cast<size_t>(files.config.n_layers));
  for (int layer = 0; layer < files.config.n_layers; ++layer)
    for (const model::Role w : c.weights) {
      const io::Shape shape = model::shape_of(w, files.config);
      const bool columns = model::ends_in_stream(w);
      const int unit = model::unit_features(w, files.config);
      const auto units = static_cast<int>(shape[columns ? 1 : 0] / unit);
      std::vector<int32_t> index;
      for (int u = c.first; u < units; u += c.stride) {
        if (draw.uniform() >= c.share && !(index.empty() && u + c.stride >= units)) continue;
        for (int i = 0; i < unit; ++i) index.push_back(u * unit + i);
      }
      std::vector<float> all(static_cast<size_t>(shape[0] * shape[1]));
      files.source->rows({w, layer}, 0, shape[0], DType::f32, all.data());
      std::vector<float>& v = values.emplace_back();
      const auto changed = [&](int64_t row, int64_t column) {
        v.push_back(all[static_cast<size_t>(row * shape[1] + column)] +
                    c.change * static_cast<float>(2 * draw.uniform() - 1));
      };
      if (columns)
        for (int64_t r = 0; r < shape[0]; ++r)
          for (const int32_t i : index) changed(r, i);
      else
        for (const int32_t i : index)
          for (int64_t k = 0; k < shape[1]; ++k) changed(i, k);
      slices.push_back({{w, layer}, std::move(index), v});
    }
  model::write_adapter(
      folder, {.base = {files.name, files.fingerprint}, .selection = R"({"strategy":"test"})"},
      slices);
  return folder;
}

struct FactorCase {
  uint64_t seed = 1;
  int rank = 4;
  std::vector<model::Role> weights = {model::Role::q, model::Role::v, model::Role::up,
                                      model::Role::down};
  float scale = 0.1f;
  bool dora = false;
};

/// Writes low-rank factors as PEFT does.
inline std::filesystem::path write_factors(const std::filesystem::path& folder,
                                           const std::filesystem::path& model,
                                           const FactorCase& c) {
  const decode::ModelFiles files = decode::open_model(model.string(), 0);
  PhiloxStream draw(c.seed);
  std::vector<std::vector<float>> values;
  std::vector<model::LowRankDelta> deltas;
  values.reserve(3 * c.weights.size() * static_cast<size_t>(files.config.n_layers));
  const auto numbers = [&](int64_t n, float mean, float range) {
    std::vector<float>& v = values.emplace_back();
    for (int64_t i = 0; i < n; ++i)
      v.push_back(mean + range * static_cast<float>(2 * draw.uniform() - 1));
    return std::span<const float>(v);
  };
  for (int layer = 0; layer < files.config.n_layers; ++layer)
    for (const model::Role w : c.weights) {
      const io::Shape shape = model::shape_of(w, files.config);
      model::LowRankDelta d{.id = {w, layer}, .rank = c.rank, .gamma = 2};
      d.a = numbers(c.rank * shape[1], 0, c.scale);
      d.b = numbers(c.rank * shape[0], 0, c.scale);
      if (c.dora) d.magnitude = numbers(shape[0], 1, 0.5f);
      deltas.push_back(d);
    }
  model::write_low_rank_adapter(folder,
                                {.base = files.name,
                                 .rank = c.rank,
                                 .alpha = 2.0 * c.rank,
                                 .dora = c.dora,
                                 .targets = c.weights},
                                deltas);
  return folder;
}

}  // namespace tandem::test
