// S2FT as its program trains it: next to a frozen matrix a separate one for the slice, which begins
// as zero. Written as factors, one of which only picks the slice's features, it judges slices that
// are trained in place.
#include <doctest/doctest.h>

#include <algorithm>

#include "train/low_rank_runs.h"

using namespace tandem;
using namespace tandem::test;
using model::Role;

namespace {

constexpr int kSteps = 6;

/// A trainer of a delta [out, n] or [n, in] for each layer's slice of one matrix.
class DeltaRun {
 public:
  DeltaRun(const char* model, const train::TrainerSpec& spec, Role matrix,
           const std::vector<std::vector<int32_t>>& features)
      : of_columns_(matrix == Role::o || matrix == Role::down),
        trainer_(make_trainer(model, spec, set_of(spec, matrix, features[0].size()))) {
    const std::span<float> values = trainer_->state().values;
    std::ranges::fill(values, 0.0f);
    for_factors([&](const train::LowRankFactors& f, int64_t in, size_t layer) {
      for (size_t k = 0; k < features[layer].size(); ++k) {
        const int64_t feature = features[layer][k], i = static_cast<int64_t>(k);
        const int64_t place = of_columns_ ? f.a + i * in + feature : f.b + feature * rank() + i;
        values[static_cast<size_t>(place)] = 1;
      }
    });
    picks_ = copy_of(values);
    trainer_->publish();
  }

  double step(std::span<const train::MicroBatch> batches) {
    const double loss = trainer_->step(batches).loss.mean();
    // What picks features does not learn.
    const train::Trainer::State& s = trainer_->state();
    for_factors([&](const train::LowRankFactors& f, int64_t in, size_t) {
      const auto begin = static_cast<size_t>(of_columns_ ? f.a : f.b);
      const auto n = static_cast<size_t>(rank() * (of_columns_ ? in : f.rows));
      std::copy_n(picks_.begin() + static_cast<long>(begin), n, s.values.begin() + begin);
      std::ranges::fill(s.first.subspan(begin, n), 0.0f);
      std::ranges::fill(s.second.subspan(begin, n), 0.0f);
    });
    trainer_->publish();
    return loss;
  }

  /// The deltas of all layers, as slices lie.
  std::vector<float> deltas() const {
    std::vector<float> all;
    for_factors([&](const train::LowRankFactors& f, int64_t in, size_t) {
      const auto part = trainer_->state().values.subspan(
          static_cast<size_t>(of_columns_ ? f.b : f.a),
          static_cast<size_t>(rank() * (of_columns_ ? f.rows : in)));
      all.insert(all.end(), part.begin(), part.end());
    });
    return all;
  }

 private:
  static train::TrainedSet set_of(const train::TrainerSpec& spec, Role matrix, size_t n) {
    train::LoraSettings settings;
    settings.rank = static_cast<int>(n);
    settings.alpha = static_cast<double>(n);  // so that factors are not scaled
    settings.targets = {matrix};
    return train::low_rank_set(spec.config, settings, false, 1);
  }
  int64_t rank() const { return trainer_->set().low_rank.rank; }
  template <class Visit>
  void for_factors(const Visit& visit) const {
    const auto& weights = trainer_->model().weights().layers;
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto& t = trainer_->set().layers[i];
      for (const Role role : model::kLayerStacks)
        for (const train::LowRankFactors& f : t[role].factors) visit(f, weights[i][role].in(), i);
    }
  }

  bool of_columns_;
  std::unique_ptr<train::Trainer> trainer_;
  std::vector<float> picks_;
};

/// The same units of one matrix in every layer, and their features.
struct Slice {
  train::TrainedSet set;
  std::vector<std::vector<int32_t>> features;
};

Slice slice_of(Role matrix, const model::ModelConfig& c) {
  train::SelectionSpec spec{.seed = 8};
  spec.ratio[matrix] = 0.5;
  const std::vector<train::LayerUnits> units = train::select_random(spec, c);
  const int width = matrix == Role::down || matrix == Role::up ? 1 : c.head_dim;
  Slice slice{.set = train::slices_of(units, c), .features = {}};
  for (const train::LayerUnits& layer : units) {
    std::vector<int32_t>& features = slice.features.emplace_back();
    for (const int32_t unit : layer[matrix])
      for (int i = 0; i < width; ++i) features.push_back(unit * width + i);
  }
  return slice;
}

}  // namespace

TEST_SUITE("train/delta") {
  TEST_CASE("slices in place take the steps of slices next to frozen weights") {
    for (const Role matrix : {Role::o, Role::down, Role::up, Role::v}) {
      CAPTURE(model::word_of(matrix));
      train::TrainerSpec spec = trainer_spec("llama-3.1");
      spec.clip = 0;  // what picks features has a gradient too
      const Slice slice = slice_of(matrix, spec.config);
      const auto in_place = make_trainer("llama-3.1", spec, slice.set);
      DeltaRun apart("llama-3.1", spec, matrix, slice.features);
      const std::vector<float> start = copy_of(in_place->state().values);
      const std::vector<train::MicroBatch> batches = {
          random_documents({70, 30}, spec.config.vocab_size, 21)};
      for (int i = 0; i < kSteps; ++i) {
        CAPTURE(i);
        const double loss = in_place->step(batches).loss.mean();
        CHECK(apart.step(batches) == doctest::Approx(loss).epsilon(2e-6));
      }
      std::vector<float> moved = copy_of(in_place->state().values);
      for (size_t i = 0; i < moved.size(); ++i) moved[i] -= start[i];
      const std::vector<float> deltas = apart.deltas();
      REQUIRE(deltas.size() == moved.size());
      CHECK(norm_of(moved) > 1e-2);
      CHECK(relative_distance(deltas, moved) < 1e-3);
    }
  }
}
