// Whether speculation pays: what summaries say of it, drafts that cannot, and --fastest.
#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include "cli/drafts.h"
#include "cli/probe.h"

using namespace tandem::testing;

namespace {

const Words kExact = "--device cpu -s model.compute=f32";

}  // namespace

TEST_SUITE("cli/does-it-pay") {
  TEST_CASE("a run of few rounds says that it measured nothing") {
    const Words how = "-m tiny-16m -s spec.draft=ngram -p 'The keeper' -n 4";
    const Outcome run = command("sequoia-generate" + how + kExact);
    CHECK(run.status == 0);
    CHECK(has(run.err, "\nplain    not measured: too few speculation steps\n"));
    const Json spec =
        last_event(command("sequoia-generate" + how + kExact + "--format jsonl"))["spec"];
    CHECK(spec["rounds"] > 0);
    for (const char* key : {"speedup", "plain_steps", "plain_ms_per_token"})
      CHECK_FALSE(spec.contains(key));
  }

  TEST_CASE("speculation that loses is warned about, with what to do") {
    // The draft is eight times as large as the target: only a machine that stalls in each of the
    // plain steps can hide the loss.
    const Words how =
        "-m tiny-2m -s draft.path=tiny-16m -s spec.gamma=8 -s spec.force=true -p 'The keeper' -n "
        "250";
    bool warned = false;
    for (int turn = 0; turn < 5 && !warned; ++turn) {
      const Outcome run = command("sequoia-generate" + how + kExact);
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
    const std::string by_keys =
        "spec.draft.cache.kind: is full, so the draft reads as much as the target and cannot be "
        "faster\n  hint: reduce it with -s spec.draft.cache.kind=snapkv";
    for (const auto& [line, says] : std::vector<std::pair<Words, std::string>>{
             {"sequoia-generate -m tiny-16m -s spec.draft=self",
              by_keys + ", or -s spec.draft.sparse.kind=cats; spec.force=true runs it anyway\n"},
             {"sequoia-generate -m tiny-16m -s spec.draft=self -s spec.gamma=auto", by_keys},
             {"sequoia-generate -m tiny-16m -s spec.draft=self -s cache.kind=streaming -s "
              "draft.cache.kind=streaming",
              "draft.cache.kind: is streaming, so the draft reads as much as the target"},
             {"sirius-generate -r sirius/tiny-16m -s draft.sparse.kind=none -s "
              "draft.sparse.weighted=false",
              by_keys},
             {"triforce-generate -r triforce/tiny-16m -s draft.cache.kind=full",
              by_keys + "; spec.force=true"},
             {"triforce-generate -r triforce/tiny-16m -s draft2.path=tiny-16m",
              "spec.draft.inner.path: tiny-16m has "},
             {"sequoia-generate -m tiny-16m -s draft.path=tiny-16m", "draft.path: tiny-16m has "},
             {"sequoia-generate -m tiny-2m -s draft.path=tiny-16m",
              "but a draft as large as the target cannot be faster\n  hint: name a smaller model; "
              "spec.force=true runs it anyway\n"}}) {
      CAPTURE(says);
      const Words run = line + "-p 'The lamp' -n 8 --device cpu";
      check_refused(command(run), 3, says);
      check_refused(command(run + "--dry-run"), 3, says);
      CHECK(command(run + "-s spec.force=true").status == 0);
    }
    // A check of texts is no matter of speed.
    CHECK(command("spec-check -m tiny-16m -s spec.draft=self --device cpu --dry-run").status == 0);
  }

  TEST_CASE("--fastest: the best way writes the text, and its command repeats that") {
    // Greedy text that repeats itself, so that the tokens looked up are right.
    const Words how = {"-m", "tiny-16m", "-p", "It's tick tock tick tock tick tock tick",
                       "-n", "60"};
    const Outcome plain = command("pig-generate" + how + kExact);
    const Outcome run = command("sequoia-generate" + how + kExact + "--fastest");
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
    const std::string repeat = run.err.substr(at + label.size());
    CHECK(has(repeat, "-generate -m tiny-16m "));  // the model as typed
    CHECK(has(repeat, " -p 'It'\\''s tick tock tick tock tick tock tick' "));
    CHECK(repeat.find('\n') == repeat.size() - 1);  // the last line
    const std::string bin = std::filesystem::path(program("sequoia-generate")).parent_path();
    const Outcome again = run_shell("PATH=" + bin + ":$PATH; export PATH; " + repeat);
    CAPTURE(again.err);
    CHECK(again.status == 0);
    CHECK(again.out == plain.out);

    const Json summary =
        last_event(command("sequoia-generate" + how + kExact + "--fastest --format jsonl"));
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
    const std::string tree = recipe_file("sequoia/tree-8.json");
    const Words how = "-m tiny-16m -s draft.path=tiny-2m -s tree.path=" + tree + " -f " +
                      recipe_file("demo/lighthouse-logbook.txt") + " -n 16";
    const Outcome run = command("sequoia-generate" + how + kExact + "--fastest");
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    CHECK(run.out ==
          command("pig-generate -m tiny-16m" + kExact + ("-f " + how[7] + " -n 16")).out);
    for (const char* way :
         {"x  spec.draft.kind=self spec.draft.cache.kind=snapkv spec.shape.gamma=4\n",
          "recipes/models/tiny-2m spec.shape.gamma=4\n",
          "recipes/models/tiny-2m spec.shape.kind=tree "})
      CHECK(has(run.err, way));
    const auto [peak, planned] = [&] {
      const Json s =
          last_event(command("sequoia-generate" + how + kExact + "--fastest --format jsonl"));
      return std::pair{s["peak_bytes"].get<double>(), s["planned_peak_bytes"].get<double>()};
    }();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which hold memory themselves
    CHECK(peak <= 1.02 * planned);
#endif
    const Outcome dry = command("sequoia-generate" + how + kExact + "--fastest --dry-run");
    CHECK(dry.status == 0);
    CHECK(has(dry.out,
              "\ntries    plain decoding\n         spec.draft.kind=ngram spec.shape.gamma=4\n"));
    CHECK(has(dry.out, "draft weights"));
  }

  TEST_CASE("--fastest refuses what contradicts it") {
    const TemporaryFolder folder;
    const std::string two = folder.write("two.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
    check_refusals(
        "sequoia-generate -m tiny-16m --fastest",
        {{{}, 2, "prompt: expected a prompt, found none"},
         {"--prompts " + two, 2, "--fastest: expected one prompt to try drafts on, found 2"},
         {"-p a -s spec.draft=ngram", 3,
          "spec.draft.kind: spec.fastest chooses it; leave spec.draft.kind out"},
         {"-p a -s spec.gamma=3", 3, "leave spec.shape.gamma out"},
         {"-p a -s spec.verify=floor", 3, "leave spec.verify out"},
         {"-p a -s draft.cache.kind=snapkv", 3, "leave spec.draft.cache.kind out"},
         {"-p a -s tree.path=t.json", 3,
          "spec.shape.kind: spec.fastest needs a file and spec.draft.path"},
         {"-p a -s draft.path=tiny-16m", 3, "draft.path: tiny-16m has "}});
    check_refused(command("spec-check -m tiny-16m -s spec.fastest=true -p 'The lamp'"), 3,
                  "spec.fastest: expected one draft to check");
  }
}
