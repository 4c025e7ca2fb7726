#include <doctest/doctest.h>

#include "eval/perplexity.h"
#include "ops/linear_gradient.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Compares the gradient of every part with differences, along the gradient of all its elements and
/// of two random halves of them: a wrong part of it would add to its length and not to the slope.
void check_gradients(const char* model, const train::TrainedSet& set, Gate gate = Gate::silu) {
  train::TrainerSpec spec = trainer_spec(model);
  for (model::LayerSpec& layer : spec.config.kinds) layer.ffn.gate = gate;
  const auto trainer = make_trainer(model, spec, set);
  // Documents on both sides of a page and of the window of 32, one of a single token, half of the
  // rows supervised.
  const train::MicroBatch batch = random_documents({70, 1, 37, 5}, spec.config.vocab_size, 3,
                                                   [](size_t row) { return row % 3 != 1; });
  trainer->gradients({&batch, 1});
  const std::vector<float> gradient = copy_of(trainer->gradient());
  Probe probe(*trainer, batch);
  PhiloxStream draw(4);
  for (const NamedPart& part : parts_and_norms(set, spec.config)) {
    CAPTURE(part.name);
    for (const bool half : {false, true, true}) {
      std::vector<double> u;
      double squares = 0;
      for (size_t i = 0; i < part.size; ++i) {
        u.push_back(half && draw.uniform() < 0.5 ? 0.0 : double{gradient[part.begin + i]});
        squares += u.back() * u.back();
      }
      const double length = std::sqrt(squares);
      REQUIRE(length > 1e-7);
      for (double& x : u) x /= length;
      // Losses are good to about 1e-6; a step that changes them by .01 leaves that 1e-4 of it.
      const double step = std::min(0.3, 0.01 / length);
      CHECK(probe.derivative(part, u, step) == doctest::Approx(length).epsilon(2e-3));
    }
  }
}

}  // namespace

