// Training beside codes against training over the numbers that they stand for.
#include "model/spec/weight_formats.h"
#include "model/weights/quantized_source.h"
#include "train/low_rank_runs.h"

using namespace tandem;
using namespace tandem::test;
using model::MatrixId, model::Role;

namespace {

/// Heads tied or not, biases, norms of heads.
constexpr const char* kModels[] = {"llama-3.1", "qwen2-untied-sharded", "qwen3-tied"};

/// A format of each kind; v stays numbers, which lie beside the codes of q and k.
std::optional<WeightFormat> format_of(MatrixId id) {
  switch (id.role) {
    case Role::q:
    case Role::gate:
    case Role::up:
      return WeightFormat(Code::i4, 32, ScaleType::f16, Zero::integer);
    case Role::k:
      return WeightFormat(Code::i8, 16, ScaleType::f16, Zero::none);
    case Role::o:
      return WeightFormat(Code::fp8, 0, ScaleType::f32, Zero::none);
    case Role::down:
    case Role::head:
    case Role::embedding:
      return WeightFormat(Code::i8, 0, ScaleType::f16, Zero::none);
    default:
      return std::nullopt;
  }
}

std::unique_ptr<model::WeightSource> source_of(const char* model, const model::ModelConfig& c) {
  return model::quantized_source(c, decode::open_model(small_model(model).string(), 0).source,
                                 format_of);
}

train::TrainerSpec with_codes(train::TrainerSpec spec, const model::WeightSource& source) {
  auto formats = std::make_shared<model::WeightFormats>();
  formats->int8_inputs = false;
  for (const MatrixId& id : model::all_matrices(spec.config))
    if (model::is_matrix(id.role) && is_coded(source.native(id)))
      formats->coded.emplace(id, source.native(id));
  spec.config.formats = std::move(formats);
  return spec;
}

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
  const train::TrainerSpec coded = with_codes(spec, *source_of(model, spec.config));
  const train::TrainedSet set = set_of(spec);
  train::Trainer numbers(spec, set, source_of(model, spec.config)),
      codes(coded, set, source_of(model, spec.config));
  CHECK(copy_of(codes.state().values) == copy_of(numbers.state().values));
  const std::vector<double> want = steps(numbers), got = steps(codes);
  REQUIRE(want.back() < want.front());
  for (size_t i = 0; i < want.size(); ++i)
    CHECK(got[i] == doctest::Approx(want[i]).epsilon(tolerance));
  CHECK(relative_distance(codes.state().values, numbers.state().values) < 100 * tolerance);
}

size_t weight_bytes(const train::TrainerSpec& spec, const train::TrainedSet& set) {
  return train::Trainer::plan(spec, set).group_bytes("weights", {});
}

}  // namespace

TEST_SUITE("train/frozen_codes") {
  TEST_CASE("LoRA beside codes takes the steps of LoRA over their numbers") {
    for (const char* model : kModels)
      check_equal(model, DType::f32, 1e-5, [](const train::TrainerSpec& spec) {
        return train::low_rank_set(spec.config, small_factors(), false, 3);
      });
  }

  TEST_CASE("slices of codes train as slices of their numbers") {
    for (const char* model : kModels)
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
    const train::TrainerSpec spec = trainer_spec(model);
    const train::TrainerSpec coded = with_codes(spec, *source_of(model, spec.config));
    const train::TrainedSet lora = train::low_rank_set(spec.config, small_factors(), false, 3);
    train::SelectionSpec few{.seed = 5};
    few.ratio.fill(0.1);
    const train::TrainedSet slices =
        train::slices_of(train::select_random(few, spec.config), spec.config);
    CHECK(2 * weight_bytes(coded, lora) < weight_bytes(spec, lora));
    const auto held = static_cast<size_t>(slices.size) * sizeof(float);
    CHECK(weight_bytes(coded, slices) >= weight_bytes(coded, lora) + held);
    CHECK(weight_bytes(coded, slices) <
          weight_bytes(coded, lora) + held + size_t{64} * 8 * slices.layers.size());
  }
}
