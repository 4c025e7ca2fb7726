#include <doctest/doctest.h>

#include "model/spec/work.h"
#include "train/low_rank/low_rank_set.h"
#include "train/trainer_runs.h"
#include "train/work.h"

using namespace tandem;
using namespace tandem::test;

namespace {

struct Counted {
  train::Work work;
  double products = 0, head = 0, attention = 0;  // of the forward
};

Counted count(const train::TrainedSet& set, const model::ModelConfig& c,
              train::Recomputation again) {
  const train::MicroBatch batch = random_documents({40, 20}, c.vocab_size, 1);
  const double pairs = 40.0 * 41 / 2 + 20.0 * 21 / 2;
  return {train::work_of(set, train::frontier_of(set, c, again), c, {&batch, 1}),
          60 * model::layer_flops(c),
          static_cast<double>(train::n_supervised({&batch, 1})) * model::head_flops(c),
          c.n_layers * model::attention_flops(c, pairs)};
}

}  // namespace

TEST_SUITE("train/work") {
  TEST_CASE("a step of all weights is three forwards, and the scores again") {
    const model::ModelConfig c = trainer_spec("llama-2").config;
    const Counted n = count(train::full_set(c), c, train::Recomputation::light);
    CHECK(n.work.forward == doctest::Approx(n.products + n.head + n.attention));
    CHECK(n.work.input_gradients == doctest::Approx(n.products + n.head + 2 * n.attention));
    CHECK(n.work.weight_gradients == doctest::Approx(n.products + n.head));
    CHECK(n.work.again == doctest::Approx(n.attention / 2));
    CHECK(n.work.done() == doctest::Approx(n.work.of_full_step() + n.attention / 2));
  }

  TEST_CASE(
      "slices cost what they hold, recomputation what it repeats, and nothing is done below") {
    const model::ModelConfig c = trainer_spec("llama-2").config;
    const train::TrainedSet set =
        train::slices_of(train::select_random(half_of_everything(), c), c);
    const Counted light = count(set, c, train::Recomputation::light),
                  ffn = count(set, c, train::Recomputation::ffn);
    CHECK(light.work.weight_gradients == doctest::Approx(60 * 2.0 * double(set.size)));
    CHECK(ffn.work.again - light.work.again ==
          doctest::Approx(60 * 2.0 * c.n_layers * 2 * double(c.ffn_dim) * double(c.dim)));
    CHECK(light.work.input_gradients < light.products + light.head + 2 * light.attention);

    train::TrainedSet last;  // down of the last layer alone
    last.layers.resize(static_cast<size_t>(c.n_layers));
    last.layers.back()[model::Role::down].part = train::TrainedMatrix::Part::all;
    train::lay_out(last, c);
    const Counted one = count(last, c, train::Recomputation::light);
    CHECK(one.work.input_gradients == doctest::Approx(one.head));
    CHECK(one.work.weight_gradients ==
          doctest::Approx(60 * 2.0 * double(c.dim) * double(c.ffn_dim)));
    CHECK(one.work.again == 0);
  }

  TEST_CASE("low-rank factors cost their elements three times, a fourth where they run again") {
    const model::ModelConfig c = trainer_spec("llama-2").config;
    train::LoraSettings settings;
    settings.rank = 4;
    settings.targets = {model::Role::down};
    const train::TrainedSet set = train::low_rank_set(c, settings, false, 0);
    const Counted n = count(set, c, train::Recomputation::light);
    const double factors = 60 * 2.0 * double(set.size);
    CHECK(n.work.forward == doctest::Approx(n.products + n.head + n.attention));
    CHECK(n.work.factors == doctest::Approx(factors));
    CHECK(n.work.weight_gradients == doctest::Approx(factors));
    // All of a layer passes on but the lowest, where nothing passes through A.
    const double lowest = 60 * model::layer_flops(c) / c.n_layers;
    CHECK(n.work.input_gradients ==
          doctest::Approx(n.products + n.head + factors - lowest - 60 * 2.0 * 4 * c.ffn_dim +
                          2 * n.attention * (c.n_layers - 1) / c.n_layers));
    settings.targets = {model::Role::up};
    const train::TrainedSet up = train::low_rank_set(c, settings, false, 0);
    CHECK(count(up, c, train::Recomputation::ffn).work.factors ==
          doctest::Approx(2 * 60 * 2.0 * double(up.size)));
  }
}
