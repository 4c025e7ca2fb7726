#include <doctest/doctest.h>

#include "base/parallel.h"
#include "model/low_rank_adapter.h"
#include "ops/linear_gradient.h"
#include "temporary_folder.h"
#include "train/export_low_rank.h"
#include "train/export_model.h"
#include "train/low_rank_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

train::TrainedSet set_of(const train::TrainerSpec& spec, bool magnitude,
                         const train::LoraSettings& settings = small_factors()) {
  return train::low_rank_set(spec.config, settings, magnitude, 3);
}

train::MicroBatch some_documents(const train::TrainerSpec& spec, uint64_t seed) {
  return random_documents({70, 1, 37, 5}, spec.config.vocab_size, seed,
                          [](size_t row) { return row % 3 != 1; });
}

/// Derivatives of the loss along parts of the values, by differences of the fourth order.
class Probe {
 public:
  Probe(train::Trainer& trainer, const train::MicroBatch& batch)
      : trainer_(trainer), batch_(batch), start_(copy_of(trainer.state().values)) {}

  double derivative(const NamedPart& part, const std::vector<double>& u, double step) {
    const auto rise = [&](double by) { return loss(part, u, by) - loss(part, u, -by); };
    const double value = (8 * rise(step) - rise(2 * step)) / (12 * step);
    loss(part, u, 0);
    return value;
  }

 private:
  double loss(const NamedPart& part, const std::vector<double>& u, double by) {
    const std::span<float> values = part.of(trainer_.state().values);
    for (size_t i = 0; i < u.size(); ++i)
      values[i] = static_cast<float>(start_[part.begin + i] + by * u[i]);
    trainer_.publish();
    return trainer_.loss({&batch_, 1}).mean();
  }

  train::Trainer& trainer_;
  const train::MicroBatch& batch_;
  std::vector<float> start_;
};

}  // namespace

TEST_SUITE("train/low_rank") {
  TEST_CASE("gradients of LoRA agree with differences, for every architecture") {
    for (const char* model : kArchitectures) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model);
      const auto trainer = make_trainer(model, spec, set_of(spec, false));
      move_factors(*trainer, 7);
      const train::MicroBatch batch = some_documents(spec, 3);
      trainer->gradients({&batch, 1});
      const std::vector<float> gradient = copy_of(trainer->gradient());
      Probe probe(*trainer, batch);
      for (const NamedPart& part : factor_parts(trainer->set(), spec.config)) {
        CAPTURE(part.name);
        const std::span<const float> g = part.of(std::span<const float>(gradient));
        const double length = norm_of(g);
        REQUIRE(length > 1e-7);
        std::vector<double> u(g.begin(), g.end());
        for (double& x : u) x /= length;
        CHECK(probe.derivative(part, u, std::min(0.3, 0.01 / length)) ==
              doctest::Approx(length).epsilon(2e-3));
      }
    }
  }
}
