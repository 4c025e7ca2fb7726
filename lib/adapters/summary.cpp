#include "adapters/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "io/json.h"
#include "io/quote.h"
#include "io/table.h"

namespace tandem::adapters {
namespace {

using model::Role;

/// Sums of squares over a matrix: of new less old weights, and of the old.
void add_squares(MatrixChange& c, int layer, const io::Shape& shape,
                 const model::WeightSource& base, const model::WeightSource& merged,
                 const model::WeightProgress& progress) {
  model::each_piece(base, merged, {c.weight, layer}, shape, progress,
                    [&](int64_t, std::span<const float> before, std::span<const float> after) {
                      for (size_t i = 0; i < before.size(); ++i) {
                        const double old = before[i], difference = after[i] - old;
                        c.change += difference * difference;
                        c.base += old * old;
                      }
                    });
}

std::string in_each(const MatrixChange& c) {
  const std::string ranks = counts_text(c.ranks);
  return ranks.empty() ? counts_text(c.units) : "rank " + ranks;
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/// Keys and values on one line: "strategy random, ratios.o 0.25".
std::string settings_text(const nlohmann::json& settings, const std::string& section = {}) {
  if (!settings.is_object()) return section + settings.dump(-1, ' ', true);
  std::string text;
  for (const auto& [key, value] : settings.items()) {
    std::string item = nlohmann::json(section + key).dump(-1, ' ', true);  // escaped
    item = item.substr(1, item.size() - 2);
    if (value.is_object()) {
      item = settings_text(value, section + key + ".");
    } else {
      const std::string written = value.dump(-1, ' ', true);
      item += " " + (value.is_string() ? written.substr(1, written.size() - 2) : written);
    }
    text += (text.empty() ? "" : ", ") + item;
  }
  return text;
}

}  // namespace

AdapterSummary summarise(const model::WeightedAdapter& given, const model::ModelConfig& config,
                         const model::WeightSource& base, const model::WeightSource& merged,
                         const model::WeightProgress& progress) {
  AdapterSummary s{.weight = given.weight, .n_weights = model::n_params(config)};
  const auto* slices = std::get_if<model::Adapter>(&given.adapter);
  const auto* factors = std::get_if<model::LowRankAdapter>(&given.adapter);
  const io::Safetensors& file = model::file_of(given.adapter);
  if (slices != nullptr)
    s.info = slices->info();
  else
    s.info.format = factors->scales_rows() ? "DoRA of PEFT" : "LoRA of PEFT";
  if (factors != nullptr) s.others = factors->others();
  if (!s.info.selection.empty())
    s.selection = io::parse_json(s.info.selection, file.where() + ": selection");
  for (const io::TensorEntry& entry : file.entries())
    if (entry.dtype != "I32")  // an index
      s.n_values +=
          std::accumulate(entry.shape.begin(), entry.shape.end(), int64_t{1}, std::multiplies<>());
  for (const Role weight : model::kLayerRoles) {
    MatrixChange c{.weight = weight};
    for (int layer = 0; layer < config.n_layers; ++layer) {
      const bool held = model::holds(given.adapter, {weight, layer});
      c.units.push_back(slices == nullptr
                            ? 0
                            : static_cast<int>(slices->index({weight, layer}).size()) /
                                  model::unit_features(weight, config));
      c.ranks.push_back(
          factors != nullptr && held ? static_cast<int>(factors->rank({weight, layer})) : 0);
      if (!held) continue;
      ++c.n_matrices;
      add_squares(c, layer, model::shape_of(weight, config), base, merged, progress);
    }
    c.change = std::sqrt(c.change);
    c.base = std::sqrt(c.base);
    if (c.n_matrices > 0) s.changes.push_back(std::move(c));
  }
  return s;
}

std::string AdapterSummary::text(const std::string& path, io::TableFormat format) const {
  std::string text = fmt::format("adapter  {}  {}", path, info.format);
  if (!info.base.name.empty())
    text += fmt::format(", {} steps\nbase     {}  fingerprint {}", info.steps,
                        io::quote(info.base.name), info.base.fingerprint);
  if (weight != 1) text += fmt::format("\nweight   {}", weight);
  text += fmt::format("\nvalues   {}, {:.3g} % of {} weights\n", n_values,
                      percent(static_cast<double>(n_values), static_cast<double>(n_weights)),
                      n_weights);
  if (!selection.is_null()) text += fmt::format("chosen   {}\n", settings_text(selection));
  if (!others.empty()) text += fmt::format("others   {}\n", fmt::join(others, ", "));
  using io::Align;
  io::Table table({{"matrix", Align::left},
                   {"matrices"},
                   {"units", Align::left},
                   {"norm of change"},
                   {"share of weights"},
                   {"in each", Align::left}});
  for (const MatrixChange& c : changes)
    table.add_row({model::word_of(c.weight), fmt::format("{}", c.n_matrices),
                   counts_text(c.ranks).empty() ? model::unit_name(c.weight) : "factors",
                   fmt::format("{:.4g}", c.change),
                   fmt::format("{:.3g} %", percent(c.change, c.base)), in_each(c)});
  return text + (format == io::TableFormat::markdown ? "\n" : "") + table.render(format);
}

nlohmann::ordered_json AdapterSummary::json(const std::string& path) const {
  using Json = nlohmann::ordered_json;
  Json matrices = Json::array();
  for (const MatrixChange& c : changes) {
    Json m = {{"matrix", model::word_of(c.weight)},
              {"matrices", c.n_matrices},
              {"change_norm", c.change},
              {"base_norm", c.base}};
    const bool factors = std::ranges::any_of(c.ranks, [](int r) { return r > 0; });
    m[factors ? "ranks" : "units"] = factors ? c.ranks : c.units;
    matrices.push_back(std::move(m));
  }
  Json json = {{"adapter", path}, {"format", info.format}, {"weight", written_weight(weight)}};
  if (!info.base.name.empty()) {
    json["base"] = info.base.name;
    json["base_fingerprint"] = info.base.fingerprint;
    json["steps"] = info.steps;
  }
  json["values"] = n_values;
  json["weights"] = n_weights;
  json["matrices"] = std::move(matrices);
  if (!others.empty()) json["others"] = others;
  if (!selection.is_null()) json["selection"] = selection;
  return json;
}

namespace {

/// Overlaps of two adapters in one kind of matrix, by layer.
struct OverlapRow {
  size_t first, second;
  Role role;
  std::vector<int> units;  // [layers]
};

std::vector<OverlapRow> rows_of(std::span<const model::Overlap> overlaps) {
  std::vector<OverlapRow> rows;
  for (const model::Overlap& o : overlaps) {
    const bool next = rows.empty() || rows.back().first != o.first ||
                      rows.back().second != o.second || rows.back().role != o.id.role;
    if (next) rows.push_back({o.first, o.second, o.id.role, {}});
    rows.back().units.resize(static_cast<size_t>(o.id.layer) + 1);
    rows.back().units.back() = o.units;
  }
  return rows;
}

int sum(const std::vector<int>& counts) { return std::accumulate(counts.begin(), counts.end(), 0); }

}  // namespace

std::string overlaps_text(std::span<const model::Overlap> overlaps, io::TableFormat format) {
  if (overlaps.empty()) return "overlaps none\n";
  using io::Align;
  io::Table table({{"adapters", Align::left},
                   {"matrix", Align::left},
                   {"shared"},
                   {"units", Align::left},
                   {"in each", Align::left}});
  for (const OverlapRow& r : rows_of(overlaps))
    table.add_row({fmt::format("{} and {}", r.first + 1, r.second + 1), model::word_of(r.role),
                   fmt::format("{}", sum(r.units)), model::unit_name(r.role),
                   counts_text(r.units)});
  return table.render(format);
}

nlohmann::ordered_json overlaps_json(std::span<const model::Overlap> overlaps) {
  auto json = nlohmann::ordered_json::array();
  for (const OverlapRow& r : rows_of(overlaps))
    json.push_back({{"adapters", {r.first, r.second}},
                    {"matrix", model::word_of(r.role)},
                    {"units", r.units}});
  return json;
}

std::string counts_text(std::span<const int> units) {
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
  return text;
}

double written_weight(float weight) { return std::stod(fmt::format("{}", weight)); }

}  // namespace tandem::adapters
