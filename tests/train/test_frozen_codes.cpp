// Training beside codes against training over the numbers that they stand for.
#include "train/coded_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

std::vector<double> steps(train::Trainer& trainer) {
  const int vocab = trainer.spec().config.vocab_size;
  const std::vector<train::MicroBatch> batches = {random_documents({70, 30}, vocab, 21),
                                                  random_documents({15}, vocab, 22)};
  std::vector<double> losses;
  for (int i = 0; i < 5; ++i) losses.push_back(trainer.step(batches).loss.mean());
  return losses;
}

void check_equal(const char* model, DType dtype, double tolerance,
                 const std::function<train::TrainedSet(const train::TrainerSpec&)>& set_of) {
  CAPTURE(model);
  const train::TrainerSpec spec = trainer_spec(model, dtype);
  const train::TrainerSpec coded = with_codes(spec, *coded_source(model, spec.config));
  const train::TrainedSet set = set_of(spec);
  train::Trainer numbers(spec, set, coded_source(model, spec.config)),
      codes(coded, set, coded_source(model, spec.config));
  CHECK(copy_of(codes.state().values) == copy_of(numbers.state().values));
  const std::vector<double> want = steps(numbers), got = steps(codes);
  REQUIRE(want.back() < want.front());
  for (size_t i = 0; i < want.size(); ++i)
    CHECK(got[i] == doctest::Approx(want[i]).epsilon(tolerance));
  CHECK(relative_distance(codes.state().values, numbers.state().values) < 100 * tolerance);
}

size_t weight_bytes(const train::TrainerSpec& spec, const train::TrainedSet& set) {
  return train::Trainer::plan(spec, set).group_bytes("weights", spec.device);
}

void check_plans(const train::TrainerSpec& spec, const train::TrainerSpec& coded) {
  const train::TrainedSet lora = train::low_rank_set(spec.config, small_factors(), false, 3);
  train::SelectionSpec few{.seed = 5};
  few.ratio.fill(0.1);
  const train::TrainedSet slices =
      train::slices_of(train::select_random(few, spec.config), spec.config);
  if (spec.device.kind == Device::Kind::cpu)  // a GPU's tiles are wider than these matrices
    CHECK(2 * weight_bytes(coded, lora) < weight_bytes(spec, lora));
  const size_t held = static_cast<size_t>(slices.size) * dtype_bytes(spec.dtype);
  CHECK(weight_bytes(coded, slices) >= weight_bytes(coded, lora) + held);
  CHECK(weight_bytes(coded, slices) <
        weight_bytes(coded, lora) + held + size_t{64} * 8 * slices.layers.size());
}

}  // namespace

TEST_SUITE("train/frozen_codes") {
  TEST_CASE("LoRA beside codes takes the steps of LoRA over their numbers") {
    for (const char* model : kCodedModels)
      check_equal(model, DType::f32, 1e-5, [](const train::TrainerSpec& spec) {
        return train::low_rank_set(spec.config, small_factors(), false, 3);
      });
  }

  TEST_CASE("DoRA next to codes takes the steps of DoRA over their numbers") {
    for (const char* model : kCodedModels)
      check_equal(model, DType::f32, 1e-5, [](const train::TrainerSpec& spec) {
        return train::low_rank_set(spec.config, small_factors(), true, 3);
      });
  }

  TEST_CASE("slices of codes train as slices of their numbers") {
    for (const char* model : kCodedModels)
      check_equal(model, DType::f32, 1e-5, [](const train::TrainerSpec& spec) {
        return train::slices_of(train::select_random(half_of_everything(), spec.config),
                                spec.config);
      });
  }

  TEST_CASE("slices of codes train in bf16 as those of numbers, within its rounding") {
    const char* const model = small_models().front();
    check_equal(model, DType::bf16, 5e-3, [](const train::TrainerSpec& spec) {
      return train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
    });
  }

  TEST_CASE("plans count codes once, and the trained slices beside them") {
    const char* const model = small_models().front();
    for (const bool on_gpu : {false, true}) {
      train::TrainerSpec spec = trainer_spec(model, on_gpu ? DType::bf16 : DType::f32);
      if (on_gpu) {
        spec.device = {Device::Kind::cuda, 0};
        spec.multiprocessors = 132;
      }
      check_plans(spec, with_codes(spec, *coded_source(model, spec.config)));
    }
  }
}
