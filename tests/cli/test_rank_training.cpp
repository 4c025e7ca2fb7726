// Ranks that train one model together.
#include <algorithm>
#include <csignal>

#include "cli/rank_runs.h"

using namespace tandem::testing;

namespace {

/// Records whose answers a tiny model can learn.
std::filesystem::path write_records(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 24; ++i)
    text += fmt::format("{{\"instruction\": \"Count to {}\", \"output\": \"{} lamps are lit\"}}\n",
                        i, i);
  return folder.write("train.jsonl", text);
}

Words training(const std::filesystem::path& data, const std::filesystem::path& run,
               const Words& more = {}) {
  return Words{"-m",       "tiny-2m",
               "--data",   data.string(),
               "-o",       run.string(),
               "--device", "cpu",
               "-s",       "run.threads=1",
               "-s",       "model.compute=f32",
               "-s",       "train.steps=6",
               "-s",       "train.optimizer.lr=2e-4",
               "-s",       "train.batch=8",
               "-s",       "train.micro_tokens=64",
               "-s",       "train.max_tokens=64",
               "-s",       "train.save_every=2",
               "-s",       "train.keep_checkpoints=9"} +
         more;
}

/// Losses of the steps, and their gradients' norms.
std::vector<std::pair<double, double>> steps_of(const std::filesystem::path& run) {
  std::vector<std::pair<double, double>> all;
  for (const auto& line : json_lines(file_text(run / "metrics.jsonl")))
    if (line.contains("gradient_norm"))
      all.emplace_back(line["loss"].get<double>(), line["gradient_norm"].get<double>());
  return all;
}

}  // namespace

