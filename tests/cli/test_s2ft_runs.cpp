#include <doctest/doctest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>

#include "base/clock.h"
#include "base/rng.h"
#include "cli/kept_limits.h"
#include "cli/probe.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "source_dir.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

constexpr size_t kCheckpointBytes = 28'000'000;  // about: three f32 of 2.36 M values

/// Runs of s2ft-train on 64 records, in folders of one folder.
struct Runs {
  TemporaryFolder folder;
  std::vector<std::string> settings;

  explicit Runs(std::vector<std::string> settings_of) : settings(std::move(settings_of)) {
    std::string records;
    for (int i = 0; i < 64; ++i)
      records += fmt::format("{{\"instruction\": \"Number {0}\", \"output\": \"{0} {0}\"}}\n", i);
    folder.write("train.jsonl", records);
  }
  std::filesystem::path file(const std::string& run, const std::string& name) const {
    return folder / run / name;
  }
  std::vector<std::string> arguments(const std::string& run,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"-m",           "tiny-2m",
                                    "--data",       (folder / "train.jsonl").string(),
                                    "-o",           (folder / run).string(),
                                    "--no-progress"};
    for (const std::string& setting : settings) all.insert(all.end(), {"-s", setting});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome train(const std::string& run, const std::vector<std::string>& more = {}) const {
    return run_process(program("s2ft-train"), {.arguments = arguments(run, more)});
  }
  /// A run, gone on with or not, that is killed once `when` holds, if it does before its end.
  Outcome kill_when(const std::string& run, const std::vector<std::string>& more,
                    const std::function<bool()>& when) const {
    return run_process(program("s2ft-train"),
                       {.arguments = arguments(run, more), .signal = SIGKILL, .signal_when = when});
  }
  /// One that is killed once it has written the line of a step.
  void kill_after(const std::string& run, int step, const std::vector<std::string>& more) const {
    const std::string line = fmt::format("{{\"step\":{},\"epoch\"", step);
    const Outcome killed = kill_when(run, more, [&] {
      return file_text(file(run, "metrics.jsonl")).find(line) != std::string::npos;
    });
    CAPTURE(killed.err);
    CHECK(killed.status == 128 + SIGKILL);
  }
  /// Whether a file of the run is being written.
  bool writes(const std::string& run) const {
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator(folder / run, gone))
      if (entry.path().filename().string().find(".tmp-") != std::string::npos) return true;
    return false;
  }
  std::string bytes(const std::string& run, const std::string& name) const {
    return tandem::io::read_file(file(run, name));
  }
  std::set<std::string> files(const std::string& run) const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder / run))
      names.insert(entry.path().filename().string());
    return names;
  }
  std::vector<Json> metrics(const std::string& run) const {
    std::vector<Json> lines = json_lines(bytes(run, "metrics.jsonl"));
    for (Json& line : lines) {
      line.erase("seconds");
      line.erase("tokens_per_s");
    }
    return lines;
  }
  void check_equal(const std::string& one, const std::string& other) const {
    CHECK(fmt::format("{}", fmt::join(files(one), " ")) ==
          fmt::format("{}", fmt::join(files(other), " ")));
    CHECK(metrics(one) == metrics(other));
    for (const std::string& name : files(one))
      if (name.starts_with("step-")) CHECK(bytes(one, name) == bytes(other, name));
    CHECK(bytes(one, "model/model.safetensors") == bytes(other, "model/model.safetensors"));
  }
};

std::string step_file(int64_t step) { return fmt::format("step-{:06}.safetensors", step); }

}  // namespace