TEST_SUITE("train/gradients") {
  TEST_CASE("of every weight of every architecture agree with differences") {
    for (const char* model : small_models()) {
      CAPTURE(model);
      check_gradients(model, train::full_set(trainer_spec(model).config));
    }
  }

  TEST_CASE("gradients of other gates agree with differences") {
    for (const Gate gate : {Gate::gelu_tanh, Gate::gelu})
      check_gradients("llama-odd", train::full_set(trainer_spec("llama-odd").config), gate);
  }

  TEST_CASE("of slices are those of the whole matrices") {
    for (const char* model : small_models()) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model);
      const train::TrainedSet slices =
          train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
      const train::MicroBatch batch =
          random_documents({40, 9}, spec.config.vocab_size, 6, [](size_t row) { return row > 4; });
      const auto part = make_trainer(model, spec, slices);
      const auto all = make_trainer(model, spec, train::full_set(spec.config));
      const train::LossSum loss = part->gradients({&batch, 1});
      CHECK(loss.sum == all->gradients({&batch, 1}).sum);
      const auto check = [&](const train::TrainedMatrix& m, const train::TrainedMatrix& whole) {
        std::vector<float> want;
        for (int64_t r = 0; r < m.rows; ++r)
          for (int64_t c = 0; c < m.cols; ++c) {
            const bool columns = m.part == train::TrainedMatrix::Part::columns;
            const int64_t row = columns ? r : m.index[static_cast<size_t>(r)];
            const int64_t col = columns ? m.index[static_cast<size_t>(c)] : c;
            want.push_back(
                all->gradient()[static_cast<size_t>(whole.offset + row * whole.cols + col)]);
          }
        const std::span<const float> got =
            part->gradient().subspan(static_cast<size_t>(m.offset), static_cast<size_t>(m.size()));
        REQUIRE(!want.empty());
        // Sums over rows, which products of other shapes may take in another order.
        CHECK(relative_distance(got, want) < 1e-5);
      };
      for (size_t i = 0; i < slices.layers.size(); ++i) {
        const auto &s = slices.layers[i], &w = all->set().layers[i];
        for (const model::Role role : model::kLayerStacks) check(s[role], w[role]);
      }
    }
  }

  TEST_CASE("of single weights are those of the whole matrices, bit for bit") {
    for (const char* model : {"llama-3.1", "phi4", "qwen2-untied-sharded", "qwen3-odd"}) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model);
      const train::TrainedSet set = train::scattered_set(spec.config, 0.1, 3);
      const train::MicroBatch batch = random_documents({40, 9}, spec.config.vocab_size, 13);
      const auto part = make_trainer(model, spec, set);
      const auto all = make_trainer(model, spec, train::full_set(spec.config));
      CHECK(part->gradients({&batch, 1}).sum == all->gradients({&batch, 1}).sum);
      for (size_t i = 0; i < set.layers.size(); ++i) {
        const auto &s = set.layers[i], &w = all->set().layers[i];
        for (const model::Role role : model::kLayerStacks) {
          const train::TrainedMatrix *m = &s[role], *whole = &w[role];
          int64_t wrong = 0;
          for (size_t e = 0; e < m->index.size(); ++e) {
            const auto from = static_cast<size_t>(whole->offset + m->index[e]);
            const size_t to = static_cast<size_t>(m->offset) + e;
            wrong += part->gradient()[to] != all->gradient()[from] ? 1 : 0;
            wrong += part->state().values[to] != all->state().values[from] ? 1 : 0;
          }
          CHECK(!m->index.empty());
          CHECK(wrong == 0);
        }
      }
    }
  }

  TEST_CASE("have the same bits when activations are computed again, which takes less memory") {
    for (const char* model : {"llama-3.1", "mistral-window", "qwen3-odd"})
      for (const bool all : {true, false}) {
        CAPTURE(model);
        CAPTURE(all);
        train::TrainerSpec spec = trainer_spec(model);
        const train::TrainedSet set =
            all ? train::full_set(spec.config)
                : train::slices_of(train::select_random(half_of_everything(), spec.config),
                                   spec.config);
        const train::MicroBatch batch = random_documents({70, 3, 37}, spec.config.vocab_size, 12);
        std::vector<float> want;
        size_t bytes = SIZE_MAX;
        for (const train::Recomputation level :
             {train::Recomputation::none, train::Recomputation::light, train::Recomputation::ffn,
              train::Recomputation::layer}) {
          spec.recompute = level;
          const size_t planned = train::Trainer::plan(spec, set).peak({});
          CHECK(planned <= bytes);  // a layer that ends early is never computed again
          bytes = planned;
          CHECK(train::Trainer::least_recompute(spec, set, planned) == level);
          const auto trainer = make_trainer(model, spec, set);
          trainer->gradients({&batch, 1});
          if (want.empty()) want = copy_of(trainer->gradient());
          CHECK(same(copy_of(trainer->gradient()), want));
        }
        CHECK(train::Trainer::least_recompute(spec, set, bytes - 1) == train::Recomputation::layer);
      }
  }

  TEST_CASE("of a pack are the sum of its documents'; so are losses") {
    for (const char* model : {"llama-3.1", "mistral-window", "qwen3-odd"}) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model);
      const train::TrainedSet set = train::full_set(spec.config);
      const auto trainer = make_trainer(model, spec, set);
      const train::MicroBatch pack = random_documents({70, 3, 37}, spec.config.vocab_size, 7);
      std::vector<train::MicroBatch> alone;
      for (size_t d = 0; d < 3; ++d) {
        const auto first = pack.document_begin[d], last = pack.document_begin[d + 1];
        alone.push_back({.tokens = {pack.tokens.begin() + first, pack.tokens.begin() + last},
                         .targets = {pack.targets.begin() + first, pack.targets.begin() + last},
                         .document_begin = {0, last - first}});
      }
      const train::LossSum together = trainer->gradients({&pack, 1});
      const std::vector<float> gradient = copy_of(trainer->gradient());
      const train::LossSum apart = trainer->gradients(alone);
      CHECK(together.n_tokens == 107);
      CHECK(apart.n_tokens == 107);
      CHECK(together.sum == doctest::Approx(apart.sum).epsilon(1e-6));
      CHECK(relative_distance(gradient, trainer->gradient()) < 1e-5);
    }
  }

  TEST_CASE("of a pack are those of a padded batch, of a trained model") {
    const auto folder = tiny_model("tiny-16m");
    train::TrainerSpec spec = trainer_spec(folder, DType::f32);
    const train::TrainedSet set =
        train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
    train::Trainer trainer(spec, set, decode::open_model(folder.string(), 0).source);
    const train::MicroBatch pack = random_documents({60, 13, 31}, spec.config.vocab_size, 14);
    train::MicroBatch padded{.tokens = {}, .targets = {}, .document_begin = {0}};
    for (size_t d = 0; d < 3; ++d) {
      const auto first = pack.document_begin[d], last = pack.document_begin[d + 1];
      padded.tokens.insert(padded.tokens.end(), pack.tokens.begin() + first,
                           pack.tokens.begin() + last);
      padded.targets.insert(padded.targets.end(), pack.targets.begin() + first,
                            pack.targets.begin() + last);
      padded.tokens.resize(60 * (d + 1), 0);
      padded.targets.resize(60 * (d + 1), -1);
      padded.document_begin.push_back(static_cast<int32_t>(60 * (d + 1)));
    }
    const train::LossSum loss = trainer.gradients({&pack, 1});
    const std::vector<float> gradient = copy_of(trainer.gradient());
    const train::LossSum loss_padded = trainer.gradients({&padded, 1});
    CHECK(loss_padded.n_tokens == loss.n_tokens);
    CHECK(loss_padded.sum == doctest::Approx(loss.sum).epsilon(1e-5));
    CHECK(relative_distance(trainer.gradient(), gradient) < 1e-5);
  }

  TEST_CASE("in bf16 are as far from those in f32 as the forward's activations make them") {
    for (const char* model : {"llama-3.1", "qwen2-tied", "qwen3-tied"}) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model),
                               narrow = trainer_spec(model, DType::bf16);
      const train::TrainedSet set = train::full_set(spec.config);
      const auto exact = make_trainer(model, spec, set), rounded = make_trainer(model, narrow, set);
      // Of the same weights: those of the model in bf16.
      std::ranges::copy(rounded->state().values, exact->state().values.begin());
      exact->publish();
      const train::MicroBatch batch = random_documents({90, 37}, spec.config.vocab_size, 8);
      const double loss = exact->gradients({&batch, 1}).mean();
      CHECK(rounded->gradients({&batch, 1}).mean() == doctest::Approx(loss).epsilon(5e-3));
      // Roundings of the forward alone move the residual stream by about 1 %. A gradient meets them
      // twice, in what the loss gives and in what it is multiplied with, and as many on its way
      // back.
      const auto stream = [](train::Trainer& t) {
        const Tensor x = t.model().residual();
        return std::span<const float>(x.as<float>(), static_cast<size_t>(x.elements()));
      };
      const double of_forward = relative_distance(stream(*rounded), stream(*exact));
      CHECK(of_forward < 0.02);
      for (const NamedPart& part : parts_and_norms(set, spec.config)) {
        CAPTURE(part.name);
        CHECK(relative_distance(part.of(rounded->gradient()), part.of(exact->gradient())) <
              5 * of_forward);
      }
    }
  }
}

