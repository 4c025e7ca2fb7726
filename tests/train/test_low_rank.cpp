#include <doctest/doctest.h>

#include <numeric>

#include "base/parallel.h"
#include "model/adapters/adapter.h"
#include "ops/linear_gradient.h"
#include "temporary_folder.h"
#include "train/checkpoint/checkpoint.h"
#include "train/export/export_low_rank.h"
#include "train/export/export_model.h"
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

/// The loss changes along the gradient of a part by its length.
void check_slope(Probe& probe, const NamedPart& part, std::span<const float> gradient) {
  const std::span<const float> g = part.of(gradient);
  const double length = norm_of(g);
  REQUIRE(length > 1e-7);
  std::vector<double> u(g.begin(), g.end());
  for (double& x : u) x /= length;
  CHECK(probe.derivative(part, u, std::min(0.3, 0.01 / length)) ==
        doctest::Approx(length).epsilon(2e-3));
}

std::vector<double> steps(train::Trainer& trainer, int n) {
  const int vocab = trainer.spec().config.vocab_size;
  const std::vector<train::MicroBatch> batches = {random_documents({70, 30}, vocab, 21),
                                                  random_documents({15}, vocab, 22)};
  std::vector<double> losses;
  for (int i = 0; i < n; ++i) losses.push_back(trainer.step(batches).loss.mean());
  return losses;
}

/// Makes `lora` the model that `dora` is, for its present factors: its weights and B with rows
/// scaled. Returns the scales of each factor's rows.
std::vector<std::vector<double>> scale_as(train::Trainer& lora, train::Trainer& dora) {
  const model::ModelConfig& c = dora.spec().config;
  const int64_t rank = dora.set().low_rank.rank;
  std::vector<train::LowRankFactors> of_lora;
  each_factors(lora.set(), [&](const std::string&, const train::LowRankFactors& f, int) {
    of_lora.push_back(f);
  });
  std::vector<std::vector<double>> all;
  each_factors(dora.set(), [&](const std::string&, const train::LowRankFactors& f, int layer) {
    model::LayerWeights& l = lora.model().weights().layers[static_cast<size_t>(layer)];
    ops::PackedWeights& w = l[model::info(f.role).stack];
    const int64_t in = columns_of(f, c);
    const std::span<float> from = dora.state().values, to = lora.state().values;
    const train::LowRankFactors& g = of_lora[all.size()];
    std::copy_n(from.begin() + f.a, rank * in, to.begin() + g.a);
    std::vector<int32_t> rows(static_cast<size_t>(f.rows));
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(f.first_row));
    std::vector<float> weights(static_cast<size_t>(f.rows * in));
    ops::read_part(weights, w, WeightPart::rows, rows);
    std::vector<double>& scales = all.emplace_back();
    for (int64_t r = 0; r < f.rows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < in; ++i) {
        double x = weights[static_cast<size_t>(r * in + i)];
        for (int64_t k = 0; k < rank; ++k)
          x += double{dora.set().low_rank.gamma} * from[static_cast<size_t>(f.b + r * rank + k)] *
               from[static_cast<size_t>(f.a + k * in + i)];
        squares += x * x;
      }
      scales.push_back(from[static_cast<size_t>(f.magnitude + r)] / std::sqrt(squares));
      for (int64_t i = 0; i < in; ++i)
        weights[static_cast<size_t>(r * in + i)] *= static_cast<float>(scales.back());
      for (int64_t k = 0; k < rank; ++k)
        to[static_cast<size_t>(g.b + r * rank + k)] =
            static_cast<float>(scales.back() * from[static_cast<size_t>(f.b + r * rank + k)]);
    }
    ops::write_part(w, WeightPart::rows, rows, weights);
  });
  lora.publish();
  return all;
}

}  // namespace

