#include "train/export/export_low_rank.h"

#include <algorithm>

#include "model/adapters/low_rank_adapter.h"

namespace tandem::train {
namespace {

using model::Weight;

/// By Matrix.
constexpr PerMatrix<Weight> kWeights = {Weight::wq,     Weight::wk,   Weight::wv,    Weight::wo,
                                        Weight::w_gate, Weight::w_up, Weight::w_down};

}  // namespace

std::vector<model::LowRankDelta> low_rank_deltas(const TrainedSet& set,
                                                 const model::ModelConfig& config,
                                                 std::span<const float> values) {
  std::vector<model::LowRankDelta> deltas;
  const int64_t rank = set.low_rank.rank;
  const auto part = [&](int64_t offset, int64_t n) {
    return values.subspan(static_cast<size_t>(offset), static_cast<size_t>(n));
  };
  int layer = 0;
  for (const TrainedLayer& l : set.layers) {
    for (const TrainedMatrix* m : {&l.qkv, &l.wo, &l.gate_up, &l.w_down})
      for (const LowRankFactors& f : m->factors) {
        const Weight weight = kWeights[static_cast<size_t>(f.matrix)];
        const int64_t in = model::weight_shape(weight, config)[1];
        deltas.push_back({.weight = weight,
                          .layer = layer,
                          .rank = rank,
                          .gamma = set.low_rank.gamma,
                          .a = part(f.a, rank * in),
                          .b = part(f.b, f.rows * rank)});
        if (f.magnitude >= 0) deltas.back().magnitude = part(f.magnitude, f.rows);
      }
    ++layer;
  }
  return deltas;
}

void export_low_rank(const std::filesystem::path& folder, const std::string& base,
                     const TrainSettings& settings, const TrainedSet& set,
                     const model::ModelConfig& config, std::span<const float> values) {
  const LoraSettings& s = settings.lora;
  model::LowRankInfo info{.base = base,
                          .rank = s.rank,
                          .alpha = s.alpha,
                          .dropout = s.dropout,
                          .rslora = s.rslora,
                          .dora = settings.method == Method::dora};
  std::vector<Matrix> targets = s.targets;
  std::ranges::sort(targets);
  for (const Matrix m : targets) info.targets.push_back(kWeights[static_cast<size_t>(m)]);
  model::write_low_rank_adapter(folder, info, low_rank_deltas(set, config, values));
}

}  // namespace tandem::train