TEST_SUITE("train/loss") {
  TEST_CASE("before the first step is the NLL that evaluation measures of the same text") {
    for (const char* model : small_models()) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model);
      const train::TrainedSet set =
          train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
      const auto trainer = make_trainer(model, spec, set);
      const train::MicroBatch batch = random_documents({70, 2, 100}, spec.config.vocab_size, 9);
      std::vector<eval::Window> windows;
      for (size_t d = 0; d < 3; ++d)
        windows.push_back({{batch.tokens.begin() + batch.document_begin[d],
                            batch.tokens.begin() + batch.document_begin[d + 1]},
                           static_cast<int>(d)});
      const auto engine = make_engine(small_model(model), {.chunk = 256, .logit_rows = 256});
      const auto measured = eval::measure_text(*engine, windows, 0, [](int64_t) { return true; });
      const train::LossSum loss = trainer->gradients({&batch, 1});
      CHECK(loss.n_tokens == measured[0].n_tokens);
      CHECK(loss.mean() == doctest::Approx(measured[0].nll.mean).epsilon(1e-6));
      CHECK(trainer->loss({&batch, 1}).mean() == loss.mean());
    }
  }

  TEST_CASE("does not change with tokens that nothing supervised sees; batches without any are 0") {
    const train::TrainerSpec spec = trainer_spec("llama-2");
    const auto trainer = make_trainer("llama-2", spec, train::full_set(spec.config));
    train::MicroBatch batch =
        random_documents({20, 20}, spec.config.vocab_size, 10, [](size_t row) { return row < 10; });
    const double before = trainer->gradients({&batch, 1}).sum;
    const std::vector<float> gradient = copy_of(trainer->gradient());
    for (size_t i = 11; i < 40; ++i) batch.tokens[i] = (batch.tokens[i] + 1) % 320;
    CHECK(trainer->gradients({&batch, 1}).sum == before);
    CHECK(relative_distance(trainer->gradient(), gradient) < 1e-5);
    std::ranges::fill(batch.targets, -1);
    const train::LossSum none = trainer->gradients({&batch, 1});
    CHECK(none.n_tokens == 0);
    CHECK(none.mean() == 0);
    CHECK(norm_of(trainer->gradient()) == 0);
    CHECK(trainer->step({&batch, 1}).skipped);
    CHECK(trainer->state().steps == 0);
  }
}
