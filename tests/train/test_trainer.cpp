#include <doctest/doctest.h>

#include <numbers>

#include "base/parallel.h"
#include "ops/linear_gradient.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;
using model::Role;

namespace {

train::TrainedSet half_of(const train::TrainerSpec& spec) {
  return train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
}

/// Losses of steps over the same two micro-batches.
std::vector<double> losses(train::Trainer& trainer, int steps) {
  const int vocab = trainer.spec().config.vocab_size;
  const std::vector<train::MicroBatch> batches = {random_documents({70, 30}, vocab, 21),
                                                  random_documents({15}, vocab, 22)};
  std::vector<double> all;
  for (int i = 0; i < steps; ++i) all.push_back(trainer.step(batches).loss.mean());
  return all;
}

/// The bytes of all matrices of a layer, as they are held.
std::vector<std::string> matrices(train::Trainer& trainer) {
  std::vector<std::string> all;
  for (const model::LayerWeights& l : trainer.model().weights().layers)
    for (const Role role : model::kLayerStacks) {
      const ops::PackedWeights& w = l[role];
      all.emplace_back(static_cast<const char*>(ops::trainable_rows(w)),
                       static_cast<size_t>(w.out() * w.in()) * dtype_bytes(w.dtype()));
    }
  return all;
}

}  // namespace

