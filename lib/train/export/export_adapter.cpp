#include "train/export/export_adapter.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "model/adapters/adapter.h"
#include "recipe/fields_of.h"

namespace tandem::train {
namespace {

using model::AdapterSlice;
using Part = TrainedMatrix::Part;

std::span<const float> values_of(std::span<const float> all, int64_t offset, int64_t n) {
  return all.subspan(static_cast<size_t>(offset), static_cast<size_t>(n));
}

/// The trained rows of a stack, as those of its members.
void add_rows(std::vector<AdapterSlice>& slices, int layer, const TrainedMatrix& m, Role stack,
              const model::ModelConfig& config, std::span<const float> values) {
  for (const Role role : model::members(stack)) {
    const int64_t first = model::first_row(role, config);
    const auto begin = std::ranges::lower_bound(m.index, first);
    const auto end = std::ranges::lower_bound(m.index, first + model::shape_of(role, config)[0]);
    if (begin == end) continue;
    AdapterSlice& s = slices.emplace_back();
    s.id = {role, layer};
    std::transform(begin, end, std::back_inserter(s.index),
                   [&](int32_t row) { return static_cast<int32_t>(row - first); });
    s.values =
        values_of(values, m.offset + (begin - m.index.begin()) * m.cols, (end - begin) * m.cols);
  }
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
  const std::vector<float> values = trainer.values();
  std::vector<AdapterSlice> slices;
  int layer = 0;
  for (const auto& l : trainer.set().layers) {
    for (const Role stack :
         {Role::qkv, Role::gate_up, Role::o, Role::down}) {  // as files have them
      const TrainedMatrix& m = l[stack];
      if (!m.trained()) continue;
      const bool columns = model::ends_in_stream(stack);
      TANDEM_CHECK(m.part == (columns ? Part::columns : Part::rows) && !m.bias,
                   "layer {}: expected only {} to be trained", layer, columns ? "columns" : "rows");
      if (columns)
        slices.push_back({{stack, layer}, m.index, values_of(values, m.offset, m.size())});
      else
        add_rows(slices, layer, m, stack, base.config, values);
    }
    ++layer;
  }
  model::write_adapter(folder,
                       {.base = {base.name, base.adapter_base()},
                        .selection = selection_text(settings.select, seed),
                        .steps = trainer.state().steps},
                       slices);
}

}  // namespace tandem::train
