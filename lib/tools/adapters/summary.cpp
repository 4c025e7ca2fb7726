#include "tools/adapters/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "io/json.h"
#include "io/quote.h"
#include "io/table.h"

namespace tandem::tools {
namespace {

using model::Weight;

const char* name_of(Weight weight) {
  switch (weight) {
    case Weight::wq:
      return "q";
    case Weight::wk:
      return "k";
    case Weight::wv:
      return "v";
    case Weight::wo:
      return "o";
    case Weight::w_gate:
      return "gate";
    case Weight::w_up:
      return "up";
    default:
      return "down";
  }
}

const char* unit_name(Weight weight) {
  switch (weight) {
    case Weight::wk:
    case Weight::wv:
      return "KV heads";
    case Weight::wq:
    case Weight::wo:
      return "heads";
    default:
      return "channels";
  }
}

/// Sums of squares over a matrix: of new less old weights, and of the old.
void add_squares(MatrixChange& c, int layer, const io::Shape& shape,
                 const model::WeightSource& base, const model::WeightSource& merged,
                 const WeightProgress& progress) {
  const int64_t rows = shape[0], cols = shape[1], each = std::max<int64_t>(1, kWeightPiece / cols);
  std::vector<float> before, after;
  for (int64_t begin = 0; begin < rows; begin += each) {
    const int64_t end = std::min(rows, begin + each);
    for (std::vector<float>* piece : {&before, &after})
      piece->resize(static_cast<size_t>((end - begin) * cols));
    base.rows(c.weight, layer, begin, end, DType::f32, before.data());
    merged.rows(c.weight, layer, begin, end, DType::f32, after.data());
    for (size_t i = 0; i < before.size(); ++i) {
      const double old = before[i], difference = after[i] - old;
      c.change += difference * difference;
      c.base += old * old;
    }
    add_read(progress, (end - begin) * cols);
  }
}

/// "53 in layers 0-2, 54 in layer 3": equal neighbours together.
std::string counts_text(const std::vector<int>& units) {
  std::string text;
  for (size_t from = 0; from < units.size();) {
    size_t to = from;
    while (to + 1 < units.size() && units[to + 1] == units[from]) ++to;
    if (units[from] > 0) {
      text += fmt::format("{}{} in layer", text.empty() ? "" : ", ", units[from]);
      text += to > from ? fmt::format("s {}-{}", from, to) : fmt::format(" {}", from);
    }
    from = to + 1;
  }
  return text.empty() ? "whole matrices" : text;
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

}  // namespace

AdapterSummary summarise(const model::Adapter& adapter, const model::ModelConfig& config,
                         const model::WeightSource& base, const model::WeightSource& merged,
                         const WeightProgress& progress) {
  AdapterSummary s{.info = adapter.info(), .n_weights = model::n_params(config)};
  if (!s.info.selection.empty())
    s.selection = io::parse_json(s.info.selection, adapter.file().where() + ": selection");
  for (const io::TensorEntry& entry : adapter.file().entries())
    if (entry.dtype != "I32")  // an index
      s.n_values +=
          std::accumulate(entry.shape.begin(), entry.shape.end(), int64_t{1}, std::multiplies<>());
  for (const Weight weight : model::adapter_weights()) {
    MatrixChange c{.weight = weight};
    for (int layer = 0; layer < config.n_layers; ++layer) {
      c.units.push_back(static_cast<int>(adapter.index(weight, layer).size()) /
                        model::features_per_unit(weight, config));
      if (!adapter.holds(weight, layer)) continue;
      ++c.n_matrices;
      add_squares(c, layer, model::weight_shape(weight, config), base, merged, progress);
    }
    c.change = std::sqrt(c.change);
    c.base = std::sqrt(c.base);
    if (c.n_matrices > 0) s.changes.push_back(std::move(c));
  }
  return s;
}

std::string AdapterSummary::text(const std::string& path) const {
  std::string text = fmt::format(
      "adapter  {}  {}, {} steps\nbase     {}  fingerprint {}\nvalues   {}, as many as {:.3g} % of "
      "{} weights\n",
      path, info.format, info.steps, io::quote(info.base.name), info.base.fingerprint, n_values,
      percent(static_cast<double>(n_values), static_cast<double>(n_weights)), n_weights);
  if (!selection.is_null()) text += fmt::format("chosen   {}\n", selection.dump(-1, ' ', true));
  using io::Align;
  io::Table table({{"matrix", Align::left},
                   {"matrices"},
                   {"units", Align::left},
                   {"norm of the change"},
                   {"of the weights"},
                   {"in each", Align::left}});
  for (const MatrixChange& c : changes)
    table.add_row({name_of(c.weight), fmt::format("{}", c.n_matrices), unit_name(c.weight),
                   fmt::format("{:.4g}", c.change),
                   fmt::format("{:.3g} %", percent(c.change, c.base)), counts_text(c.units)});
  return text + table.render(io::TableFormat::text);
}

nlohmann::ordered_json AdapterSummary::json(const std::string& path) const {
  using Json = nlohmann::ordered_json;
  Json matrices = Json::array();
  for (const MatrixChange& c : changes)
    matrices.push_back({{"matrix", name_of(c.weight)},
                        {"matrices", c.n_matrices},
                        {"units", c.units},
                        {"change_norm", c.change},
                        {"base_norm", c.base}});
  Json json = {{"adapter", path},        {"format", info.format},
               {"base", info.base.name}, {"base_fingerprint", info.base.fingerprint},
               {"steps", info.steps},    {"values", n_values},
               {"weights", n_weights},   {"matrices", std::move(matrices)}};
  if (!selection.is_null()) json["selection"] = selection;
  return json;
}

}  // namespace tandem::tools