TEST_SUITE("train/low_rank") {
  TEST_CASE("gradients of LoRA agree with differences, for every architecture") {
    for (const char* model : small_models()) {
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
        check_slope(probe, part, gradient);
      }
    }
  }

  TEST_CASE("gradients with dropout are those of the loss with the same elements dropped") {
    train::LoraSettings settings = small_factors();
    settings.dropout = 0.3;
    const train::TrainerSpec spec = trainer_spec("llama-3.1");
    const auto trainer = make_trainer("llama-3.1", spec, set_of(spec, false, settings));
    move_factors(*trainer, 7);
    const train::MicroBatch batch = some_documents(spec, 3);
    trainer->gradients({&batch, 1});
    const std::vector<float> gradient = copy_of(trainer->gradient());
    Probe probe(*trainer, batch, true);
    for (const NamedPart& part : factor_parts(trainer->set(), spec.config)) {
      CAPTURE(part.name);
      check_slope(probe, part, gradient);
    }
  }

  TEST_CASE("gradients of DoRA: magnitudes by differences, factors as LoRA's of scaled weights") {
    for (const char* model : small_models()) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model);
      const auto dora = make_trainer(model, spec, set_of(spec, true));
      const auto lora = make_trainer(model, spec, set_of(spec, false));
      move_factors(*dora, 7);
      const std::vector<std::vector<double>> scales = scale_as(*lora, *dora);
      const train::MicroBatch batch = some_documents(spec, 3);
      const double loss = dora->gradients({&batch, 1}).sum;
      CHECK(lora->gradients({&batch, 1}).sum == doctest::Approx(loss).epsilon(1e-6));
      const std::vector<float> gradient = copy_of(dora->gradient());
      Probe probe(*dora, batch);
      for (const NamedPart& part : factor_parts(dora->set(), spec.config)) {
        CAPTURE(part.name);
        if (part.name.ends_with(".magnitude")) check_slope(probe, part, gradient);
      }
      // The norms are held constant: y = s (x W + gamma x A B), so that B's gradient is s times
      // that of a LoRA beside s W whose B is s B.
      std::vector<std::pair<int64_t, int64_t>> other;  // offsets of A and B
      each_factors(lora->set(), [&](const std::string&, const train::LowRankFactors& f, int) {
        other.emplace_back(f.a, f.b);
      });
      size_t next = 0;
      const int64_t rank = dora->set().low_rank.rank;
      each_factors(dora->set(), [&](const std::string& name, const train::LowRankFactors& f, int) {
        CAPTURE(name);
        const auto part = [](std::span<const float> all, int64_t at, int64_t n) {
          return all.subspan(static_cast<size_t>(at), static_cast<size_t>(n));
        };
        const int64_t n = f.rows * rank, in = columns_of(f, spec.config);
        const auto [a, b] = other[next];
        CHECK(relative_distance(part(gradient, f.a, rank * in),
                                part(lora->gradient(), a, rank * in)) < 1e-4);
        std::vector<float> scaled = copy_of(part(lora->gradient(), b, n));
        for (int64_t i = 0; i < n; ++i)
          scaled[static_cast<size_t>(i)] *=
              static_cast<float>(scales[next][static_cast<size_t>(i / rank)]);
        CHECK(relative_distance(part(gradient, f.b, n), scaled) < 1e-4);
        ++next;
      });
    }
  }

  TEST_CASE("before the first step the model is the base, bit for bit, dropout or not") {
    for (const char* model : small_models())
      for (const DType dtype : {DType::f32, DType::bf16}) {
        CAPTURE(model);
        CAPTURE(dtype_name(dtype));
        const train::TrainerSpec spec = trainer_spec(model, dtype);
        const train::MicroBatch batch = some_documents(spec, 5);
        train::LoraSettings settings = small_factors();
        settings.dropout = 0.5;
        const double base =
            make_trainer(model, spec,
                         train::slices_of(train::select_random(half_of_everything(), spec.config),
                                          spec.config))
                ->loss({&batch, 1})
                .sum;
        const auto lora = make_trainer(model, spec, set_of(spec, false, settings));
        CHECK(lora->loss({&batch, 1}).sum == base);
        CHECK(lora->gradients({&batch, 1}).sum == base);
        const auto dora = make_trainer(model, spec, set_of(spec, true, settings));
        CHECK(dora->loss({&batch, 1}).sum == base);
        CHECK(dora->gradients({&batch, 1}).sum == base);
      }
  }

  TEST_CASE("rows of zeros have no part in it: nothing is divided by their norm") {
    const train::TrainerSpec spec = trainer_spec("llama-3.1");
    const auto trainer = make_trainer("llama-3.1", spec, set_of(spec, true));
    ops::PackedWeights& wo = trainer->model().weights().layers[1][model::Role::o];
    const std::vector<float> zeros(static_cast<size_t>(wo.in()));
    ops::write_part(wo, WeightPart::rows, std::vector<int32_t>{5}, zeros);
    const train::TrainerSpec again = spec;
    const train::LowRankFactors& f = trainer->set().layers[1][model::Role::o].factors[0];
    trainer->state().values[static_cast<size_t>(f.magnitude + 5)] = 0;
    trainer->publish();
    const train::MicroBatch batch = some_documents(again, 5);
    for (int i = 0; i < 3; ++i) CHECK_FALSE(trainer->step({&batch, 1}).skipped);
    for (const float x : trainer->state().values) REQUIRE(std::isfinite(x));
  }

  TEST_CASE("steps lower the loss, with both methods and types, and two runs have the same bits") {
    for (const bool magnitude : {false, true})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        CAPTURE(magnitude);
        CAPTURE(dtype_name(dtype));
        train::TrainerSpec spec = trainer_spec("qwen3-odd", dtype);
        spec.schedule.rate = 1e-2;
        train::LoraSettings settings = small_factors();
        settings.dropout = 0.1;
        const auto a = make_trainer("qwen3-odd", spec, set_of(spec, magnitude, settings));
        const auto b = make_trainer("qwen3-odd", spec, set_of(spec, magnitude, settings));
        const std::vector<double> losses = steps(*a, 12);
        CHECK(losses.back() < losses.front() - 0.3);
        CHECK(steps(*b, 12) == losses);
        CHECK(same(copy_of(a->state().values), copy_of(b->state().values)));
      }
  }

  TEST_CASE("a run continues from its state as if it had not stopped, dropout included") {
    train::LoraSettings settings = small_factors();
    settings.dropout = 0.2;
    for (const bool magnitude : {false, true}) {
      const train::TrainerSpec spec = trainer_spec("qwen3-tied", DType::bf16);
      const TemporaryFolder folder;
      const auto whole = make_trainer("qwen3-tied", spec, set_of(spec, magnitude, settings));
      steps(*whole, 3);
      train::save_checkpoint(folder / "c", *whole, {.done = 3}, {});
      const std::vector<double> rest = steps(*whole, 3);
      const auto resumed = make_trainer("qwen3-tied", spec, set_of(spec, magnitude, settings));
      train::load_checkpoint(folder / "c", *resumed, {});
      CHECK(steps(*resumed, 3) == rest);
      CHECK(same(copy_of(resumed->state().values), copy_of(whole->state().values)));
      // Of another method's values nothing is loaded.
      const auto other = make_trainer("qwen3-tied", spec, set_of(spec, !magnitude, settings));
      CHECK_THROWS_AS(train::load_checkpoint(folder / "c", *other, {}), Error);
    }
  }

  TEST_CASE("gradients have the same bits when activations are computed again") {
    for (const char* model : {"llama-3.1", "qwen3-odd"})
      for (const bool magnitude : {false, true}) {
        CAPTURE(model);
        CAPTURE(magnitude);
        train::LoraSettings settings = small_factors();
        settings.dropout = 0.2;
        train::TrainerSpec spec = trainer_spec(model);
        const train::TrainedSet set = set_of(spec, magnitude, settings);
        const train::MicroBatch batch = some_documents(spec, 12);
        std::vector<float> want;
        size_t bytes = SIZE_MAX;
        for (const train::Recomputation level :
             {train::Recomputation::none, train::Recomputation::light, train::Recomputation::ffn,
              train::Recomputation::layer}) {
          spec.recompute = level;
          const size_t planned = train::Trainer::plan(spec, set).peak({});
          CHECK(planned < bytes);
          bytes = planned;
          const auto trainer = make_trainer(model, spec, set);
          move_factors(*trainer, 7);
          trainer->gradients({&batch, 1});
          if (want.empty()) want = copy_of(trainer->gradient());
          CHECK(same(copy_of(trainer->gradient()), want));
        }
      }
  }

  TEST_CASE("gradients in bf16 are near those in f32") {
    for (const bool magnitude : {false, true}) {
      CAPTURE(magnitude);
      const train::TrainerSpec spec = trainer_spec("llama-3.1"),
                               narrow = trainer_spec("llama-3.1", DType::bf16);
      const auto exact = make_trainer("llama-3.1", spec, set_of(spec, magnitude));
      const auto rounded = make_trainer("llama-3.1", narrow, set_of(narrow, magnitude));
      move_factors(*exact, 7);
      move_factors(*rounded, 7);
      const train::MicroBatch batch = some_documents(spec, 8);
      const double loss = exact->gradients({&batch, 1}).mean();
      CHECK(rounded->gradients({&batch, 1}).mean() == doctest::Approx(loss).epsilon(5e-3));
      // As far as those of other methods (train/gradients), and the factors' own roundings.
      for (const NamedPart& part : factor_parts(exact->set(), spec.config)) {
        CAPTURE(part.name);
        CHECK(relative_distance(part.of(rounded->gradient()), part.of(exact->gradient())) < 0.12);
      }
    }
  }

  TEST_CASE("the gradient of a step is that of its micro-batches, each with other draws") {
    train::LoraSettings settings = small_factors();
    const train::TrainerSpec spec = trainer_spec("llama-2");
    const std::vector<train::MicroBatch> twice(2, some_documents(spec, 9));
    for (const double dropout : {0.0, 0.5}) {
      settings.dropout = dropout;
      const auto trainer = make_trainer("llama-2", spec, set_of(spec, false, settings));
      move_factors(*trainer, 7);
      const double one = trainer->gradients({twice.data(), 1}).mean();
      CHECK((trainer->gradients(twice).mean() == doctest::Approx(one).epsilon(1e-9)) ==
            (dropout == 0));
      CHECK(trainer->gradients({twice.data(), 1}).mean() == one);
      if (dropout == 0) continue;
      // The next step draws others; a validation none.
      const double loss = trainer->loss({twice.data(), 1}).mean();
      CHECK(loss != one);
      trainer->state().steps = 1;
      CHECK(trainer->gradients({twice.data(), 1}).mean() != one);
      CHECK(trainer->loss({twice.data(), 1}).mean() == loss);
    }
  }

  TEST_CASE("every setting has its effect") {
    const train::TrainerSpec spec = trainer_spec("llama-2");
    const train::MicroBatch batch = some_documents(spec, 10);
    const auto loss_with = [&](const train::LoraSettings& settings) {
      const auto trainer = make_trainer("llama-2", spec, set_of(spec, false, settings));
      move_factors(*trainer, 7);
      return trainer->gradients({&batch, 1}).sum;
    };
    const train::LoraSettings base = small_factors();
    const double loss = loss_with(base);
    train::LoraSettings other = base;
    other.alpha = 12;
    CHECK(set_of(spec, false, other).low_rank.gamma == 3.0f);
    CHECK(loss_with(other) != loss);
    other.rslora = true;  // 12 / sqrt(4) is 6 / 1
    CHECK(set_of(spec, false, other).low_rank.gamma == 6.0f);
    const double doubled = loss_with(other);
    other.rslora = false;
    other.alpha = 24;
    CHECK(loss_with(other) == doubled);
    other = base;
    other.dropout = 0.5;
    CHECK(loss_with(other) != loss);
    other = base;
    other.rank = 5;
    CHECK(set_of(spec, false, other).size == set_of(spec, false, base).size / 4 * 5);
    other = base;
    other.targets = {model::Role::down};
    const train::TrainedSet down = set_of(spec, false, other);
    CHECK(down.size == spec.config.n_layers * 4 * (spec.config.ffn_dim + spec.config.dim));
    CHECK(down.layers[0][model::Role::down].factors.size() == 1);
    CHECK_FALSE(down.layers[0][model::Role::qkv].any());
    CHECK(set_of(spec, true, other).size == down.size + spec.config.n_layers * spec.config.dim);
  }

  TEST_CASE("factors of single matrices: nothing below the first is back-propagated") {
    for (const model::Role only : all_matrices())
      for (const bool magnitude : {false, true}) {
        CAPTURE(model::word_of(only));
        CAPTURE(magnitude);
        const train::TrainerSpec spec = trainer_spec("qwen2-tied");
        train::LoraSettings settings = small_factors();
        const auto all = make_trainer("qwen2-tied", spec, set_of(spec, magnitude, settings));
        settings.targets = {only};
        const auto one = make_trainer("qwen2-tied", spec, set_of(spec, magnitude, settings));
        const train::LayerFrontier& first = one->frontier().layers.front();
        CHECK_FALSE(first.input);
        CHECK(first.attention == (only < model::Role::o));
        CHECK(first.reads_factors);
        CHECK(train::describe(one->frontier()).find("inputs of B") != std::string::npos);
        // With every B at 0 the model is the base's, so that gradients do not depend on the others.
        const train::MicroBatch batch = some_documents(spec, 11);
        CHECK(one->gradients({&batch, 1}).sum ==
              doctest::Approx(all->gradients({&batch, 1}).sum).epsilon(1e-6));
        const auto whole = factor_parts(all->set(), spec.config);
        for (const NamedPart& part : factor_parts(one->set(), spec.config)) {
          if (part.name.ends_with(".a")) continue;
          const auto same_name =
              std::ranges::find(whole, part.name, [](const NamedPart& p) { return p.name; });
          REQUIRE(same_name != whole.end());
          CHECK(relative_distance(part.of(one->gradient()), same_name->of(all->gradient())) < 1e-3);
        }
      }
  }

  TEST_CASE("A begins uniform in its bounds, the same with any number of threads") {
    const train::TrainerSpec spec = trainer_spec("llama-2");
    const int threads = max_threads();
    std::vector<float> want;
    for (const int n : {1, 3}) {
      set_threads(n);
      const auto trainer = make_trainer("llama-2", spec, set_of(spec, true));
      if (want.empty()) want = copy_of(trainer->state().values);
      CHECK(same(copy_of(trainer->state().values), want));
    }
    set_threads(threads);
    const train::TrainedSet set = set_of(spec, true);
    double squares = 0, n = 0;
    for (const NamedPart& part : factor_parts(set, spec.config)) {
      CAPTURE(part.name);
      const std::span<const float> x = part.of(std::span<const float>(want));
      if (part.name.ends_with(".b")) CHECK(norm_of(x) == 0);
      if (!part.name.ends_with(".a")) continue;
      const double in = static_cast<double>(part.size) / set.low_rank.rank;
      double most = 0;
      for (const float v : x) most = std::max(most, std::abs(double{v}));
      CHECK(most <= 1 / std::sqrt(in) * (1 + 1e-6));
      squares += 3 * in * norm_of(x) * norm_of(x);
      n += static_cast<double>(part.size);
    }
    // Squares of numbers uniform in -1 .. 1, times 3, have a deviation of 0.9: four of these.
    CHECK(std::abs(squares / n - 1) <= 4 * 0.9 / std::sqrt(n));
    train::TrainedSet other = train::low_rank_set(spec.config, small_factors(), true, 4);
    CHECK_FALSE(same(copy_of(make_trainer("llama-2", spec, other)->state().values), want));
  }
}

