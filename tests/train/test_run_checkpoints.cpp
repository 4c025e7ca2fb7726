#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "error_text.h"
#include "io/file.h"
#include "temporary_folder.h"
#include "train/run/run_checkpoints.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

const train::RunIdentity kRun = {.settings = {{"run.seed", "0"}}, .place = "cpu a"};

/// A trainer whose first value is the step that it is at.
struct Rig {
  TemporaryFolder folder;
  train::TrainerSpec spec = trainer_spec("llama-2");
  std::unique_ptr<train::Trainer> trainer = make_trainer(
      "llama-2", spec,
      train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config));
  std::vector<std::string> warnings;

  train::RunCheckpoints checkpoints(int keep) const { return {folder.path(), kRun, keep}; }
  void save(train::RunCheckpoints& to, int64_t step, int64_t best) const {
    trainer->state().values[0] = static_cast<float>(step);
    to.save(*trainer, {.done = step, .best = {.last = step, .step = best, .loss = 1}});
  }
  int64_t resume(train::RunCheckpoints& from) {
    warnings.clear();
    const auto at =
        from.resume(*trainer, [&](const std::string& text) { warnings.push_back(text); });
    if (at.done > 0) CHECK(trainer->state().values[0] == static_cast<float>(at.done));
    return at.done;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_SUITE("tools/run_checkpoints") {
  TEST_CASE("the last ones stay, and those that they name as the best") {
    Rig rig;
    auto run = rig.checkpoints(2);
    CHECK(rig.resume(run) == 0);
    rig.save(run, 3, 3);
    rig.save(run, 6, 3);
    rig.save(run, 9, 3);
    rig.save(run, 12, 3);
    CHECK(rig.files() ==
          Names{"step-000003.safetensors", "step-000009.safetensors", "step-000012.safetensors"});
    rig.save(run, 15, 15);
    CHECK(rig.files() ==
          Names{"step-000003.safetensors", "step-000012.safetensors", "step-000015.safetensors"});
    // Another process knows as much.
    auto again = rig.checkpoints(2);
    CHECK(rig.resume(again) == 15);
    CHECK(rig.warnings.empty());
    rig.save(again, 1000000, 15);
    CHECK(rig.files() == Names{"step-000015.safetensors", "step-1000000.safetensors"});
    again.load_best(*rig.trainer, {.last = 1000000, .step = 15, .loss = 1});
    CHECK(rig.trainer->state().values[0] == 15);
    again.remove_all();
    CHECK(rig.files().empty());
  }

  TEST_CASE("a torn or foreign file is named, and the one before it is taken") {
    Rig rig;
    auto run = rig.checkpoints(3);
    for (const int64_t step : {4, 8, 12}) rig.save(run, step, 4);
    const std::filesystem::path last = run.file(12);
    std::filesystem::resize_file(last, std::filesystem::file_size(last) / 2);
    rig.folder.write("step-000016.safetensors", "no checkpoint");
    std::filesystem::copy_file(run.file(8), run.file(20));
    rig.folder.write("step-7.safetensors", "of another name");
    rig.folder.write("step-000008.safetensors.tmp-0123456789abcdef", "a part");
    auto again = rig.checkpoints(3);
    CHECK(rig.resume(again) == 8);
    REQUIRE(rig.warnings.size() == 4);
    CHECK(rig.warnings[0].find("step-000020.safetensors: holds step 8, expected") !=
          std::string::npos);
    CHECK(rig.warnings[1].find("step-000016.safetensors") != std::string::npos);
    CHECK(rig.warnings[2].find("step-000012.safetensors: truncated") != std::string::npos);
    CHECK(rig.warnings[3].find("step-000008.safetensors is intact: the run resumes") !=
          std::string::npos);
    for (const std::string& text : rig.warnings) CHECK(text.find('\n') == std::string::npos);
    CHECK(rig.files().size() == 6);  // the part is gone
    rig.save(again, 12, 4);
    CHECK(train::check_checkpoint(last).progress.done == 12);
  }

  TEST_CASE("a flipped bit, another machine, a lost best: said, and gone on from what is whole") {
    Rig rig;
    auto run = rig.checkpoints(3);
    for (const int64_t step : {4, 8, 12}) rig.save(run, step, 4);
    const auto flip = [&](int64_t step) {
      std::string bytes = io::read_file(run.file(step));
      bytes[bytes.size() - 100] ^= 4;
      rig.folder.write(run.file(step).filename().string(), bytes);
    };
    flip(12);
    auto again = rig.checkpoints(3);
    CHECK(rig.resume(again) == 8);
    REQUIRE(rig.warnings.size() == 2);
    CHECK(rig.warnings[0].find("step-000012.safetensors: is damaged: the checksum of second is ") !=
          std::string::npos);
    CHECK(rig.warnings[1].find("step-000008.safetensors is intact") != std::string::npos);

    flip(4);
    train::RunCheckpoints moved(rig.folder.path(), {kRun.settings, "cpu b"}, 3);
    rig.warnings.clear();
    const train::RunProgress at =
        moved.resume(*rig.trainer, [&](const std::string& text) { rig.warnings.push_back(text); });
    CHECK(at == train::RunProgress{.done = 8, .best = {.last = 8}});
    REQUIRE(rig.warnings.size() == 5);
    CHECK(rig.warnings[3].find("the run moved from cpu a to cpu b: sums are") == 0);
    CHECK(rig.warnings[4].find(
              "step-000004.safetensors, the checkpoint of the best validation so far, is") !=
          std::string::npos);
  }

  TEST_CASE("none that is whole, another run: said, and nothing is removed") {
    Rig rig;
    auto run = rig.checkpoints(3);
    rig.save(run, 4, 4);
    train::RunCheckpoints other(rig.folder.path(), {.settings = {{"run.seed", "1"}}}, 3);
    CHECK_THROWS_WITH_AS(rig.resume(other), doctest::Contains("run.seed (now 1, then 0)"), Error);
    std::filesystem::resize_file(run.file(4), 10);
    auto again = rig.checkpoints(3);
    CHECK(input_error_text([&] { rig.resume(again); }) ==
          rig.folder.path().string() + ": all of its 1 checkpoints are unreadable");
    CHECK(rig.files().size() == 1);
    CHECK(input_error_text([&] {
            again.load_best(*rig.trainer, {.last = 8, .step = 8, .loss = 1});
          }).find("step-000008.safetensors") != std::string::npos);
  }
}
