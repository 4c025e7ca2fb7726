// Runs with keys in host memory that cannot be, or are ended in their midst: one line with a
// remedy.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "cli/probe.h"
#include "tensor/cuda.h"

using namespace tandem::testing;

namespace {

using Variables = std::map<std::string, std::string>;

const std::string kDocument = tandem::test::source_dir() / "recipes/demo/lighthouse-logbook.txt";

/// A text of some thousand tokens, whose keys lie in host memory.
Launch launch_of(const std::string& policy, std::vector<std::string> flags,
                 Variables variables = {}) {
  Launch launch;
  launch.arguments = {
      "-r", "pig/" + policy + "-tiny-16m", "-s", "cache.place=host", "-f", kDocument, "-n", "40"};
  launch.arguments.insert(launch.arguments.end(), flags.begin(), flags.end());
  launch.variables = std::move(variables);
  return launch;
}

bool has_gpu() {
  if (tandem::cuda::device_count() > 0) return true;
  MESSAGE("skipped: " << tandem::cuda::why_none());
  return false;
}

/// One line says what went wrong, one what to do.
void check_fault(const Outcome& run, int status, const std::string& message,
                 const std::string& remedy) {
  CAPTURE(run.err);
  CHECK(run.status == status);
  const size_t at = run.err.find("pig-generate: error: ");
  REQUIRE(at != std::string::npos);
  const std::string fault = run.err.substr(at);
  CHECK(std::ranges::count(fault, '\n') == 2);
  CHECK(fault.find(message) < fault.find('\n'));
  const size_t hint = fault.find("\n  hint: ");
  REQUIRE(hint != std::string::npos);
  CHECK(fault.find(remedy, hint) != std::string::npos);
}

}  // namespace

TEST_SUITE("cli/hosted_faults") {
  TEST_CASE("no GPU: a run ends before it loads anything, with or without a checkpoint") {
    for (const std::string recipe :
         {"llama3-8b-96k-lsh", "llama3-8b-96k-hybrid", "lsh-tiny-16m", "hybrid-tiny-16m"}) {
      CAPTURE(recipe);
      Launch launch{
          .arguments = {"-r", "pig/" + recipe, "-s", "cache.place=host", "-p", "The first"}};
      launch.variables["CUDA_VISIBLE_DEVICES"] = "";
      const Outcome run = run_process(program("pig-generate"), launch);
      check_fault(run, 6, "cache.place: is host, which needs a GPU", "--dry-run");
      CHECK(run.out == "");
    }
  }

  TEST_CASE("host memory short: refused by a plan, and by a run before it takes any") {
    for (const std::string policy : {"lsh", "hybrid"}) {
      CAPTURE(policy);
      const std::string limit = "run.host_memory_limit=16MiB";
      const auto check = [](const Outcome& run) {
        check_fault(run, 5, "cpu: needs ", "raise run.host_memory_limit");
      };
      const Outcome plan = run_process(
          program("pig-generate"),
          launch_of(policy, {"-s", limit, "--dry-run"}, {{"CUDA_VISIBLE_DEVICES", ""}}));
      check(plan);
      CHECK(plan.out.find("does not fit") != std::string::npos);
      if (!has_gpu()) continue;
      const Outcome run = run_process(program("pig-generate"), launch_of(policy, {"-s", limit}));
      check(run);
      CHECK(run.out == "");
    }
  }

  TEST_CASE("a GPU that is lost at any moment ends the run") {
    if (!has_gpu()) return;
    for (const std::string policy : {"lsh", "hybrid"})
      for (const char* waits : {"0", "5", "20"}) {
        CAPTURE(policy);
        CAPTURE(waits);
        const Outcome run = run_process(program("pig-generate"),
                                        launch_of(policy, {}, {{"TANDEM_GPU_LOST", waits}}));
        check_fault(run, 6, "the GPU is lost", "nvidia-smi");
        CHECK(run.seconds < 60);
      }
  }

  TEST_CASE("Ctrl-C ends the run within 2 s") {
    if (!has_gpu()) return;
    for (const std::string policy : {"lsh", "hybrid"}) {
      CAPTURE(policy);
      Launch launch = launch_of(policy, {"-v"});
      launch.signal = SIGINT;
      launch.signal_after = "memory   cpu";  // what -v reports before the weights are made
      const Outcome run = run_process(program("pig-generate"), launch);
      CHECK(run.status == 130);
      CHECK(run.seconds < 2);
    }
  }

  TEST_CASE("one CPU thread, and more threads than cores, write the same text") {
    if (!has_gpu()) return;
    for (const std::string policy : {"lsh", "hybrid"}) {
      CAPTURE(policy);
      const std::vector<std::string> cpu = {"-s", "cache.attend=cpu", "-s", "model.compute=f32"};
      const Outcome usual = run_process(program("pig-generate"), launch_of(policy, cpu));
      REQUIRE(usual.status == 0);
      CHECK(usual.out.size() > 40);
      for (const char* threads : {"1", "64"}) {
        CAPTURE(threads);
        std::vector<std::string> flags = cpu;
        flags.insert(flags.end(), {"-t", threads});
        const Outcome run = run_process(program("pig-generate"), launch_of(policy, flags));
        CHECK(run.status == 0);
        CHECK(run.out == usual.out);
      }
    }
  }

  TEST_CASE("memory that the system does not pin: staged with a warning, or refused with advice") {
    if (!has_gpu()) return;
    const Variables refused = {{"TANDEM_PIN_LIMIT", "0"}};
    const Outcome staged =
        run_process(program("pig-generate"), launch_of("lsh", {"-s", "cache.attend=cpu"}, refused));
    CHECK(staged.status == 0);
    CHECK(staged.err.find(
              "warning: cache.place: keys in host memory, or their index, are not pinned") !=
          std::string::npos);
    const Outcome run = run_process(program("pig-generate"),
                                    launch_of("hybrid", {"-s", "cache.attend=gpu"}, refused));
    check_fault(run, 5, "the system refused", "set cache.attend cpu");
  }
}