TEST_SUITE("train/export_low_rank") {
  TEST_CASE("base and adapter give the merged model's weights, and the trainer's loss") {
    for (const char* name : small_models())
      for (const bool magnitude : {false, true}) {
        CAPTURE(name);
        CAPTURE(magnitude);
        const TemporaryFolder folder;
        const train::TrainerSpec spec = trainer_spec(name);
        train::TrainSettings settings;
        settings.method = magnitude ? train::Method::dora : train::Method::lora;
        settings.lora = small_factors();
        settings.lora.targets.pop_back();
        const train::TrainedSet set = set_of(spec, magnitude, settings.lora);
        const auto trainer = make_trainer(name, spec, set);
        move_factors(*trainer, 7);
        const decode::ModelFiles base = decode::open_model(small_model(name).string(), 0);
        const std::span<const float> values = trainer->state().values;
        train::export_model(folder / "model", base.folder, spec.config, *base.source, set, values,
                            DType::f32);
        train::export_low_rank(folder / "adapter", "models/base", settings, set, spec.config,
                               values);
        recipe::Model both;
        both.path = {base.folder.string()};
        both.adapters.emplace_back().path = folder / "adapter";
        const auto open_merged = [&] { return decode::open_model((folder / "model").string(), 0); };
        const decode::ModelFiles adapted = decode::open_model(both, 0), merged = open_merged();
        CHECK(adapted.fingerprint != base.fingerprint);
        const train::MicroBatch batch = some_documents(spec, 6);
        const auto nothing = set_of(spec, false, settings.lora);
        const auto loss = [&](decode::ModelFiles files) {
          return train::Trainer(spec, nothing, std::move(files.source)).loss({&batch, 1}).sum;
        };
        for (int layer = 0; layer < spec.config.n_layers; ++layer)
          for (const model::Role weight : model::kLayerRoles) {
            const io::Shape shape = model::shape_of(weight, spec.config);
            std::vector<float> a(static_cast<size_t>(shape[0] * shape[1])), b = a;
            // Two pieces, as a loader asks for them.
            const int64_t half = shape[0] / 2;
            adapted.source->rows({weight, layer}, 0, half, DType::f32, a.data());
            adapted.source->rows({weight, layer}, half, shape[0], DType::f32,
                                 a.data() + half * shape[1]);
            merged.source->rows({weight, layer}, 0, shape[0], DType::f32, b.data());
            CHECK(same(a, b));
          }
        const double trained = trainer->loss({&batch, 1}).sum;
        CHECK(loss(open_merged()) == doctest::Approx(trained).epsilon(1e-5));
        CHECK(loss(decode::open_model(both, 0)) == loss(open_merged()));
        CHECK(std::abs(loss(decode::open_model(base.folder.string(), 0)) / trained - 1) > 1e-4);
      }
  }
}

TEST_SUITE("train/memory") {
  TEST_CASE("of low-rank factors grows by what the plan says") {
    const auto folder = tiny_model("tiny-16m");
    const int threads = max_threads();
    set_threads(2);
    for (const bool magnitude : {false, true}) {
      CAPTURE(magnitude);
      train::TrainerSpec spec = trainer_spec(folder, DType::bf16);
      spec.max_rows = 1024;
      spec.head_rows = 512;
      train::LoraSettings settings = small_factors();
      settings.rank = 32;
      settings.dropout = 0.1;
      const train::TrainedSet set = set_of(spec, magnitude, settings);
      const train::MicroBatch batch =
          random_documents(std::vector<int>(8, 128), spec.config.vocab_size, 26);
      check_growth(spec, set, folder, batch);
    }
    set_threads(threads);
  }
}