TEST_SUITE("train/trainer") {
  TEST_CASE("steps lower the loss, with slices and with all weights, in both types") {
    for (const char* model : {"llama-3.2-tied", "qwen3-odd"})
      for (const DType dtype : {DType::f32, DType::bf16})
        for (const bool all : {false, true}) {
          CAPTURE(model);
          CAPTURE(dtype_name(dtype));
          CAPTURE(all);
          const train::TrainerSpec spec = trainer_spec(model, dtype);
          const auto trainer =
              make_trainer(model, spec, all ? train::full_set(spec.config) : half_of(spec));
          const std::vector<double> loss = losses(*trainer, 12);
          CHECK(loss.back() < loss.front() - (all ? 1.0 : 0.3));
        }
  }

  TEST_CASE("states in bf16 learn as those in f32 do, and go on from a copy with the same bits") {
    train::TrainerSpec spec = trainer_spec("qwen2-untied-sharded", DType::bf16);
    const train::TrainedSet set = train::full_set(spec.config);
    const double wide = losses(*make_trainer("qwen2-untied-sharded", spec, set), 12).back();
    spec.narrow_states = true;
    spec.rounding_seed = 5;
    const auto trainer = make_trainer("qwen2-untied-sharded", spec, set);
    CHECK(trainer->state().values.empty());
    const std::vector<double> first = losses(*trainer, 12);
    CHECK(first.back() == doctest::Approx(wide).epsilon(0.05));
    const auto other = make_trainer("qwen2-untied-sharded", spec, set);
    other->set_values(trainer->values());
    std::ranges::copy(trainer->state().narrow_first, other->state().narrow_first.begin());
    std::ranges::copy(trainer->state().narrow_second, other->state().narrow_second.begin());
    other->state().steps = trainer->state().steps;
    CHECK(losses(*other, 3) == losses(*trainer, 3));
    CHECK(other->values() == trainer->values());
  }

  TEST_CASE("one batch is learnt by heart") {
    train::TrainerSpec spec = trainer_spec("llama-2");
    spec.schedule.rate = 5e-3;
    const auto trainer = make_trainer("llama-2", spec, train::full_set(spec.config));
    CHECK(losses(*trainer, 80).back() < 0.01);
  }

  TEST_CASE("two runs have the same bits") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const train::TrainerSpec spec = trainer_spec("llama-3.1", dtype);
      const auto a = make_trainer("llama-3.1", spec, half_of(spec));
      const auto b = make_trainer("llama-3.1", spec, half_of(spec));
      CHECK(losses(*a, 5) == losses(*b, 5));
      CHECK(same(copy_of(a->state().values), copy_of(b->state().values)));
      CHECK(same(copy_of(a->state().second), copy_of(b->state().second)));
    }
  }

  TEST_CASE("a run continues from its state as if it had not stopped") {
    const train::TrainerSpec spec = trainer_spec("qwen3-tied", DType::bf16);
    const auto whole = make_trainer("qwen3-tied", spec, half_of(spec));
    losses(*whole, 3);
    const std::vector<float> values = copy_of(whole->state().values),
                             first = copy_of(whole->state().first),
                             second = copy_of(whole->state().second);
    const std::vector<double> rest = losses(*whole, 3);
    const auto resumed = make_trainer("qwen3-tied", spec, half_of(spec));
    train::Trainer::State& state = resumed->state();
    std::ranges::copy(values, state.values.begin());
    std::ranges::copy(first, state.first.begin());
    std::ranges::copy(second, state.second.begin());
    state.steps = 3;
    resumed->publish();
    CHECK(losses(*resumed, 3) == rest);
    CHECK(same(copy_of(state.values), copy_of(whole->state().values)));
  }

  TEST_CASE("weights outside the slices keep their bits, with weight decay too") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      train::TrainerSpec spec = trainer_spec("llama-3.1", dtype);
      spec.optimizer.weight_decay = 0.1f;
      const auto trainer = make_trainer("llama-3.1", spec, half_of(spec));
      const std::vector<std::string> before = matrices(*trainer);
      losses(*trainer, 3);
      const std::vector<std::string> after = matrices(*trainer);
      size_t next = 0;
      for (const auto& l : trainer->set().layers)
        for (const Role role : model::kLayerStacks) {
          const train::TrainedMatrix* m = &l[role];
          const std::string &a = before[next], &b = after[next];
          ++next;
          const bool columns = m->part == train::TrainedMatrix::Part::columns;
          const size_t bytes = dtype_bytes(dtype);
          const auto& layer = trainer->model().weights().layers[0];
          const int64_t in = layer[role].in();
          int64_t frozen_changed = 0, trained_same = 0;
          for (size_t i = 0; i < a.size(); i += bytes) {
            const auto at = static_cast<int64_t>(i / bytes);
            const auto unit = static_cast<int32_t>(columns ? at % in : at / in);
            const bool trained = std::ranges::binary_search(m->index, unit);
            const bool changed = a.compare(i, bytes, b, i, bytes) != 0;
            frozen_changed += !trained && changed ? 1 : 0;
            trained_same += trained && !changed ? 1 : 0;
          }
          CHECK(frozen_changed == 0);
          // In bf16 a step may be too small to show.
          CHECK(trained_same * 4 < m->size());
        }
    }
  }

  TEST_CASE("single weights are trained, and others keep their bits") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const train::TrainerSpec spec = trainer_spec("llama-3.1", dtype);
      const auto trainer =
          make_trainer("llama-3.1", spec, train::scattered_set(spec.config, 0.1, 4));
      const std::vector<std::string> before = matrices(*trainer);
      const std::vector<double> loss = losses(*trainer, 8);
      CHECK(loss.back() < loss.front() - 0.1);
      const std::vector<std::string> after = matrices(*trainer);
      size_t next = 0;
      for (const auto& l : trainer->set().layers)
        for (const train::TrainedMatrix& matrix : l) {
          const train::TrainedMatrix* m = &matrix;
          const std::string &a = before[next], &b = after[next];
          ++next;
          const size_t bytes = dtype_bytes(dtype);
          int64_t frozen_changed = 0;
          for (size_t i = 0; i < a.size(); i += bytes)
            frozen_changed +=
                a.compare(i, bytes, b, i, bytes) != 0 &&
                        !std::ranges::binary_search(m->index, static_cast<int32_t>(i / bytes))
                    ? 1
                    : 0;
          CHECK(frozen_changed == 0);
          CHECK(a != b);
        }
    }
  }

  TEST_CASE("a rate of zero leaves every bit of the model") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      train::TrainerSpec spec = trainer_spec("qwen2-tied", dtype);
      spec.schedule.rate = 0;
      const auto trainer = make_trainer("qwen2-tied", spec, train::full_set(spec.config));
      const std::vector<std::string> before = matrices(*trainer);
      const std::vector<double> loss = losses(*trainer, 2);
      CHECK(loss[0] == loss[1]);
      CHECK(matrices(*trainer) == before);
    }
  }

  TEST_CASE("all of o and down is full training of these two, step by step") {
    const train::TrainerSpec spec = trainer_spec("llama-3.1");
    train::SelectionSpec everything;
    everything.ratio[Role::o] = 1;
    everything.ratio[Role::down] = 1;
    const train::TrainedSet slices =
        train::slices_of(train::select_random(everything, spec.config), spec.config);
    train::TrainedSet whole;
    for (size_t i = 0; i < slices.layers.size(); ++i) {
      auto& l = whole.layers.emplace_back();
      l[Role::o].part = l[Role::down].part = train::TrainedMatrix::Part::all;
    }
    train::lay_out(whole, spec.config);
    REQUIRE(slices.size == whole.size);
    const auto a = make_trainer("llama-3.1", spec, slices),
               b = make_trainer("llama-3.1", spec, whole);
    const std::vector<double> x = losses(*a, 6), y = losses(*b, 6);
    for (size_t i = 0; i < x.size(); ++i) CHECK(x[i] == doctest::Approx(y[i]).epsilon(1e-5));
    CHECK(relative_distance(a->state().values, b->state().values) < 1e-5);
  }

  TEST_CASE("weight decay pulls to the values of the start, or to 0") {
    for (const bool to_start : {true, false}) {
      CAPTURE(to_start);
      train::TrainerSpec spec = trainer_spec("llama-2");
      spec.decays_to_start = to_start;
      spec.optimizer.weight_decay = 0.5f;
      spec.schedule.rate = 1;
      spec.clip = 1e-30;  // nothing but decay is left
      const auto trainer = make_trainer("llama-2", spec, half_of(spec));
      const std::span<float> values = trainer->state().values;
      const std::vector<float> start = copy_of(values);
      for (float& v : values) v += 0.25f;
      const train::MicroBatch batch = random_documents({9}, spec.config.vocab_size, 25);
      CHECK(!trainer->step({&batch, 1}).skipped);
      double worst = 0;
      for (size_t i = 0; i < start.size(); ++i) {
        const double want = to_start ? double{start[i]} + 0.125 : (double{start[i]} + 0.25) / 2;
        worst = worse(worst, std::abs(double{values[i]} - want));
      }
      CHECK(worst < 1e-6);
    }
  }

  TEST_CASE("gradients are clipped by the norm of all together") {
    train::TrainerSpec spec = trainer_spec("llama-2");
    spec.clip = 1e-3;
    const auto trainer = make_trainer("llama-2", spec, half_of(spec));
    const train::MicroBatch batch = random_documents({30}, spec.config.vocab_size, 23);
    const train::StepResult r = trainer->step({&batch, 1});
    CHECK(r.n_rows == 30);
    CHECK(r.loss.n_tokens == 29);
    CHECK(r.gradient_norm == doctest::Approx(norm_of(trainer->gradient())).epsilon(1e-6));
    CHECK(r.clip_scale == doctest::Approx(1e-3 / (r.gradient_norm + 1e-6)));
    CHECK(!r.skipped);
    // The first moment of the first step is a tenth of the clipped gradient.
    CHECK(norm_of(trainer->state().first) == doctest::Approx(1e-4).epsilon(1e-3));
  }

  TEST_CASE("a step that is interrupted anywhere has changed nothing") {
    int polls_left = -1;  // -1: never
    train::TrainerSpec spec = trainer_spec("llama-3.1");
    spec.recompute = train::Recomputation::layer;
    spec.interrupted = [&] { return polls_left >= 0 && polls_left-- == 0; };
    const auto trainer = make_trainer("llama-3.1", spec, half_of(spec));
    const auto other = make_trainer("llama-3.1", trainer_spec("llama-3.1"), half_of(spec));
    const train::MicroBatch batch = random_documents({30, 9}, spec.config.vocab_size, 27);
    int interrupted = 0;
    for (int n = 0; n < 60; ++n) {
      polls_left = n;
      try {
        trainer->step({&batch, 1});
        break;
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::interrupted);
        ++interrupted;
      }
    }
    CHECK(interrupted > 20);  // in the forward and in the backward pass
    other->step({&batch, 1});
    CHECK(trainer->state().steps == 1);
    CHECK(same(copy_of(trainer->state().values), copy_of(other->state().values)));
  }

  TEST_CASE("steps whose gradient is not finite are left out") {
    const train::TrainerSpec spec = trainer_spec("llama-2");
    const auto trainer = make_trainer("llama-2", spec, half_of(spec));
    const train::MicroBatch batch = random_documents({30}, spec.config.vocab_size, 24);
    const float kept = trainer->state().values[0];
    trainer->state().values[0] = std::numeric_limits<float>::infinity();
    trainer->publish();
    CHECK(trainer->step({&batch, 1}).skipped);
    CHECK(trainer->state().steps == 0);
    trainer->state().values[0] = kept;
    trainer->publish();
    CHECK(!trainer->step({&batch, 1}).skipped);
  }
}