TEST_SUITE("cli/s2ft-train runs") {
  TEST_CASE("the weights of the best validation are the result, also of a run that was killed") {
    // The rate rises until the loss does, too. In f32, in which the model is written without
    // rounding.
    const Runs runs({"data.template=plain", "data.val_size=8", "train.method=full",
                     "model.compute=f32", "train.steps=60", "train.batch=8",
                     "train.optimizer.lr=0.2", "train.schedule.warmup_steps=59", "eval.every=2",
                     "eval.patience=4", "train.save_every=3", "train.keep_checkpoints=2"});
    const Outcome whole = runs.train("whole");
    CAPTURE(whole.err);
    CAPTURE(whole.out);
    REQUIRE(whole.status == 0);
    std::vector<Json> validations = runs.metrics("whole");
    std::erase_if(validations, [](const Json& line) { return !line.contains("val_loss"); });
    REQUIRE(validations.size() >= 5);
    const auto best = std::ranges::min_element(
        validations, {}, [](const Json& line) { return line["val_loss"].get<double>(); });
    CHECK(validations.end() - best == 5);  // four in a row without a better one
    const int64_t step = (*best)["step"], last = validations.back()["step"];
    CHECK(last < 60);
    CHECK(validations.back()["best_step"] == step);
    CHECK(validations.back()["best_val_loss"] == (*best)["val_loss"]);
    CHECK(whole.out.find(fmt::format("trained  {} steps of 60: 4 validations in a row", last)) ==
          0);
    CHECK(whole.out.find(
              fmt::format("\nbest     step {}, validation {:.4f} (the result has its weights)",
                          step, (*best)["val_loss"].get<double>())) != std::string::npos);
    // The last two, and the best.
    CHECK(runs.files("whole").size() == 5);
    CHECK(runs.files("whole").contains(step_file(step)));
    CHECK(runs.files("whole").contains(step_file(last)));

    runs.kill_after("killed", 3, {});
    runs.kill_after("killed", static_cast<int>(step), {"--resume"});
    runs.kill_after("killed", static_cast<int>(last) - 3, {"--resume"});
    const Outcome resumed = runs.train("killed", {"--resume"});
    CAPTURE(resumed.err);
    CHECK(resumed.status == 0);
    runs.check_equal("whole", "killed");
    // A run that is over stays so, and its model can be written again.
    std::filesystem::remove_all(runs.file("killed", "model"));
    const Outcome over = runs.train("killed", {"--resume"});
    CHECK(over.out.find(fmt::format("trained  {} steps of 60: 4 validations", last)) == 0);
    CHECK(over.out.find("all in earlier runs\n") != std::string::npos);
    runs.check_equal("whole", "killed");

    // A step of rate 0 from the model validates it.
    const Outcome check =
        runs.train("check", {"-m", runs.file("whole", "model").string(), "-s", "train.steps=1",
                             "-s", "train.optimizer.lr=0", "-s", "train.schedule.warmup_steps=0",
                             "-s", "eval.every=1"});
    CAPTURE(check.err);
    REQUIRE(check.status == 0);
    CHECK(runs.metrics("check").back()["val_loss"] == (*best)["val_loss"]);
  }

  TEST_CASE("killed at twenty moments, the half of them in writes, a run ends with the same bits") {
    const Runs runs({"data.template=plain", "data.val_size=8", "train.method=full",
                     "train.steps=60", "train.batch=4", "train.save_every=3",
                     "train.keep_checkpoints=2", "train.optimizer.lr=2e-3", "eval.every=5"});
    REQUIRE(runs.train("whole").status == 0);
    tandem::PhiloxStream draw(11);
    int kills = 0, in_writes = 0, run_number = 1;
    const auto name = [&] { return fmt::format("killed-{}", run_number); };
    for (int i = 0; kills < 20; ++i) {
      REQUIRE(i < 60);
      const double after = draw.below(600) * 1e-3;
      const bool in_write = i % 2 == 1;
      const tandem::Stopwatch clock;
      bool wrote = false;
      const Outcome run = runs.kill_when(name(), {"--resume"}, [&] {
        if (clock.seconds() < after) return false;
        return !in_write || (wrote = runs.writes(name()));
      });
      CAPTURE(run.err);
      CAPTURE(i);
      if (run.status == 128 + SIGKILL) {
        ++kills;
        in_writes += wrote;
      } else {  // it was at its end before
        REQUIRE(run.status == 0);
        runs.check_equal("whole", name());
        ++run_number;
      }
    }
    CHECK(in_writes >= 5);
    const Outcome last = runs.train(name(), {"--resume"});
    CAPTURE(last.err);
    CHECK(last.status == 0);
    runs.check_equal("whole", name());
    for (const char* part : {"", "/model"})
      CHECK(runs.files(name() + part) == runs.files(std::string("whole") + part));
    MESSAGE(run_number << " runs, " << in_writes << " kills in writes");
  }

  TEST_CASE("a torn checkpoint is named in one line, and the one before it goes on") {
    const Runs runs({"data.template=plain", "train.method=full", "train.steps=24", "train.batch=8",
                     "train.save_every=3"});
    REQUIRE(runs.train("whole").status == 0);
    CHECK(runs.files("whole") == std::set<std::string>{"metrics.jsonl", "model", step_file(18),
                                                       step_file(21), step_file(24)});
    runs.kill_after("torn", 10, {});
    const auto first_loss = [&](const char* run) {
      return fmt::format("loss {:.4f} to ", runs.metrics(run).front()["loss"].get<double>());
    };
    std::vector<std::string> kept;
    for (const std::string& name : runs.files("torn"))
      if (name.starts_with("step-") && name.ends_with(".safetensors")) kept.push_back(name);
    REQUIRE(kept.size() >= 3);
    std::filesystem::resize_file(runs.file("torn", kept.back()), 1'000'000);
    const Outcome resumed = runs.train("torn", {"--resume"});
    CAPTURE(resumed.err);
    CHECK(resumed.status == 0);
    // It counts from the first step of the run, not of this process.
    CHECK(resumed.out.find(first_loss("whole")) != std::string::npos);
    CHECK(resumed.err.find("s2ft-train: warning: " + runs.file("torn", kept.back()).string() +
                           ": truncated") != std::string::npos);
    CHECK(resumed.err.find(". Trying an older checkpoint\n") != std::string::npos);
    runs.check_equal("whole", "torn");

    for (const int step : {18, 21, 24})
      std::filesystem::resize_file(runs.file("torn", step_file(step)), 1000);
    const Outcome none = runs.train("torn", {"--resume"});
    CHECK(none.status == 4);
    CHECK(none.err.find(
              "all of its 3 checkpoints are unreadable\n  hint: begin again with --overwrite") !=
          std::string::npos);
    CHECK(runs.train("torn").status == 2);
    CHECK(runs.train("torn", {"--overwrite"}).status == 0);
    runs.check_equal("whole", "torn");
  }

  TEST_CASE("--resume leaves a metrics.jsonl alone that no run has written") {
    const Runs runs({"data.template=plain", "train.steps=1"});
    for (const std::string text : {"{\"text\": \"mine\"}\n", "my only notes"}) {
      std::filesystem::create_directories(runs.file("foreign", ""));
      std::ofstream(runs.file("foreign", "metrics.jsonl")) << text;
      const Outcome run = runs.train("foreign", {"--resume"});
      CAPTURE(run.err);
      CHECK(run.status == 4);
      CHECK(run.err.find("metrics.jsonl") != std::string::npos);
      CHECK(file_text(runs.file("foreign", "metrics.jsonl")) == text);
    }
  }

  TEST_CASE("a disk that fills up leaves the last checkpoint whole") {
    const Runs runs({"data.template=plain", "train.method=full", "train.steps=24", "train.batch=8",
                     "train.save_every=3"});
    REQUIRE(runs.train("whole").status == 0);
    runs.kill_after("full", 4, {});
    const std::set<std::string> before = runs.files("full");
    REQUIRE(before.contains(step_file(3)));
    const std::string checkpoint = runs.bytes("full", step_file(3));
    CHECK(checkpoint.size() > kCheckpointBytes);
    // The limit on file size stands for a full disk.
    std::string command = fmt::format("trap '' XFSZ; ulimit -f 10000; {}", program("s2ft-train"));
    for (const std::string& argument : runs.arguments("full", {"--resume"}))
      command += fmt::format(" '{}'", argument);
    const Outcome failed = run_shell(command);
    CAPTURE(failed.err);
    CHECK(failed.status == 4);
    CHECK(failed.err.find(": cannot write after ") != std::string::npos);
    CHECK(failed.err.find("is intact)\n") != std::string::npos);
    CHECK(runs.bytes("full", step_file(3)) == checkpoint);
    for (const std::string& name : runs.files("full"))
      CHECK(name.find(".tmp-") == std::string::npos);
    const Outcome resumed = runs.train("full", {"--resume"});
    CAPTURE(resumed.err);
    CHECK(resumed.status == 0);
    runs.check_equal("whole", "full");
  }

  TEST_CASE("before the first step a run says what it does") {
    const Runs runs({"data.template=plain", "train.steps=3", "train.batch=8",
                     "train.select.ratios={o: 0.25, d: 0.1}"});
    const TemporaryFolder cache;
    const auto variables =
        std::map<std::string, std::string>{{"TANDEM_CACHE_DIR", cache.path().string()}};
    const Outcome run = run_process(program("s2ft-train"),
                                    {.arguments = runs.arguments("a"), .variables = variables});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    CHECK(run.err.find(
              "train    s2ft  31872 of 2360256 values\nwork     3 steps, 0.4 epochs  about ") == 0);
    // No figure of speed without a measured one to compare it with.
    CHECK_FALSE(has(run.out, "\nrate "));
    // A run that beats the measured speed raises it.
    const auto limits = cache / "ceilings.json";
    write_limits(limits, 1e6, 1e-3);
    const std::string before = file_text(limits);
    const Outcome faster = run_process(program("s2ft-train"),
                                       {.arguments = runs.arguments("b"), .variables = variables});
    CHECK(has(faster.out, " GFLOP/s, 100 % of the measured "));
    CHECK(file_text(limits) != before);
    const Json plan = Json::parse(runs.train("a", {"--dry-run", "--json"}).out);
    CHECK(plan["tflop"].get<double>() > 0);
  }

  TEST_CASE("a run finds its learning rate, learns, and keeps the rate when it is gone on with") {
    const Runs runs({"data.template=plain", "train.steps=40", "train.batch=16",
                     "train.save_every=4", "train.select.ratios={o: 0.34, d: 0.1}"});
    const Outcome whole = runs.train("whole");
    CAPTURE(whole.err);
    REQUIRE(whole.status == 0);
    const std::vector<Json> lines = runs.metrics("whole");
    const Json test = lines[0]["range_test"];
    const double rate = test["lr"];
    CHECK(has(whole.err, fmt::format("\nlr       {} from a range test  loss ", rate)));
    CHECK(lines[0]["step"] == 0);
    REQUIRE(test["tried"].size() >= 2);
    CHECK(std::ranges::any_of(test["tried"], [&](const Json& t) { return t["lr"] == rate; }));
    CHECK(std::ranges::any_of(lines, [&](const Json& l) { return l.value("lr", 0.0) == rate; }));
    CHECK(lines.back()["loss"].get<double>() < 0.7 * test["start_loss"].get<double>());

    const Outcome given = runs.train("given", {"-s", fmt::format("train.optimizer.lr={}", rate)});
    CHECK(given.status == 0);
    CHECK(runs.metrics("given") == std::vector<Json>(lines.begin() + 1, lines.end()));
    for (const char* file : {"model/model.safetensors", "adapter/s2ft_adapter.safetensors"})
      CHECK(runs.bytes("whole", file) == runs.bytes("given", file));

    runs.kill_after("killed", 9, {});
    const Outcome resumed = runs.train("killed", {"--resume"});
    CAPTURE(resumed.err);
    CHECK(resumed.status == 0);
    CHECK_FALSE(has(resumed.err, "range test"));
    runs.check_equal("whole", "killed");
    const Outcome other = runs.train("killed", {"--resume", "-s", "train.optimizer.lr=1e-5"});
    CHECK(other.status == 2);
    CHECK(has(other.err, "train.optimizer.lr (now 1e-05, then "));
  }

  TEST_CASE("a range test on weights that are not finite ends in an error, before any step") {
    const Runs runs({"data.template=plain", "train.steps=4", "train.batch=8"});
    const auto broken = runs.folder / "broken";
    std::filesystem::copy(tandem::test::source_dir() / "recipes/models/tiny-2m", broken);
    const auto weights = broken / "model.safetensors";
    std::string bytes = tandem::io::read_file(weights);
    std::fill(bytes.end() - 200'000, bytes.end(), '\xff');  // NaN in any type
    std::filesystem::remove(weights);
    std::ofstream(weights, std::ios::binary) << bytes;
    const Outcome run = runs.train("run", {"-m", broken.string()});
    CAPTURE(run.err);
    CHECK(run.status == 7);
    CHECK(has(run.err,
              "train.optimizer.lr: auto: expected a finite loss of the first batches, found "));
    CHECK(!std::filesystem::exists(runs.file("run", "model")));
  }

  TEST_CASE("a share of less than a unit a layer is noted, and what would give each layer one") {
    const Runs runs({"data.template=plain", "train.steps=1", "train.optimizer.lr=1e-3"});
    const std::string says = " layers train none. A ratio of ";
    const std::vector<std::string> few = {"-s", "train.select.ratios={o: 0.1, d: 0.1}"};
    const Outcome run = runs.train("few", few);
    CAPTURE(run.err);
    CHECK(has(run.err, "\nuneven   train.select.ratios.o: 0.1 of "));
    const size_t at = run.err.find(says);
    REQUIRE(at != std::string::npos);
    const std::string enough =
        run.err.substr(at + says.size(), run.err.find(' ', at + says.size()) - at - says.size());
    const Outcome even =
        runs.train("even", {"-s", fmt::format("train.select.ratios={{o: {}, d: 0.1}}", enough)});
    CHECK(even.status == 0);
    CHECK_FALSE(has(even.err, says));
    CHECK(has(runs.train("few", {few[0], few[1], "--dry-run"}).out, says));
    CHECK_FALSE(has(runs.train("lora", {"-s", "train.method=lora", "--dry-run"}).out, says));
  }

  TEST_CASE("the commands that a run ends with work as they stand") {
    const Runs runs({"data.template=plain", "train.steps=2", "train.optimizer.lr=1e-3"});
    for (const char* method : {"s2ft", "lora"}) {
      CAPTURE(method);
      const std::string name =
          fmt::format("a run's {}", method);  // that a shell must be given quoted
      const Outcome run = runs.train(name, {"-s", fmt::format("train.method={}", method)});
      CAPTURE(run.out);
      REQUIRE(run.status == 0);
      int n = 0;
      for (size_t at = 0; (at = run.out.find("next     ", at)) != std::string::npos; ++n) {
        at += std::string_view("next     ").size();
        const size_t space = run.out.find(' ', at), end = run.out.find('\n', at);
        const Outcome next =
            run_shell(program(run.out.substr(at, space - at)) + run.out.substr(space, end - space));
        CAPTURE(next.err);
        CHECK(next.status == 0);
      }
      CHECK(n == (std::string_view(method) == "s2ft" ? 2 : 1));
      // The prompt is that of the first record, as the template writes it.
      CHECK(has(run.out, "model/prompt.txt"));
      CHECK(file_text(runs.folder / name / "model/prompt.txt").ends_with("\n"));
    }
    CHECK(std::filesystem::exists(runs.folder / "a run's s2ft-peft/adapter_config.json"));
  }

  TEST_CASE("a loss that rises is warned about") {
    const Runs runs({"data.template=plain", "train.steps=6"});
    const std::string says = "warning: the loss rose from ";
    CHECK(has(runs.train("high", {"-s", "train.optimizer.lr=1e6"}).err, says));
    CHECK_FALSE(has(runs.train("low", {"-s", "train.optimizer.lr=1e-4"}).err, says));
  }

  TEST_CASE("train.log: tensorboard writes an event file a process, of steps and validations") {
    const Runs runs({"data.template=plain", "train.steps=6", "train.batch=8", "data.val_size=8",
                     "train.save_every=2", "train.optimizer.lr=1e-3", "train.log=tensorboard"});
    const auto events = [&] {
      std::vector<std::string> all;
      for (const std::string& file : runs.files("run"))
        if (file.starts_with("events.out.tfevents.")) all.push_back(runs.bytes("run", file));
      return all;
    };
    REQUIRE(runs.train("run").status == 0);
    REQUIRE(events().size() == 1);
    for (const char* tag : {"train/loss", "train/lr", "train/gradient_norm", "validation/val_loss"})
      CHECK(has(events()[0], tag));
    CHECK(runs.train("run", {"--overwrite", "-s", "train.log=jsonl"}).status == 0);
    CHECK(events().empty());
    CHECK(runs.train("run", {"--resume", "-s", "train.log=tensorboard"}).status == 0);
    CHECK(events().size() == 1);
  }

  TEST_CASE("a run leaves out what other adapters hold: said, planned, compared by --resume") {
    const Runs runs({"data.template=plain", "train.steps=2", "train.batch=8",
                     "train.select.ratios={o: 0.25, d: 0.4}"});
    REQUIRE(runs.train("first").status == 0);
    const auto excluding = [&](const std::string& names) {
      return std::vector<std::string>{"-s", "train.select.exclude=[" + names + "]"};
    };
    const std::string first = (runs.folder / "first").string();
    const auto plan = [&](const std::string& names) {
      std::vector<std::string> more = excluding(names);
      more.push_back("--dry-run");
      return runs.train("second", more);
    };
    const Outcome planned = plan(first);
    CAPTURE(planned.err);
    CHECK(planned.status == 0);
    CHECK(planned.out.find("\nexclude  o ") != std::string::npos);
    CHECK(planned.out.find(" of 1 adapter left out of the selection\n") != std::string::npos);
    const Outcome second = runs.train("second", excluding(first));
    CAPTURE(second.err);
    REQUIRE(second.status == 0);
    std::set<std::string> held;
    size_t n = 0;
    for (const char* run : {"first", "second"}) {
      const auto file =
          tandem::io::Safetensors::open(runs.file(run, "adapter/s2ft_adapter.safetensors"));
      for (const auto& entry : file.entries()) {
        if (!entry.name.ends_with(".index")) continue;
        const auto bytes = file.tensor(entry).bytes;
        for (size_t i = 0; i < bytes.size(); i += sizeof(int32_t), ++n) {
          int32_t index = 0;
          std::memcpy(&index, bytes.data() + i, sizeof index);
          held.insert(fmt::format("{} {}", entry.name, index));
        }
      }
    }
    CHECK(n > 0);
    CHECK(held.size() == n);  // no feature twice

    const Outcome third = plan(first + ", " + (runs.folder / "second").string());
    CHECK(third.status == 3);
    CHECK(third.err.find("train.select.exclude: leaves ") != std::string::npos);
    CHECK(third.err.find(" units of d in layer 0, ") != std::string::npos);
    const Outcome other = runs.train("second", {"--resume"});
    CHECK(other.status == 2);
    CHECK(other.err.find("train.select.exclude (now none, then ") != std::string::npos);
    // By contents, not by name.
    std::filesystem::rename(runs.folder / "first", runs.folder / "moved");
    std::vector<std::string> moved = excluding((runs.folder / "moved" / "adapter").string());
    moved.insert(moved.end(), {"--resume", "--device", "cpu"});  // auto before
    CHECK(runs.train("second", moved).status == 0);
  }
}
