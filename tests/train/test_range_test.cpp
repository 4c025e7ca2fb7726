#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "error_text.h"
#include "train/range_test.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// A trainer and the micro-batches of the first steps.
struct Rig {
  train::TrainerSpec spec = trainer_spec("llama-2");
  train::TrainedSet set =
      train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
  std::unique_ptr<train::Trainer> trainer = make_trainer("llama-2", spec, set);
  std::vector<std::vector<train::MicroBatch>> steps;

  Rig() {
    const train::MicroBatch same = random_documents({30, 20}, spec.config.vocab_size, 3);
    steps.assign(4, {same});
  }
  train::RangeTest test() {
    return train::test_range(*trainer, steps, [] {});
  }
  /// The loss after a trial, made by hand with a trainer of its own.
  double loss_after(double rate) const {
    train::TrainerSpec own = spec;
    own.schedule = {.rate = rate, .steps = 3};
    const auto other = make_trainer("llama-2", own, set);
    for (size_t i = 0; i < 3; ++i) other->step(steps[i]);
    return (other->loss(steps[0]).sum + other->loss(steps[3]).sum) /
           static_cast<double>(2 * train::n_supervised(steps[0]));
  }
};

}  // namespace

TEST_SUITE("train/range_test") {
  TEST_CASE("the choice is among the rates that were tried, whose losses are those of runs") {
    Rig rig;
    const train::RangeTest test = rig.test();
    CHECK(test.learns);
    CHECK(test.steps == 3);
    REQUIRE(test.tried.size() >= 2);
    double best = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < test.tried.size(); ++i) {
      const train::TriedRate& t = test.tried[i];
      CAPTURE(t.rate);
      if (i > 0) CHECK(t.rate > test.tried[i - 1].rate);
      CHECK(t.loss == rig.loss_after(t.rate));
      best = std::min(best, t.loss);
    }
    CHECK(best < test.start);
    CHECK(test.rate == train::choose_rate(test.tried));
    CHECK(std::ranges::find(test.tried, test.rate, &train::TriedRate::rate) != test.tried.end());
  }

  TEST_CASE("the rate below the best is chosen, and never one that diverges") {
    constexpr double kDiverged = std::numeric_limits<double>::infinity();
    using Tried = std::vector<train::TriedRate>;
    CHECK(train::choose_rate(Tried{{1e-3, 4}, {3e-3, 3}, {1e-2, 2}, {3e-2, kDiverged}}) == 3e-3);
    CHECK(train::choose_rate(Tried{{1e-6, 1}, {3e-6, 2}, {1e-5, kDiverged}}) == 1e-6);
    CHECK(train::choose_rate(Tried{{1e-5, 3}, {3e-5, 1}, {1e-4, kDiverged}}) == 1e-5);
  }

  TEST_CASE("a trainer that has been tested takes the steps of one that has not, bit for bit") {
    Rig tested, fresh;
    (void)tested.test();
    CHECK(tested.trainer->state().steps == 0);
    for (int i = 0; i < 3; ++i) {
      const auto a = tested.trainer->step(tested.steps[0]), b = fresh.trainer->step(fresh.steps[0]);
      CHECK(a.loss.sum == b.loss.sum);
      CHECK(a.gradient_norm == b.gradient_norm);
      CHECK(a.rate == b.rate);
    }
    CHECK(tested.trainer->values() == fresh.trainer->values());
    CHECK(copy_of(tested.trainer->state().second) == copy_of(fresh.trainer->state().second));
  }

  TEST_CASE("the same test finds the same") {
    Rig a, b;
    const train::RangeTest one = a.test(), other = b.test();
    REQUIRE(one.tried.size() == other.tried.size());
    for (size_t i = 0; i < one.tried.size(); ++i) CHECK(one.tried[i].loss == other.tried[i].loss);
  }

  TEST_CASE("where no rate lowers the loss the choice is small") {
    Rig rig;
    rig.spec.clip = 1e-35;  // gradients of about 0
    rig.trainer = make_trainer("llama-2", rig.spec, rig.set);
    const train::RangeTest test = rig.test();
    CHECK_FALSE(test.learns);
    CHECK(test.rate <= train::RangeTest::kSafeRate);
    CHECK(test.rate > 0);
  }

  TEST_CASE("a loss that is not finite at the start ends the test in an error") {
    Rig rig;
    std::vector<float> values = rig.trainer->values();
    std::ranges::fill(values, std::numeric_limits<float>::infinity());
    rig.trainer->set_values(values);
    CHECK(error_text([&] {
            (void)rig.test();
          }).find("expected a finite loss of the first batches, found ") != std::string::npos);
  }

  TEST_CASE("data on which every rate diverges end the test in an error, the values put back") {
    Rig rig;
    const std::vector<float> start = rig.trainer->values();
    std::vector<float> diverged = start;
    std::ranges::fill(diverged, std::numeric_limits<float>::infinity());
    int measured = 0;  // both losses of the start
    const std::string error = error_text([&] {
      (void)train::test_range(*rig.trainer, rig.steps, [&] {
        if (++measured > 2) rig.trainer->set_values(diverged);
      });
    });
    CHECK(error.find("3 steps diverge at each rate from 1e-06 to 0.001") != std::string::npos);
    CHECK(rig.trainer->values() == start);
  }
}
