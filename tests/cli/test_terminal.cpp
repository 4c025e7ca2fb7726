#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include "cli/terminal.h"
#include "cli/window.h"

using namespace tandem::testing;
using tandem::cli::fitted;

namespace {

size_t widest(const std::vector<std::string>& lines) {
  return std::ranges::max(lines, {}, &std::string::size).size();
}

const std::string kFinishing = "interrupted, finishing the current step (press again to abort)";

}  // namespace

TEST_SUITE("cli/terminal") {
  TEST_CASE("a progress line loses rates, the last of them first, then details, then its end") {
    const std::vector<std::string> parts = {"training  10% 73/732 steps",
                                            "loss 0.1234 (validation 0.1238)", "4.1k tok/s",
                                            "2.1 steps/s", "ETA 5m14s"};
    const std::string head = parts[0] + "  " + parts[1], end = "  " + parts[4];
    const std::string whole = head + "  4.1k tok/s  2.1 steps/s" + end;
    const std::string one_rate = head + "  4.1k tok/s" + end;
    CHECK(fitted(parts, whole.size()) == whole);
    CHECK(fitted(parts, whole.size() - 1) == one_rate);
    CHECK(fitted(parts, one_rate.size() - 1) == head + end);
    CHECK(fitted(parts, (head + end).size() - 1) == parts[0] + end);
    CHECK(fitted(parts, parts[0].size() + end.size() - 1) == parts[0]);
    CHECK(fitted(parts, 8) == "training");
    CHECK(fitted({"m\u00fcller ..."}, 2) == "m");
    CHECK(fitted(parts, 0).empty());
  }

  TEST_CASE("progress fits the window, and leaves nothing behind when that is resized") {
    for (const size_t columns : {80, 40, 12}) {
      CAPTURE(columns);
      const Session run = run_in_window(columns, "cli_probe", {"-m", "tiny-2m", "--poll"},
                                        {{.after = "waiting   ", .type = kCtrlC}});
      CHECK(run.status == 130);
      CHECK(run.screen.n_broken() == 0);
      CHECK((run.bytes.find("ticks/s") != std::string::npos) == (columns == 80));
      CHECK((run.bytes.find("ETA ") != std::string::npos) == (columns >= 40));
    }
    const Session resized = run_in_window(80, "cli_probe", {"-m", "tiny-2m", "--poll"},
                                          {{.after = "/100 ticks", .columns = 20},
                                           {.after = "/100", .columns = 60},
                                           {.after = "ETA", .columns = 15},
                                           {.after = "waiting  ", .type = kCtrlC}});
    CHECK(resized.screen.lines() == std::vector<std::string>{"line 0 seed 0 stop []", "waiting",
                                                             kFinishing,
                                                             "cli-probe: error: interrupted", ""});
  }

  TEST_CASE("help and the keys of recipes wrap to the window") {
    for (const size_t columns : {80, 40}) {
      CAPTURE(columns);
      for (const char* flag : {"--help", "--help-recipe"}) {
        const Session help = run_in_window(columns, "cli_probe", {flag});
        CHECK(help.status == 0);
        CHECK(widest(help.screen.lines()) <= columns);
        CHECK(widest(help.screen.lines()) > columns - 10);
      }
      CHECK(widest(run_in_window(columns, "cli_probe", {}).screen.lines()) <= columns);
    }
    CHECK(widest(run_in_window(200, "cli_probe", {"--help"}).screen.lines()) <= 100);
    for (const char* tool : {"pig-generate", "sequoia-generate", "s2ft-train", "magicdec-bench"})
      for (const char* flag : {"--help-recipe", "--list-recipes"})
        CHECK(widest(run_in_window(80, tool, {flag}).screen.lines()) <= 80);
    CHECK(run_in_window(80, "cli_probe", {"--help-recipe=cache"}).screen.lines() ==
          std::vector<std::string>{"cache.kind  full | streaming, default full",
                                   "    which keys attention reads",
                                   "cache.sinks  count, default 4, >= 0 tokens",
                                   "    first tokens that are always read", ""});
  }

  TEST_CASE("a summary wraps to the window between words, and is whole off a terminal") {
    const std::vector<std::string> call = {"-m", "tiny-2m", "-t",       "1",  "--temp",
                                           "0",  "-p",      "The lamp", "-n", "4"};
    const std::string continued(9, ' ');
    for (const size_t columns : {40, 60}) {
      CAPTURE(columns);
      const std::vector<std::string> lines =
          run_in_window(columns, "pig-generate", call).screen.lines();
      CHECK(widest(lines) <= columns);
      std::string text;
      for (const std::string& line : lines)
        text += line.starts_with(continued) ? " " + line.substr(continued.size()) : "\n" + line;
      CAPTURE(text);
      CHECK(std::ranges::any_of(lines, [&](const auto& l) { return l.starts_with(continued); }));
      for (const char* part : {"\ndevice   cpu", "\nprefill  ", " read per token, ", ", planned "})
        CHECK(has(text, part));
    }
    CHECK_FALSE(has(run_process(program("pig-generate"), {.arguments = call}).err, continued));
  }

  TEST_CASE("Ctrl-C in the middle of text: a new line, what was done, then the message") {
    const Session run = run_in_window(80, "pig-generate",
                                      {"-m", "tiny-2m", "-t", "1", "-p", "The lamp", "-n", "16000"},
                                      {{.after = " little more than", .type = kCtrlC}});
    CAPTURE(run.bytes);
    CHECK(run.status == 130);
    const std::vector<std::string>& lines = run.screen.lines();
    const auto at = [&](const std::string& begin) {
      return std::ranges::find_if(lines, [&](const auto& l) { return l.starts_with(begin); });
    };
    REQUIRE(at(kFinishing) != lines.end());
    CHECK(at(" was a little more") < at(kFinishing));  // the first token is there
    CHECK(at(kFinishing) < at("device   cpu"));
    REQUIRE(at("decode   ") != lines.end());
    CHECK(std::stoi(at("decode   ")->substr(9)) > 0);
    REQUIRE(lines.size() > 2);
    CHECK(lines.end()[-2] == "pig-generate: error: interrupted");
    CHECK(at("decode   ") < at("memory   peak"));
    CHECK(at("memory   peak") == lines.end() - 3);
  }

  TEST_CASE("messages begin a line of their own where the result shows too") {
    const std::vector<std::string> lines = {"half", "cli-probe: warning: between", "other half",
                                            "cli-probe: error: layer 3: non-finite value", ""};
    CHECK(run_in_window(80, "cli_probe", {"-m", "tiny-2m", "--fail", "line"}).screen.lines() ==
          lines);
    CHECK(run_shell(program("cli_probe") + " -m tiny-2m --fail line 2>&1").out ==
          fmt::format("{}", fmt::join(lines, "\n")));
    CHECK(probe_model({"--fail", "line"}).out == "halfother half");
  }

  TEST_CASE("the summary follows the whole answer, on one pipe and past one") {
    const std::string call = program("pig-generate") + " -m tiny-2m -t 1 -p 'The lamp' -n 30 ";
    const std::string answer = run_shell(call + "-q").out;
    REQUIRE(answer.ends_with("\n"));
    const auto follows = [&](const Outcome& run) {
      CAPTURE(run.out);
      CHECK(has(run.out, answer + "device   cpu"));
    };
    follows(run_shell(call + "2>&1 | tee /dev/null"));
    // As in a script whose output goes to a log.
    const TemporaryFolder folder;
    const std::string log = (folder / "log").string();
    const std::string slow = "{ head -c 1; sleep .03; cat; }";
    for (const std::string& reader : {std::string("tee /dev/null"), slow}) {
      // The tool waits for the reader, but a busy machine may delay the reader for longer.
      bool follows_once = false;
      for (int run = 0; run < 5 && !follows_once; ++run)
        follows_once =
            has(run_shell("( " + call + "| " + reader + " ) > " + log + " 2>&1; cat " + log).out,
                answer + "device   cpu");
      CHECK_MESSAGE(follows_once, reader);
    }
  }
}
