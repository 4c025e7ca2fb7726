#include <doctest/doctest.h>

#include "temporary_folder.h"
#include "tensor/cuda.h"
#include "train/checkpoint/checkpoint.h"
#include "train/low_rank_runs.h"
#include "train/selection/calibration.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

train::TrainerSpec on_gpu(train::TrainerSpec spec) {
  spec.device = {Device::Kind::cuda, 0};
  spec.multiprocessors = cuda::gpu_of(0).multiprocessors;
  return spec;
}

train::TrainedSet half_of(const train::TrainerSpec& spec) {
  return train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
}

/// Documents on both sides of a page and of the window of 32, one of a single token.
train::MicroBatch some_documents(const train::TrainerSpec& spec, uint64_t seed) {
  return random_documents({70, 1, 37, 5}, spec.config.vocab_size, seed,
                          [](size_t row) { return row % 3 != 1; });
}

struct Gradient {
  double loss;
  std::vector<float> values;
};

Gradient gradient_of(const char* model, const train::TrainerSpec& spec,
                     const train::TrainedSet& set) {
  const auto trainer = make_trainer(model, spec, set);
  if (set.low_rank.rank > 0) move_factors(*trainer, 7);
  const train::MicroBatch batches[] = {some_documents(spec, 3), some_documents(spec, 4)};
  const double loss = trainer->gradients(batches).mean();
  return {loss, trainer->copy_of(trainer->gradient())};
}

double cosine(std::span<const float> a, std::span<const float> b) {
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += double{a[i]} * b[i];
  return dot / (norm_of(a) * norm_of(b));
}

/// Every trained tensor of a set.
std::vector<NamedPart> all_parts(const train::TrainedSet& set, const model::ModelConfig& c) {
  return set.low_rank.rank > 0 ? factor_parts(set, c) : parts_and_norms(set, c);
}

train::TrainedSet factors_of(const train::TrainerSpec& spec, bool magnitude, double dropout) {
  train::LoraSettings settings = small_factors();
  settings.dropout = dropout;
  return train::low_rank_set(spec.config, settings, magnitude, 3);
}

/// In f32, part by part.
void check_like_the_cpu(const char* model, const train::TrainerSpec& spec,
                        const train::TrainedSet& set) {
  const Gradient want = gradient_of(model, spec, set), got = gradient_of(model, on_gpu(spec), set);
  CHECK(got.loss == doctest::Approx(want.loss).epsilon(1e-6));
  for (const NamedPart& part : all_parts(set, spec.config)) {
    CAPTURE(part.name);
    CHECK(relative_distance(part.of(std::span(got.values)), part.of(std::span(want.values))) <
          2e-5);
  }
}

}  // namespace

