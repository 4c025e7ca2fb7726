#include "train/selection/selection.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"

namespace tandem::train {
namespace {

using model::MatrixId;
using Part = TrainedMatrix::Part;

/// Features of the stack that a unit of a matrix is made of.
struct Features {
  int64_t first;  // of unit 0
  int width;      // of each
};

Features features_of(Role role, const model::ModelConfig& c) {
  return {model::ends_in_stream(role) ? 0 : model::first_row(role, c),
          model::unit_features(role, c)};
}

struct Layers {
  int first, n;
  Layers(const SelectionSpec& s, const model::ModelConfig& c)
      : first(s.first_layer), n((s.last_layer < 0 ? c.n_layers : s.last_layer + 1) - first) {
    if (first < 0 || n <= 0 || first + n > c.n_layers)
      throw recipe_error("train.select.layers", "are {}-{}, but the model has layers 0-{}",
                         s.first_layer, s.last_layer, c.n_layers - 1);
  }
};

void check(const SelectionSpec& spec, const model::ModelConfig& config, const Layers& layers) {
  int64_t total = 0;
  std::string least;
  for (const Role role : model::kLayerRoles) {
    const double ratio = spec.ratio[role];
    if (!(ratio >= 0 && ratio <= 1))
      throw recipe_error(fmt::format("train.select.ratios.{}", ratio_name(role)),
                         "expected 0 to 1, found {}", ratio);
    const int units = model::n_units(role, config);
    const std::vector<int> counts = counts_per_layer(ratio, units, layers.n);
    total += std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (ratio > 0)
      least += fmt::format("{}{}: {:.2g}", least.empty() ? "" : ", ", ratio_name(role),
                           1.0 / units / layers.n);
  }
  if (total == 0)
    throw recipe_error("train.select.ratios", "select no unit in {} layers", layers.n)
        .hint(least.empty() ? "set one above 0" : "ratios for one unit of one layer: " + least);
}

/// The units of `n` layers from `first` on that are not excluded, as layer * units + unit with
/// layers counted from `first`.
std::vector<int32_t> candidates(const SelectionSpec& spec, Role role, int units, int first, int n) {
  std::vector<int32_t> all;
  for (int l = 0; l < n; ++l)
    for (int32_t unit = 0; unit < units; ++unit)
      if (spec.excluded.empty() ||
          !std::ranges::binary_search(spec.excluded[static_cast<size_t>(first + l)][role], unit))
        all.push_back(l * units + unit);
  return all;
}

/// Chooses units of every matrix, in each layer or over all: order({role, first layer}, candidates)
/// puts those to take first.
template <class Order>
std::vector<LayerUnits> choose(const SelectionSpec& spec, const model::ModelConfig& config,
                               const Order& order) {
  const Layers layers(spec, config);
  check(spec, config, layers);
  std::vector<LayerUnits> chosen(static_cast<size_t>(config.n_layers));
  for (const Role role : model::kLayerRoles) {
    const int units = model::n_units(role, config);
    const auto take = [&](int first, int n_layers, int count) {
      if (count == 0) return;
      std::vector<int32_t> from = candidates(spec, role, units, first, n_layers);
      if (count > static_cast<int>(from.size()))
        throw recipe_error(
            "train.select.exclude", "leaves {} units of {} in {}, but {} must be selected",
            from.size(), ratio_name(role),
            n_layers == 1 ? fmt::format("layer {}", first) : fmt::format("{} layers", n_layers),
            count)
            .hint(n_layers == 1 ? "lower the ratio, exclude fewer adapters, or set "
                                  "train.select.scope=global to select in other layers"
                                : "lower the ratio, or exclude fewer adapters");
      order(MatrixId{role, first}, from);
      for (const int32_t i : std::span(from).first(static_cast<size_t>(count)))
        chosen[static_cast<size_t>(first + i / units)][role].push_back(i % units);
    };
    const std::vector<int> counts = counts_per_layer(spec.ratio[role], units, layers.n);
    if (spec.scope == SelectionSpec::Scope::global)
      take(layers.first, layers.n, std::accumulate(counts.begin(), counts.end(), 0));
    else
      for (int l = 0; l < layers.n; ++l) take(layers.first + l, 1, counts[static_cast<size_t>(l)]);
    for (LayerUnits& l : chosen) std::ranges::sort(l[role]);
  }
  return chosen;
}

void append(TrainedMatrix& m, Part part, const std::vector<int32_t>& units, const Features& f) {
  if (units.empty()) return;
  m.part = part;
  for (const int32_t unit : units)
    for (int i = 0; i < f.width; ++i)
      m.index.push_back(static_cast<int32_t>(f.first + int64_t{unit} * f.width + i));
}

}  // namespace

std::string_view ratio_name(Role role) { return {model::word_of(role), 1}; }

std::vector<int> counts_per_layer(double ratio, int units, int layers) {
  // A ratio such as .29 of 100 is a little less than 29 in binary.
  constexpr double kSlack = 1e-9;
  const int each = static_cast<int>(ratio * units + kSlack);
  const int rest = static_cast<int>(ratio * units * layers + kSlack) - layers * each;
  std::vector<int> counts;
  for (int l = 0; l < layers; ++l)
    counts.push_back(each + ((l + 1) * rest / layers > l * rest / layers ? 1 : 0));
  return counts;
}

std::vector<LayerUnits> select_random(const SelectionSpec& spec, const model::ModelConfig& config) {
  return choose(spec, config, [&](MatrixId id, std::vector<int32_t>& from) {
    // Each matrix and layer has its stream: a draw for one does not move those of others.
    PhiloxStream stream(spec.seed, static_cast<uint32_t>(model::matrix_index(id.layer, id.role)));
    for (size_t i = 0; i < from.size(); ++i)
      std::swap(from[i], from[i + stream.below(static_cast<uint32_t>(from.size() - i))]);
  });
}

std::vector<LayerUnits> select_by_score(const SelectionSpec& spec, const model::ModelConfig& config,
                                        const Scores& scores, bool largest) {
  return choose(spec, config, [&](MatrixId id, std::vector<int32_t>& from) {
    const std::vector<std::vector<double>>& of = scores[id.role];
    TANDEM_CHECK(of.size() == static_cast<size_t>(config.n_layers),
                 "expected scores of all layers, found {}", of.size());
    const int units = model::n_units(id.role, config);
    const auto score = [&](int32_t i) {
      return of[static_cast<size_t>(id.layer + i / units)][static_cast<size_t>(i % units)];
    };
    std::ranges::stable_sort(from, [&](int32_t a, int32_t b) {
      return largest ? score(a) > score(b) : score(a) < score(b);
    });
  });
}

Scores scores_of(const std::vector<FeatureSquares>& squares, const model::ModelConfig& config) {
  Scores scores;
  for (const Role role : model::kLayerRoles) {
    const Features f = features_of(role, config);
    for (const FeatureSquares& of_layer : squares) {
      std::vector<double>& units = scores[role].emplace_back();
      const double* at = of_layer[model::info(role).stack].data() + f.first;
      for (int unit = 0; unit < model::n_units(role, config); ++unit, at += f.width)
        units.push_back(std::sqrt(std::accumulate(at, at + f.width, 0.0)));
    }
  }
  return scores;
}

TrainedSet slices_of(const std::vector<LayerUnits>& units, const model::ModelConfig& config) {
  TrainedSet set;
  for (const LayerUnits& l : units) {
    auto& t = set.layers.emplace_back();
    for (const Role role : model::kLayerRoles)
      append(t[model::info(role).stack], model::ends_in_stream(role) ? Part::columns : Part::rows,
             l[role], features_of(role, config));
  }
  lay_out(set, config);
  return set;
}

std::string budget_text(const TrainedSet& set, const model::ModelConfig& config) {
  std::string text;
  for (const Role role : model::kLayerRoles) {
    const Features f = features_of(role, config);
    const int units = model::n_units(role, config);
    int64_t n = 0;
    for (const auto& l : set.layers) {
      const std::vector<int32_t>& index = l[model::info(role).stack].index;
      n += std::ranges::lower_bound(index, f.first + int64_t{units} * f.width) -
           std::ranges::lower_bound(index, f.first);
    }
    n /= f.width;
    const int64_t all = int64_t{units} * config.n_layers;
    if (n > 0)
      text += fmt::format("{}{} {} of {} {} ({:.3g} %)", text.empty() ? "" : ", ", ratio_name(role),
                          n, all, model::unit_name(role),
                          100 * static_cast<double>(n) / static_cast<double>(all));
  }
  return text;
}

}  // namespace tandem::train
