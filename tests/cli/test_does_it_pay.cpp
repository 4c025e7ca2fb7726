// Whether speculation pays: what summaries say of it, drafts that cannot, and --fastest.
#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <cstdio>

#include "cli/probe.h"

using namespace tandem::testing;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

namespace {

const Words kExact = {"--device", "cpu", "-s", "model.compute=f32"};

Words join(std::initializer_list<Words> parts) {
  Words all;
  for (const Words& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Outcome generate(const std::string& tool, std::initializer_list<Words> parts) {
  return run_process(program(tool), {.arguments = join(parts)});
}

/// Speed of speculation over plain decoding, as the summary has it; 0: it says nothing.
double speedup_in(const std::string& summary) {
  const size_t at = summary.find("speculation was ");
  double x = 0;
  if (at != std::string::npos)
    REQUIRE(std::sscanf(summary.c_str() + at, "speculation was %lfx as fast", &x) == 1);
  return x;
}

}  // namespace

TEST_SUITE("cli/does-it-pay") {
  TEST_CASE("every summary of speculation compares with plain steps, and the text stays") {
    const Words text = {"-p", "The keeper of the lighthouse", "-n", "120"};
    const Outcome plain = generate("pig-generate", {{"-m", "tiny-16m"}, kExact, text});
    REQUIRE(plain.status == 0);
    struct Way {
      std::string tool;
      Words how;
    };
    for (const Way& way :
         {Way{"sequoia-generate", {"-r", "sequoia/tiny-16m"}},
          Way{"sequoia-generate", {"-r", "sequoia/self-tiny-16m"}},
          Way{"sequoia-generate", {"-m", "tiny-16m", "-s", "spec.draft=ngram"}},
          Way{"sequoia-generate",
              {"-m", "tiny-16m", "-s", "draft.path=tiny-2m", "-s", "spec.gamma=auto"}},
          Way{"triforce-generate", {"-r", "triforce/tiny-16m"}},
          Way{"sirius-generate", {"-m", "tiny-16m"}}}) {
      CAPTURE(fmt::format("{} {}", way.tool, fmt::join(way.how, " ")));
      const Outcome run = generate(way.tool, {way.how, kExact, text});
      CAPTURE(run.err);
      CHECK(run.status == 0);
      CHECK(run.out == plain.out);
      CHECK(has(run.err, "\nplain    "));
      CHECK(has(run.err, " ms per token, measured over "));
      CHECK(speedup_in(run.err) > 0);
      const Json spec =
          json_lines(generate(way.tool, {way.how, kExact, text, {"--format", "jsonl"}}).out)
              .back()["spec"];
      CHECK(spec["plain_steps"].get<int>() >= 1);
      CHECK(spec["plain_batch"] == 1);
      CHECK(spec["plain_ms_per_token"].get<double>() > 0);
      CHECK(spec["speedup"].get<double>() ==
            doctest::Approx(spec["plain_ms_per_token"].get<double>() /
                            spec["ms_per_token"].get<double>()));
    }
  }

  TEST_CASE("a batch is compared with plain steps of as many texts") {
    const TemporaryFolder folder;
    const std::string prompts = folder
                                    .write("prompts.jsonl",
                                           "{\"prompt\": \"The keeper\"}\n{\"prompt\": \"Once\"}\n"
                                           "{\"prompt\": \"The lamp was\"}\n")
                                    .string();
    const Words text = {"--prompts", prompts, "-n", "60", "--format", "jsonl"};
    const auto ids = [](const Outcome& run) {
      std::map<int, std::vector<int>> by_text;
      for (const Json& e : json_lines(run.out))
        if (e["event"] == "token") by_text[e["seq"]].push_back(e["id"]);
      return by_text;
    };
    const Outcome run =
        generate("sequoia-generate", {{"-m", "tiny-16m", "-s", "spec.draft=ngram"}, kExact, text});
    CHECK(ids(run) == ids(generate("pig-generate", {{"-m", "tiny-16m"}, kExact, text})));
    const Json spec = json_lines(run.out).back()["spec"];
    CHECK(spec["plain_batch"] == 3);
    CHECK(has(run.err, " ms per token for 3 sequences, measured over "));
  }

  TEST_CASE("a run of few rounds says that it measured nothing") {
    const Words how = {"-m", "tiny-16m", "-s", "spec.draft=ngram", "-p", "The keeper", "-n", "4"};
    const Outcome run = generate("sequoia-generate", {how, kExact});
    CHECK(run.status == 0);
    CHECK(has(run.err, "\nplain    not measured: too few speculation steps\n"));
    const Json spec =
        json_lines(generate("sequoia-generate", {how, kExact, {"--format", "jsonl"}}).out)
            .back()["spec"];
    CHECK(spec["rounds"] > 0);
    for (const char* key : {"speedup", "plain_steps", "plain_ms_per_token"})
      CHECK_FALSE(spec.contains(key));
  }

  TEST_CASE("speculation that loses is warned about, with what to do") {
    // The draft is eight times as large as the target: only a machine that stalls in each of the
    // plain steps can hide the loss.
    const Words how = {"-m", "tiny-2m",         "-s", "draft.path=tiny-16m", "-s", "spec.gamma=8",
                       "-s", "spec.force=true", "-p", "The keeper",          "-n", "250"};
    bool warned = false;
    for (int turn = 0; turn < 5 && !warned; ++turn) {
      const Outcome run = generate("sequoia-generate", {how, kExact});
      CAPTURE(run.err);
      REQUIRE(run.status == 0);
      const double speedup = speedup_in(run.err);
      REQUIRE(speedup > 0);
      warned =
          has(run.err,
              "x as fast as plain decoding: set spec.shape.gamma=auto, try another draft, or use "
              "pig-generate\n");
      if (warned) CHECK(speedup <= 0.95);
      if (!warned) CHECK(speedup >= 0.95);
    }
    CHECK(warned);
  }

  TEST_CASE("drafts that read as much as the target are refused, unless forced") {
    struct Case {
      std::string tool;
      Words how;
      std::string says;
    };
    const std::string by_keys =
        "spec.draft.cache.kind: is full, so the draft reads as much as the target and cannot be "
        "faster\n  hint: reduce it with -s spec.draft.cache.kind=snapkv";
    for (const Case& c :
         {Case{"sequoia-generate",
               {"-m", "tiny-16m", "-s", "spec.draft=self"},
               by_keys + ", or -s spec.draft.sparse.kind=cats; spec.force=true runs it anyway\n"},
          Case{"sequoia-generate",
               {"-m", "tiny-16m", "-s", "spec.draft=self", "-s", "spec.gamma=auto"},
               by_keys},
          Case{"sequoia-generate",
               {"-m", "tiny-16m", "-s", "spec.draft=self", "-s", "cache.kind=streaming", "-s",
                "draft.cache.kind=streaming"},
               "draft.cache.kind: is streaming, so the draft reads as much as the target"},
          Case{"sirius-generate",
               {"-r", "sirius/tiny-16m", "-s", "draft.sparse.kind=none", "-s",
                "draft.sparse.weighted=false"},
               by_keys},
          Case{"triforce-generate",
               {"-r", "triforce/tiny-16m", "-s", "draft.cache.kind=full"},
               by_keys + "; spec.force=true"},
          Case{"triforce-generate",
               {"-r", "triforce/tiny-16m", "-s", "draft2.path=tiny-16m"},
               "spec.draft.inner.path: tiny-16m has "},
          Case{"sequoia-generate",
               {"-m", "tiny-16m", "-s", "draft.path=tiny-16m"},
               "draft.path: tiny-16m has "},
          Case{"sequoia-generate",
               {"-m", "tiny-2m", "-s", "draft.path=tiny-16m"},
               "but a draft as large as the target cannot be faster\n  hint: name a smaller model; "
               "spec.force=true runs it anyway\n"}}) {
      CAPTURE(fmt::format("{} {}", c.tool, fmt::join(c.how, " ")));
      const Words prompt = {"-p", "The lamp", "-n", "8", "--device", "cpu"};
      check_refused(generate(c.tool, {c.how, prompt}), 3, c.says);
      check_refused(generate(c.tool, {c.how, prompt, {"--dry-run"}}), 3, c.says);
      CHECK(generate(c.tool, {c.how, prompt, {"-s", "spec.force=true"}}).status == 0);
    }
    // A check of texts is no matter of speed.
    CHECK(generate("spec-check",
                   {{"-m", "tiny-16m", "-s", "spec.draft=self", "--device", "cpu", "--dry-run"}})
              .status == 0);
  }

  TEST_CASE("--fastest: the best way writes the text, and its command repeats that") {
    // Greedy text that repeats itself, so that the tokens looked up are right.
    const Words how = {"-m", "tiny-16m", "-p", "It's tick tock tick tock tick tock tick",
                       "-n", "60"};
    const Outcome plain = generate("pig-generate", {how, kExact});
    const Outcome run = generate("sequoia-generate", {how, kExact, {"--fastest"}});
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    CHECK(run.out == plain.out);
    for (const char* way : {"  plain decoding\n", "x  spec.draft.kind=ngram spec.shape.gamma=4\n",
                            "spec.draft.kind=self spec.draft.sparse.kind=cats spec.shape.gamma=4"})
      CHECK(has(run.err, way));
    CHECK(has(run.err,
              "not tried                      spec.draft.kind=self "
              "spec.draft.cache.kind=snapkv spec.shape.gamma=4: KV budget of 1024 tokens is too "
              "large for a context of "));
    const std::string label = "repeat with: ";
    const size_t at = run.err.find(label);
    REQUIRE(at != std::string::npos);
    const std::string command = run.err.substr(at + label.size());
    CHECK(has(command, "-generate -m tiny-16m "));  // the model as typed
    CHECK(has(command, " -p 'It'\\''s tick tock tick tock tick tock tick' "));
    CHECK(command.find('\n') == command.size() - 1);  // the last line
    const std::string bin = std::filesystem::path(program("sequoia-generate")).parent_path();
    const Outcome again = run_shell("PATH=" + bin + ":$PATH; export PATH; " + command);
    CAPTURE(again.err);
    CHECK(again.status == 0);
    CHECK(again.out == plain.out);

    const Json summary =
        json_lines(
            generate("sequoia-generate", {how, kExact, {"--fastest", "--format", "jsonl"}}).out)
            .back();
    const Json& fastest = summary["spec"]["fastest"];
    CHECK(fastest["repeat"].get<std::string>().find("-generate -m ") < 8);
    std::vector<double> taken, others;
    for (const Json& way : fastest["tried"]) {
      if (!way.contains("ms_per_token")) {
        CHECK(way["not_tried"] != "");
        CHECK(way["best"] == false);
        continue;
      }
      (way["best"] == true ? taken : others).push_back(way["ms_per_token"]);
      if (way["best"] == false) continue;
      const std::string command_of_best = fastest["repeat"];
      if (way["way"] == "plain decoding")
        CHECK(command_of_best.starts_with("pig-generate "));
      else
        CHECK(has(command_of_best, "-s spec.draft.kind="));
    }
    REQUIRE(taken.size() == 1);
    REQUIRE(!others.empty());
    CHECK(taken[0] <= *std::ranges::min_element(others));
  }

  TEST_CASE("--fastest with a draft model, a tree, and a prompt longer than twice a cache") {
    const std::string tree = (tandem::test::source_dir() / "recipes/sequoia/tree-8.json").string();
    const Words how = {
        "-m", "tiny-16m",
        "-s", "draft.path=tiny-2m",
        "-s", "tree.path=" + tree,
        "-f", (tandem::test::source_dir() / "recipes/demo/lighthouse-logbook.txt").string(),
        "-n", "16"};
    const Outcome run = generate("sequoia-generate", {how, kExact, {"--fastest"}});
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    CHECK(run.out ==
          generate("pig-generate", {{"-m", "tiny-16m"}, kExact, {"-f", how[7], "-n", "16"}}).out);
    for (const char* way :
         {"x  spec.draft.kind=self spec.draft.cache.kind=snapkv spec.shape.gamma=4\n",
          "recipes/models/tiny-2m spec.shape.gamma=4\n",
          "recipes/models/tiny-2m spec.shape.kind=tree "})
      CHECK(has(run.err, way));
    const auto [peak, planned] = [&] {
      const Json s =
          json_lines(
              generate("sequoia-generate", {how, kExact, {"--fastest", "--format", "jsonl"}}).out)
              .back();
      return std::pair{s["peak_bytes"].get<double>(), s["planned_peak_bytes"].get<double>()};
    }();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which hold memory themselves
    CHECK(peak <= 1.02 * planned);
#endif
    const Outcome dry = generate("sequoia-generate", {how, kExact, {"--fastest", "--dry-run"}});
    CHECK(dry.status == 0);
    CHECK(has(dry.out,
              "\ntries    plain decoding\n         spec.draft.kind=ngram spec.shape.gamma=4\n"));
    CHECK(has(dry.out, "draft weights"));
  }

  TEST_CASE("--fastest refuses what contradicts it") {
    const TemporaryFolder folder;
    const std::string two =
        folder.write("two.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n").string();
    const Words prompt = {"-p", "The lamp"};
    struct Case {
      Words how;
      int status;
      std::string says;
    };
    for (const Case& c :
         {Case{{}, 2, "prompt: expected a prompt, found none"},
          Case{{"--prompts", two}, 2, "--fastest: expected one prompt to try drafts on, found 2"},
          Case{{"-p", "a", "-s", "spec.draft=ngram"},
               3,
               "spec.draft.kind: spec.fastest chooses it; leave spec.draft.kind out"},
          Case{{"-p", "a", "-s", "spec.gamma=3"}, 3, "leave spec.shape.gamma out"},
          Case{{"-p", "a", "-s", "spec.verify=floor"}, 3, "leave spec.verify out"},
          Case{{"-p", "a", "-s", "draft.cache.kind=snapkv"}, 3, "leave spec.draft.cache.kind out"},
          Case{{"-p", "a", "-s", "tree.path=t.json"},
               3,
               "spec.shape.kind: spec.fastest needs a file and spec.draft.path"},
          Case{{"-p", "a", "-s", "draft.path=tiny-16m"}, 3, "draft.path: tiny-16m has "}})
      check_refused(generate("sequoia-generate", {{"-m", "tiny-16m", "--fastest"}, c.how}),
                    c.status, c.says);
    check_refused(generate("spec-check", {{"-m", "tiny-16m", "-s", "spec.fastest=true"}, prompt}),
                  3, "spec.fastest: expected one draft to check");
  }
}
