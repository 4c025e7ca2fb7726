#include <doctest/doctest.h>

#include <csignal>
#include <fstream>

#include "eval/tool_testing.h"
#include "ffn/thresholds.h"
#include "io/json.h"

using namespace eval_testing;
using tandem::testing::Outcome;
namespace fs = std::filesystem;

namespace {

std::string prose() { return (source_dir() / "recipes/demo/lighthouse-logbook.txt").string(); }

struct Measurement {
  LogPath log;
  fs::path thresholds = log.folder / "t.json";
  std::vector<std::string> arguments = {"--task", "channels",
                                        "-s",     "run.context=256",
                                        "--data", prose(),
                                        "-s",     "eval.neurons.path=" + thresholds.string(),
                                        "-s",     "eval.neurons.keep=0.3",
                                        "-o",     log.path.string()};
  std::string file() const { return tandem::io::read_file(thresholds); }
};

void cut_last_line(const fs::path& path) {
  const std::string text = tandem::io::read_file(path);
  std::ofstream(path) << text.substr(0, text.size() - 20);
}

}  // namespace

TEST_SUITE("eval/tool of channels") {
  TEST_CASE("thresholds are measured, written once, and printed again by a resumed run") {
    const Measurement m;
    const Outcome o = run(m.arguments);
    REQUIRE(o.status == 0);
    CHECK(o.out.find(" % of activated gates over ") != std::string::npos);
    const std::string file = m.file();
    const auto t = tandem::ffn::parse_thresholds(file, "t.json");
    CHECK(t.keep == doctest::Approx(.3).epsilon(.002));
    CHECK(t.model == "tiny-2m");
    CHECK(run(with(m.arguments, {"--resume"})).out == o.out);
    CHECK(m.file() == file);
    // Another file in its place is not taken for it, and stays.
    std::ofstream(m.thresholds) << "mine\n";
    CHECK(run(with(m.arguments, {"--resume"})).status == 2);
    CHECK(m.file() == "mine\n");
    // Its file gone, the log has all that is in it.
    fs::remove(m.thresholds);
    CHECK(run(with(m.arguments, {"--resume"})).out == o.out);
    CHECK(m.file() == file);
    // A log that was torn before it measures again, and does not replace what it did not write.
    cut_last_line(m.log.path);
    const Outcome foreign = run(with(m.arguments, {"--resume"}));
    CHECK(foreign.status == 2);
    CHECK(foreign.err.find("t.json: the output file exists already") != std::string::npos);
    fs::remove(m.thresholds);
    CHECK(run(with(m.arguments, {"--resume"})).out == o.out);
    CHECK(m.file() == file);
  }

  TEST_CASE("an existing file of thresholds is replaced by --overwrite alone, and known before") {
    const Measurement m;
    std::ofstream(m.thresholds) << "mine\n";
    const Outcome refused = run(m.arguments);
    CHECK(refused.status == 2);
    CHECK(refused.err.find("--overwrite") != std::string::npos);
    CHECK_FALSE(fs::exists(m.log.path));
    CHECK(m.file() == "mine\n");
    const Outcome planned = run(with(m.arguments, {"--dry-run"}));
    CHECK(planned.status == 0);
    CHECK(planned.out.find("calibration") != std::string::npos);
    CHECK_FALSE(fs::exists(m.log.path));
    CHECK(run(with(m.arguments, {"--overwrite", "--format", "jsonl"})).status == 0);
    CHECK(m.file().find("ffn-thresholds/1") != std::string::npos);
  }

  TEST_CASE("a policy of the measured thresholds reads some of the channels, which costs some") {
    const Measurement m;
    REQUIRE(run(m.arguments).status == 0);
    const auto judged = [&](const std::string& sparse) {
      const Outcome o = run({"--task", "perplexity", "-s", "run.context=256", "--data", prose(),
                             "-s", "eval.scored=64", "-s", "eval.cases=3", "--format", "jsonl",
                             "-s", "eval.policies=[{name: some, sparse: " + sparse + "}]"});
      CAPTURE(o.err);
      REQUIRE(o.status == 0);
      const std::string last = o.out.substr(o.out.find('\n') + 1);
      return tandem::io::parse_json(last, "stdout").at("quality").at("kl_mean").get<double>();
    };
    const double by_number = judged("{kind: cats, keep: 0.3}"),
                 by_threshold =
                     judged("{kind: cats_threshold, thresholds: '" + m.thresholds.string() + "'}");
    CHECK(by_threshold > 0);
    // As many channels on the whole, divided over the steps otherwise.
    CHECK(by_threshold < 2 * by_number);
    CHECK(by_number < 4 * by_threshold);
  }

  TEST_CASE("an interrupted measurement leaves no file, and a resumed run measures") {
    const Measurement m;
    const std::string longer = (m.log.folder / "long.txt").string();
    {
      std::ofstream file(longer);
      for (int i = 0; i < 40; ++i) file << tandem::io::read_file(prose());
    }
    tandem::testing::Launch launch;
    launch.signal = SIGINT;
    launch.signal_when = [&] { return fs::exists(m.log.path); };
    const Outcome o = run(with(m.arguments, {"--data", longer}), launch);
    CHECK(o.status == 130);
    CHECK_FALSE(fs::exists(m.thresholds));
    CHECK(count(m.log.text(), "\n") == 1);  // its header
    CHECK(o.seconds < 30);
  }

  TEST_CASE("answers of rounds have Sirius' figures, also after a resume") {
    const LogPath log;
    const std::vector<std::string> arguments = {
        "-s",
        "model.compute=f32",
        "-s",
        "eval.tasks=[needle1, vt]",
        "-s",
        "eval.lengths=[300]",
        "-s",
        "eval.cases=2",
        "-s",
        "eval.scores=[generated]",
        "-s",
        "eval.protocols=[dense]",
        "-s",
        "eval.policies=[{name: alone, sparse: {kind: cats}}, {name: corrected, sparse: {kind: "
        "cats}, spec: {gamma: 3}}, {name: exact, sparse: {kind: griffin, refresh: 0.2}, spec: "
        "{gamma: 3, verify: match}}]",
        "-o",
        log.path.string()};
    const Outcome whole = run(arguments);
    CAPTURE(whole.err);
    REQUIRE(whole.status == 0);
    for (const char* column : {" AAL", " of k", " APU", " rollback", " lossy"})
      CHECK(whole.out.find(column) != std::string::npos);
    const auto line = [&](const std::string& name) {
      const size_t at = whole.out.find("\n" + name + " ");
      REQUIRE(at != std::string::npos);
      return whole.out.substr(at + 1, whole.out.find('\n', at + 1) - at - 1);
    };
    CHECK(line("corrected").find(" yes") != std::string::npos);
    CHECK(line("exact").find(" no") != std::string::npos);
    CHECK(line("alone").find(" no") == std::string::npos);
    cut_last_line(log.path);
    const Outcome resumed = run(with(arguments, {"--resume"}));
    CHECK(resumed.err.find("resuming after 3 cases") != std::string::npos);
    CHECK(resumed.out == whole.out);
    const Outcome planned = run(with(arguments, {"--overwrite", "--dry-run"}));
    CHECK(planned.status == 0);
    CHECK(planned.out.find("corrected") != std::string::npos);
    CHECK(log.text().size() > 0);
  }
}