TEST_SUITE("cli/rank_training") {
  TEST_CASE("two and three ranks make the steps of one, and go on from its checkpoints") {
    const TemporaryFolder folder;
    const auto data = write_records(folder);
    const Outcome one =
        run_process(program("s2ft-train"), {.arguments = training(data, folder / "one")});
    REQUIRE(one.status == 0);
    const auto want = steps_of(folder / "one");
    REQUIRE(want.size() == 6);
    for (const int size : {2, 3}) {
      CAPTURE(size);
      const auto run = folder / ("of" + std::to_string(size));
      const auto all = run_ranks(size, training(data, run), {.tool = "s2ft-train"});
      for (const Outcome& o : all) {
        CAPTURE(o.err);
        REQUIRE(o.status == 0);
      }
      const auto got = steps_of(run);
      REQUIRE(got.size() == want.size());
      CHECK(got[0].first == doctest::Approx(want[0].first).epsilon(1e-6));
      for (size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].first == doctest::Approx(want[i].first).epsilon(1e-4));
        CHECK(got[i].second == doctest::Approx(want[i].second).epsilon(1e-3));
      }
      // The same again, to the bit.
      const auto again = folder / ("again" + std::to_string(size));
      run_ranks(size, training(data, again), {.tool = "s2ft-train"});
      CHECK(file_text(again / "step-000006.safetensors") ==
            file_text(run / "step-000006.safetensors"));
      // Gone on with after a part of it: as if it had not been cut.
      const auto cut = folder / ("cut" + std::to_string(size));
      std::filesystem::create_directories(cut);
      for (const char* file : {"step-000002.safetensors", "metrics.jsonl"})
        std::filesystem::copy_file(run / file, cut / file);
      const auto resumed =
          run_ranks(size, training(data, cut, {"--resume"}), {.tool = "s2ft-train"});
      CHECK(resumed[0].status == 0);
      CHECK(file_text(cut / "step-000006.safetensors") ==
            file_text(run / "step-000006.safetensors"));
    }
  }

  TEST_CASE("a range test of two ranks chooses the rate of one, with the bits of that rate given") {
    const TemporaryFolder folder;
    const auto data = write_records(folder);
    const Words chosen = {"-s", "train.optimizer.lr=auto"};
    const auto run = [&](const char* name, int size, const Words& more) {
      const Words words = training(data, folder / name, more);
      for (const Outcome& o :
           size == 1 ? std::vector{run_process(program("s2ft-train"), {.arguments = words})}
                     : run_ranks(size, words, {.tool = "s2ft-train"})) {
        CAPTURE(o.err);
        REQUIRE(o.status == 0);
      }
      return json_lines(file_text(folder / name / "metrics.jsonl"));
    };
    const double rate = run("two", 2, chosen)[0]["range_test"]["lr"];
    CHECK(run("one", 1, chosen)[0]["range_test"]["lr"] == rate);
    run("given", 2, {"-s", fmt::format("train.optimizer.lr={}", rate)});
    CHECK(file_text(folder / "two/model/model.safetensors") ==
          file_text(folder / "given/model/model.safetensors"));
  }

  TEST_CASE("a rank without a micro-batch waits, and makes the step all the same") {
    const TemporaryFolder folder;
    const auto data = write_records(folder);
    const Words few = {"-s", "train.batch=1", "-s", "train.steps=3"};
    const Outcome one =
        run_process(program("s2ft-train"), {.arguments = training(data, folder / "one", few)});
    REQUIRE(one.status == 0);
    const auto all = run_ranks(2, training(data, folder / "two", few), {.tool = "s2ft-train"});
    CHECK(all[0].status == 0);
    CHECK(has(all[0].err, "the first step has 1 micro-batch for 2 ranks"));
    CHECK(steps_of(folder / "two") == steps_of(folder / "one"));
  }

  TEST_CASE(
      "a signal to a rank ends all at one step, which is saved, though one has no part in it") {
    const Words few = {"-s", "train.batch=1",          "-s", "train.steps=100000",
                       "-s", "train.save_every=100000"};
    for (const int asked : {0, 1}) {
      CAPTURE(asked);
      const TemporaryFolder folder;
      const auto data = write_records(folder);
      const auto run = folder / "run";
      const auto all = run_ranks(2, training(data, run, few),
                                 {.change =
                                      [&](int r, Launch& launch) {
                                        if (r != asked) return;
                                        launch.signal = SIGINT;
                                        launch.signal_when = [&] {
                                          const auto metrics = run / "metrics.jsonl";
                                          return std::filesystem::exists(metrics) &&
                                                 std::ranges::count(file_text(metrics), '\n') > 3;
                                        };
                                      },
                                  .tool = "s2ft-train"});
      CAPTURE(all[0].err);
      CHECK(all[0].status == 130);
      CHECK(all[1].status == 130);
      const auto last = fmt::format("step-{:06}.safetensors", steps_of(run).size());
      CHECK(std::filesystem::exists(run / last));
    }
  }

  TEST_CASE("a rank that is killed ends the run, which goes on to the same bits") {
    const TemporaryFolder folder;
    const auto data = write_records(folder);
    const Words many = {"-s", "train.steps=60", "-s", "train.save_every=5"};
    const auto last = [&](const char* run) { return folder / run / "step-000060.safetensors"; };
    run_ranks(2, training(data, folder / "whole", many), {.tool = "s2ft-train"});
    REQUIRE(std::filesystem::exists(last("whole")));
    const auto killed = run_ranks(
        2, training(data, folder / "killed", many),
        {.change =
             [&](int r, Launch& launch) {
               if (r != 1) return;
               launch.signal = SIGKILL;
               launch.signal_when = [&] {
                 return std::filesystem::exists(folder / "killed" / "step-000010.safetensors");
               };
             },
         .tool = "s2ft-train"});
    CHECK(killed[0].status == 6);
    CHECK(has(killed[0].err, "exited without an error message"));
    CHECK_FALSE(std::filesystem::exists(last("killed")));
    const auto resumed = run_ranks(2, training(data, folder / "killed", many + Words{"--resume"}),
                                   {.tool = "s2ft-train"});
    CHECK(resumed[0].status == 0);
    CHECK(has(resumed[0].err, "resuming after step "));
    CHECK(file_text(last("killed")) == file_text(last("whole")));
  }
}