TEST_SUITE("gpu/train") {
  TEST_CASE("f32: gradients of every weight of every architecture are the CPU's") {
    for (const char* model : small_models()) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model);
      check_like_the_cpu(model, spec, train::full_set(spec.config));
    }
  }

  TEST_CASE("f32: gradients of slices and of single weights are the CPU's, recomputed or not") {
    for (const char* model : {"llama-3.1", "qwen3-untied-sharded"})
      for (const auto recompute :
           {train::Recomputation::light, train::Recomputation::ffn, train::Recomputation::layer}) {
        CAPTURE(model);
        CAPTURE(static_cast<int>(recompute));
        train::TrainerSpec spec = trainer_spec(model);
        spec.recompute = recompute;
        check_like_the_cpu(model, spec, half_of(spec));
        check_like_the_cpu(model, spec, train::scattered_set(spec.config, 0.1, 7));
      }
  }

  TEST_CASE("f32: gradients of low-rank factors and magnitudes are the CPU's, dropout or not") {
    for (const char* model : {"llama-3.1", "qwen3-untied-sharded"})
      for (const bool magnitude : {false, true})
        for (const double dropout : {0.0, 0.25}) {
          CAPTURE(model);
          CAPTURE(magnitude);
          CAPTURE(dropout);
          const train::TrainerSpec spec = trainer_spec(model);
          check_like_the_cpu(model, spec, factors_of(spec, magnitude, dropout));
        }
  }

  TEST_CASE("steps of low-rank factors repeat their bits") {
    for (const bool magnitude : {false, true})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        CAPTURE(magnitude);
        CAPTURE(dtype_name(dtype));
        const train::TrainerSpec spec = on_gpu(trainer_spec("llama-3.1", dtype));
        const train::TrainedSet set = factors_of(spec, magnitude, 0.25);
        const auto a = make_trainer("llama-3.1", spec, set),
                   b = make_trainer("llama-3.1", spec, set);
        const std::vector<float> before = a->values();
        for (const uint64_t seed : {1u, 2u, 3u}) {
          const train::MicroBatch batch = some_documents(spec, seed);
          const train::StepResult of_a = a->step({&batch, 1}), of_b = b->step({&batch, 1});
          CHECK(of_a.loss.sum == of_b.loss.sum);
          CHECK(of_a.gradient_norm == of_b.gradient_norm);
          CHECK_FALSE(of_a.skipped);
        }
        CHECK(a->values() == b->values());
        CHECK(a->values() != before);
      }
  }

  TEST_CASE("bf16: gradients point where those of f32 do") {
    for (const char* model : small_models()) {
      CAPTURE(model);
      const train::TrainerSpec wide = trainer_spec(model),
                               narrow = trainer_spec(model, DType::bf16);
      const train::TrainedSet set = train::full_set(wide.config);
      const Gradient want = gradient_of(model, wide, set);
      const Gradient of_cpu = gradient_of(model, narrow, set);
      const Gradient got = gradient_of(model, on_gpu(narrow), set);
      CHECK(got.loss == doctest::Approx(want.loss).epsilon(5e-3));
      // Rounding turns gradients on the CPU as far: there, 1 - cosine is 7e-5 to 1.8e-3.
      CHECK(1 - cosine(got.values, want.values) < 1.5 * (1 - cosine(of_cpu.values, want.values)));
      for (const NamedPart& part : parts_and_norms(set, wide.config)) {
        CAPTURE(part.name);
        const auto distance = [&](const Gradient& g) {
          return relative_distance(part.of(std::span(g.values)), part.of(std::span(want.values)));
        };
        // No farther than what rounding to bf16 does on the CPU, give or take its luck.
        CHECK(distance(got) < 1.5 * distance(of_cpu) + 2e-3);
      }
    }
  }

  TEST_CASE("steps repeat their bits, and go on with them from a checkpoint") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(dtype_name(dtype));
      const TemporaryFolder folder;
      train::TrainerSpec spec = on_gpu(trainer_spec("llama-3.1", dtype));
      spec.optimizer.weight_decay = 0.1f;
      const train::TrainedSet set = half_of(spec);
      const auto step = [&](train::Trainer& trainer, uint64_t seed) {
        const train::MicroBatch batch = some_documents(spec, seed);
        return trainer.step({&batch, 1});
      };
      const auto whole = make_trainer("llama-3.1", spec, set);
      const auto again = make_trainer("llama-3.1", spec, set);
      const std::vector<float> before = whole->copy_of(whole->state().values);
      for (const uint64_t seed : {1u, 2u}) {
        const train::StepResult a = step(*whole, seed), b = step(*again, seed);
        CHECK(a.loss.sum == b.loss.sum);
        CHECK(a.gradient_norm == b.gradient_norm);
        CHECK_FALSE(a.skipped);
      }
      train::save_checkpoint(folder / "c", *again, {.done = 2}, {});
      const auto resumed = make_trainer("llama-3.1", spec, set);
      train::load_checkpoint(folder / "c", *resumed, {});
      CHECK(step(*whole, 3).loss.sum == step(*resumed, 3).loss.sum);
      const std::vector<float> after = whole->copy_of(whole->state().values);
      CHECK(resumed->copy_of(resumed->state().values) == after);
      CHECK(after != before);
    }
  }

  TEST_CASE("f32: steps of all weights move them as the CPU's steps do") {
    for (const char* model : {"llama-3.2-tied", "qwen2-untied-sharded"}) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model);
      const train::TrainedSet set = train::full_set(spec.config);
      const auto cpu = make_trainer(model, spec, set), gpu = make_trainer(model, on_gpu(spec), set);
      for (const uint64_t seed : {1u, 2u, 3u}) {
        const train::MicroBatch batch = some_documents(spec, seed);
        const train::StepResult a = cpu->step({&batch, 1}), b = gpu->step({&batch, 1});
        CHECK(b.loss.mean() == doctest::Approx(a.loss.mean()).epsilon(1e-5));
        CHECK(b.gradient_norm == doctest::Approx(a.gradient_norm).epsilon(1e-4));
      }
    }
  }

  TEST_CASE("states in bf16 learn, and go on from a checkpoint with their bits") {
    const TemporaryFolder folder;
    train::TrainerSpec spec = on_gpu(trainer_spec("qwen2-untied-sharded", DType::bf16));
    spec.narrow_states = true;
    spec.rounding_seed = 5;
    const train::TrainedSet set = train::full_set(spec.config);
    const train::MicroBatch batch = some_documents(spec, 1);
    const auto whole = make_trainer("qwen2-untied-sharded", spec, set);
    const double first = whole->step({&batch, 1}).loss.mean();
    for (int i = 0; i < 4; ++i) whole->step({&batch, 1});
    train::save_checkpoint(folder / "c", *whole, {.done = 5}, {});
    const auto resumed = make_trainer("qwen2-untied-sharded", spec, set);
    train::load_checkpoint(folder / "c", *resumed, {});
    const double a = whole->step({&batch, 1}).loss.mean();
    CHECK(resumed->step({&batch, 1}).loss.mean() == a);
    CHECK(a < first - 0.3);
    CHECK(resumed->values() == whole->values());
  }

  TEST_CASE("scores of units are the CPU's") {
    for (const char* model : {"llama-3.1", "qwen2-untied-sharded"}) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model);
      const train::MicroBatch batches[] = {some_documents(spec, 3), some_documents(spec, 4)};
      const auto source = [&] { return decode::open_model(small_model(model).string(), 0).source; };
      train::Calibration cpu(spec, source()), gpu(on_gpu(spec), source());
      const auto check = [](const train::Scores& got, const train::Scores& want) {
        for (const model::Role role : model::kLayerRoles)
          for (size_t l = 0; l < want[role].size(); ++l)
            for (size_t u = 0; u < want[role][l].size(); ++u)
              REQUIRE(got[role][l][u] == doctest::Approx(want[role][l][u]).epsilon(1e-4));
      };
      check(gpu.weights(), cpu.weights());
      check(gpu.activations(batches), cpu.activations(batches));
      check(gpu.gradients(batches), cpu.gradients(batches));
    }
  }

  TEST_CASE("a trainer takes what its plan says") {
    for (const auto recompute : {train::Recomputation::light, train::Recomputation::layer}) {
      CAPTURE(static_cast<int>(recompute));
      train::TrainerSpec spec = on_gpu(trainer_spec("llama-linear", DType::bf16));
      spec.max_rows = 8192;
      spec.recompute = recompute;
      const train::TrainedSet set = train::full_set(spec.config);
      { const auto warm = make_trainer("llama-linear", spec, set); }
      const size_t before = cuda::device_info(0).free_bytes;
      const auto trainer = make_trainer("llama-linear", spec, set);
      const train::MicroBatch batch = random_documents({6000, 2000}, spec.config.vocab_size, 1);
      trainer->step({&batch, 1});
      const size_t taken = before - cuda::device_info(0).free_bytes;
      const size_t planned = train::Trainer::plan(spec, set).peak(spec.device);
      CAPTURE(taken);
      CAPTURE(planned);
      CHECK(static_cast<double>(taken) <= 1.03 * static_cast<double>(planned) + (64 << 20));
      CHECK(static_cast<double>(taken) >= 0.97 * static_cast<double>(planned));
    }
  }
}
