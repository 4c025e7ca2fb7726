#include "train/export/export_low_rank.h"

#include <algorithm>

#include "model/adapters/low_rank_adapter.h"

namespace tandem::train {
std::vector<model::LowRankDelta> low_rank_deltas(const TrainedSet& set,
                                                 const model::ModelConfig& config,
                                                 std::span<const float> values) {
  std::vector<model::LowRankDelta> deltas;
  const int64_t rank = set.low_rank.rank;
  const auto part = [&](int64_t offset, int64_t n) {
    return values.subspan(static_cast<size_t>(offset), static_cast<size_t>(n));
  };
  each_matrix(set, [&](const TrainedMatrix& m) {
    for (const LowRankFactors& f : m.factors) {
      const int64_t in = model::shape_of(f.role, config)[1];
      deltas.push_back({.id = {f.role, f.layer},
                        .rank = rank,
                        .gamma = set.low_rank.gamma,
                        .a = part(f.a, rank * in),
                        .b = part(f.b, f.rows * rank)});
      if (f.magnitude >= 0) deltas.back().magnitude = part(f.magnitude, f.rows);
    }
  });
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
  info.targets = s.targets;
  std::ranges::sort(info.targets);
  model::write_low_rank_adapter(folder, info, low_rank_deltas(set, config, values), config);
}

}  // namespace tandem::train
