// Training next to codes on a GPU, against training over the numbers that they stand for.
#include "tensor/cuda.h"
#include "train/coded_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

using SetOf = std::function<train::TrainedSet(const train::TrainerSpec&)>;

train::TrainerSpec on_gpu(train::TrainerSpec spec) {
  spec.device = {Device::Kind::cuda, 0};
  spec.multiprocessors = cuda::gpu_of(0).multiprocessors;
  return spec;
}

train::TrainedSet slices(const train::TrainerSpec& spec) {
  return train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
}

template <bool kMagnitude>
train::TrainedSet factors(const train::TrainerSpec& spec) {
  train::LoraSettings settings = small_factors();
  settings.rank = 8;
  settings.dropout = 0.25;
  return train::low_rank_set(spec.config, settings, kMagnitude, 3);
}

train::MicroBatch some_documents(const train::TrainerSpec& spec, uint64_t seed) {
  return random_documents({70, 1, 37, 5}, spec.config.vocab_size, seed,
                          [](size_t row) { return row % 3 != 1; });
}

/// Slices that are no longer the codes' numbers.
void move_slices(train::Trainer& trainer) {
  PhiloxStream draw(7);
  std::vector<float> values = trainer.values();
  for (float& v : values) v *= static_cast<float>(1 + 0.2 * (2 * draw.uniform() - 1));
  trainer.set_values(values);
}

struct Gradient {
  double loss;
  std::vector<float> start, values;
};

Gradient gradient_of(const char* model, const train::TrainerSpec& spec,
                     const train::TrainedSet& set) {
  train::Trainer trainer(spec, set, coded_source(model, spec.config));
  std::vector<float> start = trainer.values();
  if (set.low_rank.rank > 0)
    move_factors(trainer, 7);
  else
    move_slices(trainer);
  const train::MicroBatch batches[] = {some_documents(spec, 3), some_documents(spec, 4)};
  const double loss = trainer.gradients(batches).mean();
  return {loss, std::move(start), trainer.copy_of(trainer.gradient())};
}

std::vector<NamedPart> all_parts(const train::TrainedSet& set, const model::ModelConfig& c) {
  return set.low_rank.rank > 0 ? factor_parts(set, c) : parts_of(set);
}

}  // namespace

TEST_SUITE("gpu/train/codes") {
  TEST_CASE("bf16: gradients next to codes are those over their numbers") {
    for (const char* model : kCodedModels)
      for (const SetOf& set_of : {SetOf(factors<false>), SetOf(factors<true>), SetOf(slices)})
        for (const auto recompute : {train::Recomputation::none, train::Recomputation::layer}) {
          CAPTURE(model);
          train::TrainerSpec wide = trainer_spec(model), narrow = trainer_spec(model, DType::bf16);
          wide.recompute = narrow.recompute = recompute;
          const train::TrainedSet set = set_of(wide);
          const train::TrainerSpec coded =
              with_codes(on_gpu(narrow), *coded_source(model, narrow.config));
          const Gradient want = gradient_of(model, wide, set),
                         numbers = gradient_of(model, on_gpu(narrow), set),
                         codes = gradient_of(model, coded, set);
          CHECK(relative_distance(codes.start, numbers.start) < 1e-6);
          CHECK(codes.loss == doctest::Approx(want.loss).epsilon(5e-3));
          CHECK(codes.loss == doctest::Approx(numbers.loss).epsilon(5e-3));
          for (const NamedPart& part : all_parts(set, narrow.config)) {
            CAPTURE(part.name);
            const auto distance = [&](const Gradient& g) {
              return relative_distance(part.of(std::span(g.values)),
                                       part.of(std::span(want.values)));
            };
            CHECK(distance(codes) < 1.5 * distance(numbers) + 2e-3);
          }
        }
  }

  TEST_CASE("steps next to codes repeat their bits and learn") {
    const char* const model = kCodedModels[0];
    for (const SetOf& set_of : {SetOf(factors<false>), SetOf(factors<true>), SetOf(slices)}) {
      const train::TrainerSpec narrow = on_gpu(trainer_spec(model, DType::bf16));
      const train::TrainerSpec spec = with_codes(narrow, *coded_source(model, narrow.config));
      const train::TrainedSet set = set_of(spec);
      train::Trainer a(spec, set, coded_source(model, spec.config)),
          b(spec, set, coded_source(model, spec.config));
      const train::MicroBatch batch = some_documents(spec, 1);
      double first = 0, last = 0;
      for (int i = 0; i < 6; ++i) {
        const train::StepResult of_a = a.step({&batch, 1}), of_b = b.step({&batch, 1});
        CHECK(of_a.loss.sum == of_b.loss.sum);
        CHECK(of_a.gradient_norm == of_b.gradient_norm);
        if (i == 0) first = of_a.loss.mean();
        last = of_a.loss.mean();
      }
      CHECK(a.values() == b.values());
      CHECK(last < first - 0.01);
    }
  }

  TEST_CASE("a trainer next to codes takes what its plan says") {
    const char* const model = kCodedModels[0];
    train::TrainerSpec spec = on_gpu(trainer_spec(model, DType::bf16));
    spec.max_rows = 4096;
    spec = with_codes(spec, *coded_source(model, spec.config));
    const train::TrainedSet set = slices(spec);
    { const train::Trainer warm(spec, set, coded_source(model, spec.config)); }
    const size_t before = cuda::device_info(0).free_bytes;
    train::Trainer trainer(spec, set, coded_source(model, spec.config));
    const train::MicroBatch batch = random_documents({3000, 1000}, spec.config.vocab_size, 1);
    trainer.step({&batch, 1});
    const size_t taken = before - cuda::device_info(0).free_bytes;
    const size_t planned = train::Trainer::plan(spec, set).peak(spec.device);
    CAPTURE(taken);
    CAPTURE(planned);
    CHECK(static_cast<double>(taken) <= 1.03 * static_cast<double>(planned) + (64 << 20));
    CHECK(static_cast<double>(taken) >= 0.97 * static_cast<double>(planned));
  }
}
