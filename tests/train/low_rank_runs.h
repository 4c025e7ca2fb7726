#pragma once
#include <string>
#include <vector>

#include "train/low_rank/low_rank_set.h"
#include "train/trainer_runs.h"

/// Runs of methods lora and dora.
namespace tandem::test {

inline std::vector<model::Role> all_matrices() {
  return {model::kLayerRoles.begin(), model::kLayerRoles.end()};
}

/// Factors of rank 4 beside every matrix.
inline train::LoraSettings small_factors() {
  train::LoraSettings s;
  s.rank = 4;
  s.alpha = 6;
  s.targets = all_matrices();
  return s;
}

/// Calls visit(name, factors, layer) for all.
template <class Visit>
void each_factors(const train::TrainedSet& set, const Visit& visit) {
  each_matrix(set, [&](const train::TrainedMatrix& m) {
    for (const train::LowRankFactors& f : m.factors)
      visit(fmt::format("layers.{}.{}", f.layer, model::word_of(f.role)), f, f.layer);
  });
}

inline int64_t columns_of(const train::LowRankFactors& f, const model::ModelConfig& c) {
  return model::shape_of(f.role, c)[1];
}

/// A, B and the magnitudes of each matrix.
inline std::vector<NamedPart> factor_parts(const train::TrainedSet& set,
                                           const model::ModelConfig& c) {
  std::vector<NamedPart> parts;
  const int64_t rank = set.low_rank.rank;
  each_factors(set, [&](const std::string& name, const train::LowRankFactors& f, int) {
    const auto add = [&](const char* of, int64_t begin, int64_t n) {
      parts.push_back({name + of, static_cast<size_t>(begin), static_cast<size_t>(n)});
    };
    add(".a", f.a, rank * columns_of(f, c));
    add(".b", f.b, f.rows * rank);
    if (f.magnitude >= 0) add(".magnitude", f.magnitude, f.rows);
  });
  return parts;
}

/// Numbers that are not those of the start: B is no longer 0, magnitudes no longer the norms.
inline void move_factors(train::Trainer& trainer, uint64_t seed, double by = 0.1) {
  PhiloxStream draw(seed);
  std::vector<float> moved = trainer.values();
  const std::span<float> values = moved;
  each_factors(trainer.set(), [&](const std::string&, const train::LowRankFactors& f, int) {
    const auto n = static_cast<size_t>(f.rows * trainer.set().low_rank.rank);
    for (float& b : values.subspan(static_cast<size_t>(f.b), n))
      b = static_cast<float>(by * (2 * draw.uniform() - 1));
    if (f.magnitude < 0) return;
    for (float& m : values.subspan(static_cast<size_t>(f.magnitude), static_cast<size_t>(f.rows)))
      m *= static_cast<float>(1 + by * (2 * draw.uniform() - 1));
  });
  trainer.set_values(moved);
}

}  // namespace tandem::test