TEST_SUITE("train/memory") {
  TEST_CASE("grows by what the plan says, for slices and all weights, at every level") {
    using Level = train::Recomputation;
    const auto folder = tiny_model("tiny-16m");
    // Each thread has room for the longest document, which these are not.
    const int threads = max_threads();
    set_threads(2);
    for (const bool all : {false, true})
      for (const Level level : {Level::none, Level::light, Level::ffn, Level::layer}) {
        CAPTURE(all);
        train::TrainerSpec spec = trainer_spec(folder, DType::bf16);
        spec.max_rows = 1024;
        spec.head_rows = 512;
        spec.recompute = level;
        const train::TrainedSet set = all ? train::full_set(spec.config) : half_of(spec);
        const train::MicroBatch batch =
            random_documents(std::vector<int>(8, 128), spec.config.vocab_size, 26);
        check_growth(spec, set, folder, batch);
      }
    set_threads(threads);
  }
}

TEST_SUITE("train/schedule") {
  TEST_CASE("warms up from zero, then is constant, falls to zero, or is half a cosine") {
    using Kind = train::Schedule::Kind;
    train::Schedule s{.kind = Kind::constant, .rate = 2, .warmup_steps = 4, .steps = 12};
    CHECK(s.at(0) == 0);
    CHECK(s.at(3) == 1.5);
    CHECK(s.at(11) == 2);
    s.kind = Kind::linear;
    CHECK(s.at(4) == 2);
    CHECK(s.at(8) == 1);
    CHECK(s.at(12) == 0);
    CHECK(s.at(40) == 0);
    s.kind = Kind::cosine;
    CHECK(s.at(4) == 2);
    CHECK(s.at(6) == doctest::Approx(1 + std::cos(std::numbers::pi / 4)));
    CHECK(s.at(12) == doctest::Approx(0));
    s.least_share = 0.25;
    CHECK(s.at(12) == doctest::Approx(0.5));
    CHECK(s.at(4) == 2);
    s.from_zero = false;
    CHECK(s.at(0) == 0.5);
    CHECK(s.at(3) == 2);
  }
}
