#include "train/selection/selection.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"

namespace tandem::train {
namespace {

using Part = TrainedMatrix::Part;

constexpr PerMatrix<const char*> kMatrixNames = {"q", "k", "v", "o", "g", "u", "d"};

size_t at(Matrix matrix) { return static_cast<size_t>(matrix); }

/// Features of the packed matrix that a unit of a matrix is made of.
struct Features {
  int64_t first;  // of unit 0
  int width;      // of each
};

Features features_of(Matrix matrix, const model::ModelConfig& c) {
  switch (matrix) {
    case Matrix::q:
    case Matrix::o:
      return {0, c.head_dim};
    case Matrix::k:
      return {c.q_dim(), c.head_dim};
    case Matrix::v:
      return {c.q_dim() + int64_t{c.kv_dim()}, c.head_dim};
    case Matrix::up:
      return {c.ffn_dim, 1};
    case Matrix::gate:
    case Matrix::down:
      return {0, 1};
  }
  return {};
}

const std::vector<double>& squares_of(Matrix matrix, const FeatureSquares& s) {
  switch (matrix) {
    case Matrix::o:
      return s.wo;
    case Matrix::down:
      return s.w_down;
    case Matrix::gate:
    case Matrix::up:
      return s.gate_up;
    default:
      return s.qkv;
  }
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
  for (size_t s = 0; s < kMatrices; ++s) {
    const double ratio = spec.ratio[s];
    if (!(ratio >= 0 && ratio <= 1))
      throw recipe_error(std::string("train.select.ratios.") + kMatrixNames[s],
                         "expected 0 to 1, found {}", ratio);
    const int units = n_units(static_cast<Matrix>(s), config);
    const std::vector<int> counts = counts_per_layer(ratio, units, layers.n);
    total += std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (ratio > 0)
      least += fmt::format("{}{}: {:.2g}", least.empty() ? "" : ", ", kMatrixNames[s],
                           1.0 / units / layers.n);
  }
  if (total == 0)
    throw recipe_error("train.select.ratios", "select no unit in {} layers", layers.n)
        .hint(least.empty() ? "set one above 0" : "ratios for one unit of one layer: " + least);
}

/// The units of `n` layers from `first` on that are not excluded, as layer * units + unit with
/// layers counted from `first`.
std::vector<int32_t> candidates(const SelectionSpec& spec, size_t matrix, int units, int first,
                                int n) {
  std::vector<int32_t> all;
  for (int l = 0; l < n; ++l)
    for (int32_t unit = 0; unit < units; ++unit)
      if (spec.excluded.empty() ||
          !std::ranges::binary_search(spec.excluded[static_cast<size_t>(first + l)][matrix], unit))
        all.push_back(l * units + unit);
  return all;
}

/// Chooses units of every matrix, in each layer or over all: order(matrix, first layer, candidates)
/// puts those to take first.
template <class Order>
std::vector<LayerUnits> choose(const SelectionSpec& spec, const model::ModelConfig& config,
                               const Order& order) {
  const Layers layers(spec, config);
  check(spec, config, layers);
  std::vector<LayerUnits> chosen(static_cast<size_t>(config.n_layers));
  for (size_t m = 0; m < kMatrices; ++m) {
    const Matrix matrix = static_cast<Matrix>(m);
    const int units = n_units(matrix, config);
    const auto take = [&](int first, int n_layers, int count) {
      if (count == 0) return;
      std::vector<int32_t> from = candidates(spec, m, units, first, n_layers);
      if (count > static_cast<int>(from.size()))
        throw recipe_error(
            "train.select.exclude", "leaves {} units of {} in {}, but {} must be selected",
            from.size(), kMatrixNames[m],
            n_layers == 1 ? fmt::format("layer {}", first) : fmt::format("{} layers", n_layers),
            count)
            .hint(n_layers == 1 ? "lower the ratio, exclude fewer adapters, or set "
                                  "train.select.scope=global to select in other layers"
                                : "lower the ratio, or exclude fewer adapters");
      order(matrix, first, from);
      for (const int32_t i : std::span(from).first(static_cast<size_t>(count)))
        chosen[static_cast<size_t>(first + i / units)][m].push_back(i % units);
    };
    const std::vector<int> counts = counts_per_layer(spec.ratio[m], units, layers.n);
    if (spec.scope == SelectionSpec::Scope::global)
      take(layers.first, layers.n, std::accumulate(counts.begin(), counts.end(), 0));
    else
      for (int l = 0; l < layers.n; ++l) take(layers.first + l, 1, counts[static_cast<size_t>(l)]);
    for (LayerUnits& l : chosen) std::ranges::sort(l[m]);
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

const char* ratio_name(Matrix matrix) { return kMatrixNames[at(matrix)]; }

int n_units(Matrix matrix, const model::ModelConfig& c) {
  switch (matrix) {
    case Matrix::q:
    case Matrix::o:
      return c.n_heads;
    case Matrix::k:
    case Matrix::v:
      return c.n_kv_heads;
    default:
      return c.ffn_dim;
  }
}

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
  return choose(spec, config, [&](Matrix matrix, int layer, std::vector<int32_t>& from) {
    // Each matrix and layer has its stream: a draw for one does not move those of others.
    PhiloxStream stream(spec.seed,
                        static_cast<uint32_t>(layer * kMatrices + static_cast<int>(matrix)));
    for (size_t i = 0; i < from.size(); ++i)
      std::swap(from[i], from[i + stream.below(static_cast<uint32_t>(from.size() - i))]);
  });
}

std::vector<LayerUnits> select_by_score(const SelectionSpec& spec, const model::ModelConfig& config,
                                        const Scores& scores, bool largest) {
  return choose(spec, config, [&](Matrix matrix, int layer, std::vector<int32_t>& from) {
    const std::vector<std::vector<double>>& of = scores[at(matrix)];
    TANDEM_CHECK(of.size() == static_cast<size_t>(config.n_layers),
                 "expected scores of all layers, found {}", of.size());
    const int units = n_units(matrix, config);
    const auto score = [&](int32_t i) {
      return of[static_cast<size_t>(layer + i / units)][static_cast<size_t>(i % units)];
    };
    std::ranges::stable_sort(from, [&](int32_t a, int32_t b) {
      return largest ? score(a) > score(b) : score(a) < score(b);
    });
  });
}

Scores scores_of(const std::vector<FeatureSquares>& squares, const model::ModelConfig& config) {
  Scores scores;
  for (size_t m = 0; m < kMatrices; ++m) {
    const Matrix matrix = static_cast<Matrix>(m);
    const Features f = features_of(matrix, config);
    for (const FeatureSquares& of_layer : squares) {
      std::vector<double>& units = scores[m].emplace_back();
      const double* at = squares_of(matrix, of_layer).data() + f.first;
      for (int unit = 0; unit < n_units(matrix, config); ++unit, at += f.width)
        units.push_back(std::sqrt(std::accumulate(at, at + f.width, 0.0)));
    }
  }
  return scores;
}

TrainedSet slices_of(const std::vector<LayerUnits>& units, const model::ModelConfig& config) {
  TrainedSet set;
  for (const LayerUnits& l : units) {
    TrainedLayer& t = set.layers.emplace_back();
    const auto add = [&](TrainedMatrix& m, Part part, Matrix matrix) {
      append(m, part, l[at(matrix)], features_of(matrix, config));
    };
    for (const Matrix matrix : {Matrix::q, Matrix::k, Matrix::v}) add(t.qkv, Part::rows, matrix);
    for (const Matrix matrix : {Matrix::gate, Matrix::up}) add(t.gate_up, Part::rows, matrix);
    add(t.wo, Part::columns, Matrix::o);
    add(t.w_down, Part::columns, Matrix::down);
  }
  lay_out(set, config);
  return set;
}

std::string budget_text(const TrainedSet& set, const model::ModelConfig& config) {
  const auto packed = [](const TrainedLayer& l, Matrix matrix) -> const TrainedMatrix& {
    switch (matrix) {
      case Matrix::o:
        return l.wo;
      case Matrix::down:
        return l.w_down;
      case Matrix::gate:
      case Matrix::up:
        return l.gate_up;
      default:
        return l.qkv;
    }
  };
  constexpr PerMatrix<const char*> kUnits = {"heads",    "KV heads", "KV heads", "heads",
                                             "channels", "channels", "channels"};
  std::string text;
  for (size_t m = 0; m < kMatrices; ++m) {
    const Matrix matrix = static_cast<Matrix>(m);
    const Features f = features_of(matrix, config);
    const int units = n_units(matrix, config);
    int64_t n = 0;
    for (const TrainedLayer& l : set.layers) {
      const std::vector<int32_t>& index = packed(l, matrix).index;
      n += std::ranges::lower_bound(index, f.first + int64_t{units} * f.width) -
           std::ranges::lower_bound(index, f.first);
    }
    n /= f.width;
    const int64_t all = int64_t{units} * config.n_layers;
    if (n > 0)
      text +=
          fmt::format("{}{} {} of {} {} ({:.3g} %)", text.empty() ? "" : ", ", kMatrixNames[m], n,
                      all, kUnits[m], 100 * static_cast<double>(n) / static_cast<double>(all));
  }
  return text;
}

}  // namespace tandem::train
