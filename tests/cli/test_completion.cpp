#include <doctest/doctest.h>

#include <fmt/ranges.h>

#include "cli/probe.h"

using namespace tandem::testing;

namespace {

const std::vector<std::string> kTools = {
    "kernel-bench",       "magicdec-acceptance", "magicdec-bench",   "pig-bench",
    "pig-eval",           "pig-generate",        "s2ft-adapter",     "s2ft-train",
    "sequoia-acceptance", "sequoia-bench",       "sequoia-generate", "sequoia-tree-search",
    "sirius-generate",    "spec-check",          "triforce-generate"};

Outcome ask(const std::string& tool, const std::vector<std::string>& arguments) {
  return run_process(program(tool), {.arguments = arguments});
}

/// Returns the words that bash offers for the last one given; bash splits words at = and :.
std::string offered(const std::string& tool, const std::vector<std::string>& words) {
  std::string name = "_" + tool;
  std::ranges::replace(name, '-', '_');
  const std::string path = program(tool);
  const Outcome run = run_process(
      "/bin/bash",
      {.arguments = {"-c", fmt::format("source <('{}' --completion bash)\n"
                                       "COMP_WORDS=('{}' '{}')\nCOMP_CWORD={}\n{}\n"
                                       "echo \"${{COMPREPLY[*]}}\"",
                                       path, path, fmt::join(words, "' '"), words.size(), name)}});
  CHECK(run.status == 0);
  CHECK(run.err == "");
  return run.out.substr(0, run.out.size() - 1);
}

}  // namespace

TEST_SUITE("cli/completion") {
  TEST_CASE("bash completes flags, keys, their values, and names") {
    CHECK(offered("pig-generate", {"--temp"}) == "--temperature --temp");
    CHECK(offered("pig-generate", {"-s", "cache.ki"}) == "cache.kind=");
    CHECK(offered("pig-generate", {"-s", "cache.kind", "=", "hy"}) == "hybrid");
    CHECK(offered("pig-generate", {"--set", "model.compute", "="}) == "bf16 f32");
    CHECK(offered("pig-generate", {"-s", "cache.attend", "=", ""}) == "auto cpu gpu both");
    CHECK(offered("pig-generate", {"-s", "sampling.from", "=", "m"}) == "model");
    CHECK(offered("pig-generate", {"-s", "run.seed", "=", ""}) == "");
    CHECK(offered("pig-generate", {"--format", "=", "j"}) == "jsonl");
    CHECK(offered("pig-generate", {"--format", "t"}) == "text");
    CHECK(offered("pig-generate", {"--completion", ""}) == "bash zsh fish");
    CHECK(offered("pig-generate", {"-m", "tiny-"}) == "tiny-16m tiny-2m");
    CHECK(offered("pig-generate", {"-m", "synthetic", ":", "llama-3.1-8"}) == "llama-3.1-8b");
    CHECK(offered("pig-generate", {"-r", "pig/str"}) == "pig/streaming-tiny-16m");
    CHECK(offered("pig-bench", {"--sweep", "run.batc"}) == "run.batch=");
    CHECK(offered("sequoia-generate", {"-s", "draft.path", "=", "tiny-2"}) == "tiny-2m");
    CHECK(offered("s2ft-train", {"--method", "lo"}) == "lora");
    CHECK(offered("pig-generate", {"-f", "some"}) == "");  // files: readline's own
  }

  TEST_CASE("every tool has scripts of its flags and keys for three shells, and a page") {
    for (const std::string& tool : kTools) {
      CAPTURE(tool);
      for (const char* shell : {"bash", "zsh", "fish"}) {
        const Outcome script = ask(tool, {"--completion", shell});
        CHECK(script.status == 0);
        CHECK(script.err == "");
        CHECK(has(script.out, tool + " --completion " + shell));
        CHECK(has(script.out, "help-recipe"));
        CHECK(has(script.out, "run.seed"));
        CHECK_FALSE(has(script.out, "@"));
      }
      CHECK(has(ask(tool, {"--print-recipe"}).out, "\nrun:\n"));
      const Outcome page = ask(tool, {"--man"});
      CHECK(page.status == 0);
      CHECK(page.out.starts_with(".TH "));
      for (const char* part : {"\n.SH NAME\n", "\n.SH FLAGS\n", "\n.B \\-\\-completion SHELL\n",
                               "\n.SH RECIPE KEYS\n", "\n.B run.seed\n", "\nexit status:\n"})
        CHECK_MESSAGE(has(page.out, part), part);
      CHECK(run_shell("'" + program(tool) + "' --completion bash | bash -n").status == 0);
    }
  }

  TEST_CASE("zsh gets names from a call, and texts with colons and brackets whole") {
    const std::string script = ask("pig-generate", {"--completion", "zsh"}).out;
    // Without the space zsh puts options before the word.
    CHECK(has(script, ":PATH: _pig_generate_named models'"));
    CHECK(has(script, ":FILE: _pig_generate_named recipes'"));
    CHECK(has(script, "synthetic\\:NAME"));
  }

  TEST_CASE("an unknown shell") {
    const Outcome run = ask("pig-generate", {"--completion", "tcsh"});
    check_refused(run, 2, "--completion: expected one of bash, zsh, fish, found 'tcsh'\n");
    check_refused(ask("pig-generate", {"--completion"}), 2, "--completion: needs a value\n");
  }
}
