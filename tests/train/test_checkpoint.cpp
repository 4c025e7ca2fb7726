#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "io/file.h"
#include "temporary_folder.h"
#include "train/checkpoint/checkpoint.h"
#include "train/export/export_model.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

const train::RunIdentity kRun = {.settings = {{"train.batch", "16"}, {"run.seed", "0"}},
                                 .place = "cpu"};

train::MicroBatch some_documents(const train::Trainer& trainer, uint64_t seed) {
  return random_documents({40, 20}, trainer.spec().config.vocab_size, seed);
}

void step(train::Trainer& trainer, uint64_t seed) {
  const train::MicroBatch batch = some_documents(trainer, seed);
  trainer.step({&batch, 1});
}

train::TrainedSet half_of(const train::TrainerSpec& spec) {
  return train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
}

Error error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  return Error(ErrorKind::internal, "", "nothing thrown");
}

}  // namespace

TEST_SUITE("train/checkpoint") {
  TEST_CASE("a run goes on from its checkpoint with the bits that it would have had") {
    const TemporaryFolder folder;
    const train::TrainerSpec spec = trainer_spec("llama-3.1", DType::bf16);
    const auto whole = make_trainer("llama-3.1", spec, half_of(spec));
    for (uint64_t i = 0; i < 3; ++i) step(*whole, i);
    train::RunProgress progress{.done = 4};
    for (const double loss : {1.0 / 3, 0.1, double{NAN}, 0.2})
      progress.best.add(progress.best.last + 1, loss);
    train::save_checkpoint(folder / "c", *whole, progress, kRun);
    for (uint64_t i = 3; i < 5; ++i) step(*whole, i);

    const auto resumed = make_trainer("llama-3.1", spec, half_of(spec));
    CHECK(train::load_checkpoint(folder / "c", *resumed, kRun).progress == progress);
    const train::CheckpointInfo info = train::check_checkpoint(folder / "c");
    CHECK(info.progress == progress);
    CHECK(info.place == "cpu");
    CHECK(resumed->state().steps == 3);
    for (uint64_t i = 3; i < 5; ++i) step(*resumed, i);
    CHECK(copy_of(resumed->state().values) == copy_of(whole->state().values));
    CHECK(copy_of(resumed->state().second) == copy_of(whole->state().second));
    const train::MicroBatch batch = some_documents(*whole, 9);
    CHECK(resumed->loss({&batch, 1}).sum == whole->loss({&batch, 1}).sum);
  }

  TEST_CASE("of another run, of other values, cut short: said, and nothing has changed") {
    const TemporaryFolder folder;
    const train::TrainerSpec spec = trainer_spec("llama-2");
    const auto trainer = make_trainer("llama-2", spec, half_of(spec));
    step(*trainer, 1);
    train::save_checkpoint(folder / "c", *trainer, {.done = 1}, kRun);
    const std::vector<float> before = copy_of(trainer->state().values);
    step(*trainer, 2);
    const std::vector<float> now = copy_of(trainer->state().values);
    REQUIRE(now != before);
    const auto load = [&](const char* name, train::Trainer& to, const train::RunIdentity& run) {
      return error_of([&] { train::load_checkpoint(folder / name, to, run); });
    };
    train::RunIdentity other = kRun;
    other.settings["train.batch"] = "8";
    const Error differs = load("c", *trainer, other);
    CHECK(differs.kind() == ErrorKind::usage);
    CHECK(differs.message().find("train.batch (now 8, then 16)") != std::string::npos);
    CHECK(load("none", *trainer, kRun).kind() == ErrorKind::input);
    const Error later = error_of([&] { train::load_checkpoint(folder / "c", *trainer, kRun, 2); });
    CHECK(later.kind() == ErrorKind::input);
    CHECK(later.message().find("holds step 1, expected step 2") != std::string::npos);
    const auto all = make_trainer("llama-2", spec, train::full_set(spec.config));
    CHECK(load("c", *all, kRun).message().find("expected") != std::string::npos);
    std::filesystem::resize_file(folder / "c", std::filesystem::file_size(folder / "c") / 2);
    CHECK(load("c", *trainer, kRun).kind() == ErrorKind::input);
    CHECK(copy_of(trainer->state().values) == now);
  }

  TEST_CASE("one changed byte is found, wherever it is") {
    const TemporaryFolder folder;
    const train::TrainerSpec spec = trainer_spec("llama-2");
    const auto trainer = make_trainer("llama-2", spec, half_of(spec));
    step(*trainer, 1);
    train::save_checkpoint(folder / "c", *trainer, {.done = 1}, kRun);
    step(*trainer, 2);
    const std::vector<float> now = copy_of(trainer->state().values);
    const std::string whole = io::read_file(folder / "c");
    const size_t data = whole.size() - 3 * now.size() * sizeof(float);
    // The header's last bytes are spaces up to a multiple of 8.
    const size_t header_end = whole.find_last_not_of(' ', data - 1) + 1;
    PhiloxStream draw(7);
    std::vector<size_t> places = {8, header_end - 1, data, whole.size() - 1};
    for (int i = 0; i < 200; ++i) {
      places.push_back(draw.below(static_cast<uint32_t>(header_end)));
      places.push_back(data + draw.below(static_cast<uint32_t>(whole.size() - data)));
    }
    for (const size_t place : places) {
      CAPTURE(place);
      std::string bytes = whole;
      bytes[place] = static_cast<char>(bytes[place] ^ (1 + draw.below(255)));
      folder.write("c", bytes);
      const Error e = error_of([&] { train::load_checkpoint(folder / "c", *trainer, kRun); });
      CHECK(e.kind() == ErrorKind::input);
      CHECK(e.where().find((folder / "c").string()) == 0);
      CHECK_THROWS_AS(train::check_checkpoint(folder / "c"), Error);
    }
    CHECK(copy_of(trainer->state().values) == now);
    folder.write("c", whole);
    CHECK(train::load_checkpoint(folder / "c", *trainer, kRun).progress.done == 1);
  }

  TEST_CASE("the best validation: the first of the lowest losses, and when a run gives up") {
    train::BestValidation best;
    CHECK_FALSE(best.add(2, NAN));
    CHECK_FALSE(best.found());
    CHECK(best.add(4, 0.5));
    CHECK_FALSE(best.add(6, 0.5));
    CHECK_FALSE(best.gives_up(2));
    CHECK_FALSE(best.add(8, INFINITY));
    CHECK(best.gives_up(2));
    CHECK_FALSE(best.gives_up(3));
    CHECK_FALSE(best.gives_up(0));
    CHECK(best == train::BestValidation{.last = 8, .step = 4, .loss = 0.5, .worse = 2});
    CHECK(best.add(10, 0.25));
    CHECK(best == train::BestValidation{.last = 10, .step = 10, .loss = 0.25, .worse = 0});
  }

  TEST_CASE("an exported model has the trained weights, for every architecture") {
    const auto check = [](const std::filesystem::path& model, DType dtype) {
      CAPTURE(model.string());
      const auto open = [](const std::filesystem::path& path) {
        return decode::open_model(path.string(), 0);
      };
      const train::TrainerSpec spec = trainer_spec(model, dtype);
      for (const train::TrainedSet& set : {train::full_set(spec.config), half_of(spec),
                                           train::scattered_set(spec.config, 0.1, 3)}) {
        const TemporaryFolder folder;
        const auto trainer = std::make_unique<train::Trainer>(spec, set, open(model).source);
        const std::vector<float> before = copy_of(trainer->state().values);
        step(*trainer, 5);
        REQUIRE(copy_of(trainer->state().values) != before);
        const decode::ModelFiles base = open(model);
        train::export_model(folder / "m", base.folder, spec.config, *base.source, set,
                            trainer->state().values, dtype);
        train::Trainer again(spec, set, open(folder / "m").source);
        if (dtype == DType::f32)  // else its values are those of the weights, rounded
          CHECK(copy_of(again.state().values) == copy_of(trainer->state().values));
        const train::MicroBatch batch = some_documents(*trainer, 6);
        CHECK(again.loss({&batch, 1}).sum == trainer->loss({&batch, 1}).sum);
      }
    };
    for (const char* name : small_models()) check(small_model(name), DType::f32);
    check(tiny_model("tiny-2m"), DType::bf16);  // its own weights are bf16, so none is rounded
  }
}
