#include "train/export/export_adapter.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "model/adapters/adapter.h"
#include "recipe/fields_of.h"

namespace tandem::train {
namespace {

using model::AdapterSlice;
using model::Weight;
using Part = TrainedMatrix::Part;

std::span<const float> values_of(std::span<const float> all, int64_t offset, int64_t n) {
  return all.subspan(static_cast<size_t>(offset), static_cast<size_t>(n));
}

/// The trained rows of a packed matrix, as those of the weights that it packs.
struct PackedWeight {
  Weight weight;
  int64_t rows;
};

void add_rows(std::vector<AdapterSlice>& slices, int layer, const TrainedMatrix& m,
              std::initializer_list<PackedWeight> packed, std::span<const float> values) {
  if (!m.trained()) return;
  TANDEM_CHECK(m.part == Part::rows && !m.bias, "layer {}: expected only rows to be trained",
               layer);
  int64_t first = 0;
  for (const auto& [weight, rows] : packed) {
    const auto begin = std::ranges::lower_bound(m.index, first);
    const auto end = std::ranges::lower_bound(m.index, first + rows);
    if (begin != end) {
      AdapterSlice& s = slices.emplace_back();
      s.weight = weight;
      s.layer = layer;
      std::transform(begin, end, std::back_inserter(s.index),
                     [&](int32_t row) { return static_cast<int32_t>(row - first); });
      s.values =
          values_of(values, m.offset + (begin - m.index.begin()) * m.cols, (end - begin) * m.cols);
    }
    first += rows;
  }
}

void add_columns(std::vector<AdapterSlice>& slices, int layer, const TrainedMatrix& m,
                 Weight weight, std::span<const float> values) {
  if (!m.trained()) return;
  TANDEM_CHECK(m.part == Part::columns && !m.bias, "layer {}: expected only columns to be trained",
               layer);
  slices.push_back({weight, layer, m.index, values_of(values, m.offset, m.size())});
}

std::string selection_text(Selection selection, int64_t seed) {
  nlohmann::json json = recipe::to_json(recipe::fields_of(selection));
  json.erase("exclude");  // paths of this machine
  json["seed"] = seed;
  return json.dump();
}

}  // namespace

void export_adapter(const std::filesystem::path& folder, const decode::ModelFiles& base,
                    const TrainSettings& settings, int64_t seed, Trainer& trainer) {
  if (settings.method != Method::s2ft) return;
  const model::ModelConfig& c = base.config;
  const std::vector<float> values = trainer.values();
  std::vector<AdapterSlice> slices;
  int layer = 0;
  for (const TrainedLayer& l : trainer.set().layers) {
    add_rows(slices, layer, l.qkv,
             {{Weight::wq, c.q_dim()}, {Weight::wk, c.kv_dim()}, {Weight::wv, c.kv_dim()}}, values);
    add_rows(slices, layer, l.gate_up, {{Weight::w_gate, c.ffn_dim}, {Weight::w_up, c.ffn_dim}},
             values);
    add_columns(slices, layer, l.wo, Weight::wo, values);
    add_columns(slices, layer, l.w_down, Weight::w_down, values);
    ++layer;
  }
  model::write_adapter(folder,
                       {.base = {base.name, base.fingerprint},
                        .selection = selection_text(settings.select, seed),
                        .steps = trainer.state().steps},
                       slices);
}

}  // namespace tandem::train
