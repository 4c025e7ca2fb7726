#include "train/selection/choose_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "train/low_rank/low_rank_set.h"
#include "train/selection/calibration.h"

namespace tandem::train {
namespace {

SelectionSpec selection_of(const Selection& s, uint64_t seed) {
  return {.ratio = s.ratios.by_role(),
          .scope = s.scope == Scope::global ? SelectionSpec::Scope::global
                                            : SelectionSpec::Scope::per_layer,
          .seed = seed,
          .first_layer = s.layers.first,
          .last_layer = s.layers.last};
}

Scores scores_by(Strategy strategy, const TrainerSpec& spec, const CalibrationData& data) {
  Calibration calibration(spec, data.source());
  switch (strategy) {
    case Strategy::weight:
      return calibration.weights();
    case Strategy::activation:
      return calibration.activations(data.batches());
    case Strategy::weight_activation:
      return products(calibration.weights(), calibration.activations(data.batches()));
    default:
      return calibration.gradients(data.batches());
  }
}

}  // namespace

TrainedSet choose_set(const TrainSettings& settings, const TrainerSpec& spec, uint64_t seed,
                      const CalibrationData& data, std::vector<LayerUnits> excluded) {
  const Selection& s = settings.select;
  switch (settings.method) {
    case Method::full:
      return full_set(spec.config);
    case Method::spft:
      return scattered_set(spec.config, settings.spft.ratio.value, seed);
    case Method::lora:
    case Method::dora:
      return low_rank_set(spec.config, settings.lora, settings.method == Method::dora, seed);
    case Method::s2ft:
      break;
  }
  SelectionSpec selection = selection_of(s, seed);
  selection.excluded = std::move(excluded);
  if (s.strategy == Strategy::random)
    return slices_of(select_random(selection, spec.config), spec.config);
  return slices_of(select_by_score(selection, spec.config, scores_by(s.strategy, spec, data),
                                   s.side == Side::large),
                   spec.config);
}

std::string uneven_text(const Selection& selection, const model::ModelConfig& config) {
  if (selection.scope != Scope::per_layer) return {};
  const int last = selection.layers.last < 0 ? config.n_layers - 1 : selection.layers.last;
  const int n_layers = last - selection.layers.first + 1;
  const PerMatrix<double> ratios = selection.ratios.by_role();
  std::string text;
  for (const Role role : model::kLayerRoles) {
    const int units = model::n_units(role, config);
    const std::vector<int> counts = counts_per_layer(ratios[role], units, n_layers);
    const auto empty = std::ranges::count(counts, 0);
    if (ratios[role] == 0 || empty == 0) continue;
    text += fmt::format(
        "uneven   train.select.ratios.{}: {} of {} units is less than one per layer, so {} of {} "
        "layers train none. A ratio of {} gives each layer one\n",
        ratio_name(role), ratios[role], units, empty, n_layers, std::ceil(1000.0 / units) / 1000);
  }
  return text;
}

}  // namespace tandem::train
