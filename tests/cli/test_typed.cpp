#include <doctest/doctest.h>

#include "cli/probe.h"

// Tests input that new users try first: other programs' flags, a bare prompt, no recipe.
using namespace tandem::testing;

namespace {

Outcome run_tool(const std::string& tool, std::vector<std::string> arguments, Launch launch = {}) {
  launch.arguments = std::move(arguments);
  return run_process(program(tool), launch);
}

/// A run on tiny-2m that writes a few tokens.
Outcome generate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-m", "tiny-2m", "-t", "1", "-n", "6", "--device", "cpu"});
  return run_tool("pig-generate", std::move(arguments));
}

void check_hint(const std::string& tool, const std::vector<std::string>& arguments,
                const std::string& error) {
  check_refused(run_tool(tool, arguments), 2, tool + ": error: " + error);
}

}  // namespace

TEST_SUITE("cli/typed") {
  TEST_CASE("an unknown flag names the key, or the flag or key that is near") {
    check_hint("pig-bench", {"--temperature", "0.7"}, "--temperature: unknown flag\n");
    check_hint("pig-generate", {"--context", "4Ki"},
               "--context: unknown flag\n  hint: it is the key run.context: -s run.context=4Ki\n");
    check_hint("pig-generate", {"--context=4Ki"},
               "--context: unknown flag\n  hint: it is the key run.context: -s run.context=4Ki\n");
    check_hint("pig-generate", {"--batch"},
               "--batch: unknown flag\n  hint: it is the key run.batch: -s run.batch=VALUE\n");
    check_hint("s2ft-train", {"--rank", "8"},
               "--rank: unknown flag\n  hint: it may be the key run.rank or train.lora.rank: -s "
               "run.rank=8 or --lora-rank\n");
    check_hint("pig-generate", {"--max_tokens", "8"},
               "--max_tokens: unknown flag\n  hint: it is the key sampling.max_tokens: "
               "--max-tokens\n");
    check_hint("pig-generate", {"--top-a", "0.7"},
               "--top-a: unknown flag\n  hint: did you mean '--top-k'?\n");
    check_hint("pig-generate", {"--max-new-tokens", "8"},
               "--max-new-tokens: unknown flag\n  hint: it is --max-tokens here\n");
    check_hint("s2ft-train", {"--learning-rate=1e-3"},
               "--learning-rate: unknown flag\n  hint: it is --lr here\n");
    check_hint("pig-generate", {"--contxt", "4Ki"},
               "--contxt: unknown flag\n  hint: did you mean -s run.context=4Ki?\n");
    for (const char* flag : {"--halp-me", "--n", "--t", "--zzzz", "-y"})
      check_hint("pig-generate", {flag},
                 std::string(flag) + ": unknown flag\n  hint: --help lists all flags\n");
    check_refused(generate({"-p", "a", "-s", "temperature=0.7"}), 3,
                  "--set #1: unknown key 'temperature'\n"
                  "  hint: did you mean 'sampling.temperature'?  valid keys: ");
    check_refused(run_tool("s2ft-train", {"-m", "tiny-2m", "--data", "a", "-s", "train.lr=1"}), 3,
                  "--set #1: unknown key 'lr' in section 'train'\n"
                  "  hint: did you mean 'train.optimizer.lr'?  valid keys: ");
  }

  TEST_CASE("flags of sampling set their keys") {
    const auto recipe = [](const std::vector<std::string>& flags) {
      std::vector<std::string> all = {"--print-recipe"};
      all.insert(all.end(), flags.begin(), flags.end());
      return run_tool("pig-generate", all).out;
    };
    CHECK(has(recipe({"--temperature", "0.7"}), "\n  temperature: 0.7 "));
    CHECK(has(recipe({"--temp", "0.7"}), "\n  temperature: 0.7 "));
    CHECK(has(recipe({"--top-p", "0.9"}), "\n  top_p: 0.9 "));
    CHECK(has(recipe({"--top-k=40"}), "\n  top_k: 40 "));
    CHECK(has(recipe({"--min-p", "0.1"}), "\n  min_p: 0.1 "));
    const Outcome plain = generate({"-p", "Once", "--seed", "3"}),
                  drawn = generate({"-p", "Once", "--seed", "3", "--temp", "1.5"});
    CHECK(drawn.status == 0);
    CHECK(drawn.out != plain.out);
    CHECK(drawn.out ==
          generate({"-p", "Once", "--seed", "3", "-s", "sampling.temperature=1.5"}).out);
    check_refused(generate({"-p", "a", "--temperature", "-1"}), 3,
                  "--temperature: sampling.temperature: -1 is out of range, expected >= 0\n");
    for (const char* none : {"nan", "inf", "hot"})
      check_refused(generate({"-p", "a", "--temp", none}), 3,
                    "--temperature: sampling.temperature: expected a number, found '" +
                        std::string(none) + "'\n");
    check_refused(generate({"-p", "a", "--top-p", "1.5"}), 3,
                  "--top-p: sampling.top_p: 1.5 is out of range, expected 0 < x <= 1\n");
  }

  TEST_CASE("flags of training set their keys") {
    const std::string recipe =
        run_tool("s2ft-train", {"--method", "lora", "--lr", "1e-3", "--epochs", "2", "--lora-rank",
                                "16", "--print-recipe"})
            .out;
    for (const char* line :
         {"\n  method: lora ", "\n    lr: 0.001 ", "\n  epochs: 2 ", "\n    rank: 16 "})
      CHECK_MESSAGE(has(recipe, line), line);
  }

  TEST_CASE("a word without a flag is the prompt, and there is one prompt") {
    const std::string text = generate({"-p", "Once upon"}).out;
    CHECK(!text.empty());
    CHECK(generate({"Once upon"}).out == text);
    CHECK(
        has(run_tool("pig-generate", {"--help"}).out, "\nusage: pig-generate [flags] [prompt]\n"));
    CHECK(generate({"--", "Once upon"}).out == text);
    CHECK(generate({"--", "--once"}).out == generate({"--prompt=--once"}).out);
    check_refused(generate({"-p", "hi", "there"}), 2,
                  "--prompt: given more than once: 'hi' and 'there'\n  hint: give only one, or "
                  "several prompts with --prompts FILE\n");
    check_refused(generate({"-p", "hi", "-p", "there"}), 2,
                  "--prompt: given more than once: 'hi' and 'there'\n");
    check_refused(generate({"-f", "a", "-f", "b"}), 2,
                  "--file: given more than once: 'a' and 'b'\n  hint: give it once\n");
    check_refused(generate({"Once", "upon"}), 2, "'upon': unexpected argument\n");
    check_refused(generate({"-"}), 2,
                  "'-': unexpected argument\n  hint: -f - reads standard input\n");
    check_refused(run_tool("pig-bench", {"word"}), 2, "'word': unexpected argument\n");
  }

  TEST_CASE("--system begins a chat") {
    const TemporaryFolder folder;
    const std::string file = folder
                                 .write("roles.jinja",
                                        "{% for m in messages %}{{ m.role }} {{ m.content }}. "
                                        "{% endfor %}")
                                 .string();
    const auto chat = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"-s", "chat.template=" + file, "-s", "chat.date=2025-01-31"});
      return generate(std::move(more));
    };
    const auto ids = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"-n", "1", "--format", "jsonl", "-v"});
      const Outcome run = chat(std::move(more));
      CAPTURE(run.err);
      REQUIRE(run.status == 0);
      return json_lines(run.out).front()["ids"];
    };
    const std::string lines =
        folder
            .write("chat.jsonl", R"({"messages": [{"role": "system", "content": "Be brief"}, )"
                                 R"({"role": "user", "content": "Hi"}]})")
            .string();
    const nlohmann::json want = ids({"--prompts", lines});
    CHECK(ids({"--chat", "--system", "Be brief", "-p", "Hi"}) == want);
    CHECK(ids({"--chat", "-p", "Hi"}) != want);
    check_refused(chat({"--system", "Be brief", "-p", "Hi"}), 2,
                  "--system: needs a chat whose message is on the command line\n  hint: add --chat "
                  "and -p, -f or --questions\n");
    check_refused(chat({"--system", "a", "--chat", "--prompts", "b"}), 2,
                  "  hint: in each line, write a message with role system\n");
  }

  TEST_CASE("nearest names of models, recipes, tasks, shapes and values") {
    const auto near = [](const std::string& tool, const std::vector<std::string>& arguments,
                         const std::string& name) {
      const Outcome run = run_tool(tool, arguments);
      CAPTURE(run.err);
      CHECK(run.status > 1);
      CHECK(has(run.err, "did you mean '" + name + "'?"));
    };
    near("pig-generate", {"-m", "tiny16m", "-p", "a"}, "tiny-16m");
    near("pig-generate", {"-r", "pig/tiny16m", "-p", "a"}, "pig/tiny-16m");
    near("pig-generate", {"-m", "tiny-2m", "-p", "a", "-s", "cache.kind=hybird"}, "hybrid");
    near("pig-generate", {"-m", "synthetic:llama3.1-8b", "--dry-run"}, "llama-3.1-8b");
    near("pig-eval", {"-m", "tiny-16m", "--task", "needle"}, "needle1");
    near("pig-generate", {"-m", "tiny-2m", "-p", "a", "--format", "json"}, "jsonl");
    const Outcome any = run_tool("pig-generate", {"-r", "chat-tiny-16m", "-p", "a"});
    CHECK(has(any.err, "did you mean 'pig/chat-tiny-16m'?"));
  }

  TEST_CASE("--list-models and --list-recipes have a name a line") {
    const Outcome models = run_tool("pig-generate", {"--list-models"});
    CHECK(models.status == 0);
    CHECK(models.err.empty());
    CHECK(has(models.out, "\ntiny-2m "));
    CHECK(has(models.out, "\nsynthetic:llama-3.1-8b "));
    const std::string recipes = run_tool("pig-generate", {"--list-recipes"}).out;
    CHECK(has(recipes, "pig/tiny-16m "));
    CHECK(has(recipes, "sirius/tiny-16m "));
    CHECK_FALSE(has(recipes, "s2ft/tiny"));  // of another kind
    CHECK(
        has(run_tool("sirius-generate", {"--list-recipes"}).out,
            "\nsirius/tiny-16m             The embedded 16M-parameter model drafts for itself with "
            "half of its FFN neurons, "));
    const TemporaryFolder folder;
    std::ofstream(folder / "own.yaml") << "# Mine. And more.\nkind: generate\nbase: pig/tiny-16m\n";
    CHECK(has(run_tool("pig-generate", {"--list-recipes"},
                       {.variables = {{"TANDEM_RECIPE_PATH", folder.path().string()}}})
                  .out,
              "own  "));
    const Outcome own =
        run_tool("pig-generate", {"-r", (folder / "own.yaml").string(), "--print-recipe"});
    CHECK(own.status == 0);
    CHECK(has(own.out, "/tiny-16m  # "));
    CHECK(has(own.out, "recipes/pig/tiny-16m.yaml:"));
  }

  TEST_CASE("without a recipe a tool does what its name says") {
    const std::vector<std::string> how = {"-m", "tiny-16m", "-t",  "1",  "-n",
                                          "24", "--device", "cpu", "-s", "model.compute=f32"};
    const auto run = [&](const std::string& tool, std::vector<std::string> more) {
      more.insert(more.end(), how.begin(), how.end());
      more.emplace_back("The lamp was");
      return run_tool(tool, std::move(more));
    };
    const std::string plain = run("pig-generate", {}).out;
    const Outcome sirius = run("sirius-generate", {}), triforce = run("triforce-generate", {});
    CAPTURE(sirius.err);
    CAPTURE(triforce.err);
    CHECK(sirius.out == plain);
    CHECK(has(sirius.err, "\nneurons  cats: drafts compute 50.0 % of the FFN,"));
    CHECK(triforce.out == plain);
    CHECK(triforce.status == 0);
    const auto recipe = [&](const std::string& tool, const std::vector<std::string>& more) {
      std::vector<std::string> all = {"-m", "tiny-16m", "--print-recipe"};
      all.insert(all.end(), more.begin(), more.end());
      return run_tool(tool, all).out;
    };
    CHECK(has(recipe("sirius-generate", {}), "# sirius-generate without a recipe\n"));
    CHECK(has(recipe("sirius-generate", {}), "\n  verify: match "));
    CHECK(has(recipe("sirius-generate", {"-s", "spec.verify=floor"}), "\n  verify: floor "));
    CHECK(has(recipe("sirius-generate", {"-s", "spec.draft=self"}), "\n      kind: cats "));
    for (const char* other : {"spec.draft=ngram", "draft.path=tiny-2m"})
      CHECK_FALSE(has(recipe("sirius-generate", {"-s", other}), "without a recipe"));
    CHECK_FALSE(has(recipe("sirius-generate", {"-r", "sirius/tiny-16m"}), "without a recipe"));
    CHECK(has(recipe("triforce-generate", {}), "\n    inner:\n      kind: ngram "));
    CHECK(has(recipe("triforce-generate", {"-s", "draft2.path=tiny-2m"}),
              "\n    inner:\n      kind: model "));
    for (const char* tool : {"sequoia-generate", "spec-check"})
      check_refused(
          run(tool, {}), 3,
          "spec.draft.path: expected the draft model, found none\n  hint: set -s "
          "spec.draft.path=SMALL_MODEL; without a second model, set -s spec.draft=ngram, ");
  }
}
