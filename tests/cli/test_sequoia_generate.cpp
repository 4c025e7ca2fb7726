#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/probe.h"
#include "source_dir.h"

using namespace tandem::testing;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

Outcome sequoia_generate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-r", "sequoia/tiny-16m", "--device", "cpu"});
  return run_process(program("sequoia-generate"), {.arguments = std::move(arguments)});
}

}  // namespace

TEST_SUITE("cli/sequoia-generate") {
  TEST_CASE("greedy text is pig-generate's; rounds and their sum are told") {
    const std::vector<std::string> flags = {"-p", "Once upon a time", "-n", "30",
                                            "-s", "model.compute=f32"};
    std::vector<std::string> plain_flags = {"-m", "tiny-16m", "--device", "cpu"};
    plain_flags.insert(plain_flags.end(), flags.begin(), flags.end());
    const Outcome plain = run_process(program("pig-generate"), {.arguments = plain_flags});
    const Outcome run = sequoia_generate(flags);
    CHECK(run.status == 0);
    CHECK(run.out == plain.out);
    CHECK(run.err.find("tokens per step by traversal, draft") != std::string::npos);
    CHECK(run.err.find(" (tokens per step include one from the target)") != std::string::npos);

    std::vector<std::string> json_flags = flags;
    json_flags.insert(json_flags.end(), {"--format", "jsonl"});
    const std::vector<Json> events = json_lines(sequoia_generate(json_flags).out);
    int64_t rounds = 0, drafted = 0, accepted = 0, tokens = 0;
    int64_t promised = 1;  // by the prompt and the rounds so far
    for (const Json& e : events) {
      if (e["event"] == "token") {
        ++tokens;
        CHECK(tokens <= promised);
      }
      if (e["event"] != "round") continue;
      CHECK(tokens == promised);  // those of the round before come first
      promised += e["accepted"].get<int64_t>() + 1;
      ++rounds;
      drafted += e["drafted"].get<int64_t>();
      accepted += e["accepted"].get<int64_t>();
    }
    const Json& summary = events.back();
    CHECK(tokens == 30);
    CHECK(drafted == 7 * rounds);
    CHECK(summary["spec"]["rounds"] == rounds);
    CHECK(summary["spec"]["accepted"] == accepted);
    CHECK(summary["decode_steps"] == rounds);
    CHECK(summary["spec"]["mean_tokens_per_round"].get<double>() ==
          doctest::Approx(1 + double(accepted) / double(rounds)));
    double rates = 0;
    for (const Json& rate : summary["spec"]["rate_by_position"]) rates += rate.get<double>();
    CHECK(1 + rates == doctest::Approx(summary["spec"]["mean_tokens_per_round"].get<double>()));
    CHECK(summary["spec"]["share_accepted"].get<double>() ==
          doctest::Approx(double(accepted) / double(drafted)));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which hold memory themselves
    CHECK(summary["peak_bytes"].get<double>() <=
          1.05 * summary["planned_peak_bytes"].get<double>());
#endif
  }

  TEST_CASE("spec.verify: records name the rule; greedy text is the same by each") {
    const std::vector<std::string> flags = {
        "-p", "Once upon a time", "-n", "30", "--format", "jsonl", "-s", "model.compute=f32"};
    const auto ids_of = [](const std::string& out) {
      std::vector<Json> ids;
      for (const Json& e : json_lines(out))
        if (e["event"] == "token") ids.push_back(e["id"]);
      return ids;
    };
    std::vector<std::string> plain = {"-m", "tiny-16m", "--device", "cpu"};
    plain.insert(plain.end(), flags.begin(), flags.end());
    const auto want = ids_of(run_process(program("pig-generate"), {.arguments = plain}).out);
    CHECK(want.size() == 30);
    const auto spec_of = [&](const std::vector<std::string>& more) {
      std::vector<std::string> all = flags;
      all.insert(all.end(), more.begin(), more.end());
      const Outcome run = sequoia_generate(all);
      CHECK(run.status == 0);
      CHECK(ids_of(run.out) == want);
      const Json spec = json_lines(run.out).back()["spec"];
      CHECK(spec["accepted"] < spec["drafted"]);
      return spec;
    };
    for (const std::string rule : {"match", "sequoia", "traversal"}) {
      CAPTURE(rule);
      const std::vector<std::string> by = {"-s", "spec.verify=" + rule};
      CHECK(spec_of(by)["verify"] == rule);
      CHECK(spec_of(by)["accepted_hist"] == spec_of({})["accepted_hist"]);
    }
    CHECK(spec_of({})["verify"] == "traversal");
    CHECK(spec_of({"-s", "tree.path="})["verify"] == "block");
    CHECK(spec_of({"-s", "spec.draft=ngram"})["verify"] == "match");
  }

  TEST_CASE("ngram needs no second model") {
    const std::vector<std::string> flags = {
        "-m",       "tiny-16m", "-p", "tick tock tick tock tick", "-n", "24",
        "--device", "cpu",      "-s", "model.compute=f32"};
    std::vector<std::string> with = flags;
    with.insert(with.end(), {"-s", "spec.draft=ngram"});
    const Outcome run = run_process(program("sequoia-generate"), {.arguments = with});
    CHECK(run.status == 0);
    CHECK(run.out == run_process(program("pig-generate"), {.arguments = flags}).out);
    const Outcome without = run_process(program("sequoia-generate"), {.arguments = flags});
    CHECK(without.status == 3);
    CHECK(without.err.find("draft.path: expected the draft model, found none") !=
          std::string::npos);
  }

  TEST_CASE("a draft that reads its prompt under a window goes beyond what it was made for") {
    // tiny-2m, said to be made for 512 tokens, behind a prompt of some 2,700.
    const fs::path models = tandem::test::source_dir() / "recipes/models/tiny-2m";
    const TemporaryFolder folder;
    for (const auto& file : fs::directory_iterator(models))
      fs::copy(file.path(), folder.path() / file.path().filename());
    Json config = Json::parse(std::ifstream(models / "config.json"));
    config["max_position_embeddings"] = 512;
    fs::permissions(folder / "config.json", fs::perms::owner_write, fs::perm_options::add);
    std::ofstream(folder / "config.json") << config;
    const std::string log =
        (tandem::test::source_dir() / "recipes/demo/lighthouse-logbook.txt").string();
    std::string text;
    std::getline(std::ifstream(log), text, '\0');
    const fs::path prompt = folder / "prompt.txt";
    std::ofstream(prompt) << text.substr(0, 10000);
    const std::vector<std::string> common = {"-f", prompt.string(),    "-n", "24",
                                             "-s", "model.compute=f32"};
    std::vector<std::string> plain = {"-m", "tiny-16m", "--device", "cpu"},
                             dense = {"-s", "draft.path=" + folder.path().string(),
                                      "-s", "tree.path=",
                                      "-s", "draft.cache.kind=streaming",
                                      "-s", "draft.cache.recent=300"};
    for (auto* flags : {&plain, &dense}) flags->insert(flags->end(), common.begin(), common.end());
    std::vector<std::string> windowed = dense;
    windowed.insert(windowed.end(),
                    {"-s", "draft.cache.reposition=true", "-s", "draft.cache.prefill=windowed"});
    CHECK(sequoia_generate(dense).err.find("the context holds only 512") != std::string::npos);
    const Outcome run = sequoia_generate(windowed);
    CHECK(run.status == 0);
    CHECK(run.out == run_process(program("pig-generate"), {.arguments = plain}).out);
    windowed.insert(windowed.end(), {"-s", "draft.cache.recent=600"});
    CHECK(sequoia_generate(windowed).err.find(
              "draft.cache: sinks and recent are 604 tokens, but ") != std::string::npos);
  }

  TEST_CASE("self: the model drafts for itself under draft.cache; a chain without tree.path") {
    const std::vector<std::string> flags = {"-m",       "tiny-16m",
                                            "-p",       "The keeper of the lighthouse",
                                            "-n",       "24",
                                            "--device", "cpu",
                                            "-s",       "model.compute=f32"};
    std::vector<std::string> with = flags;
    with.insert(with.end(), {"-s", "spec.draft=self", "-s", "draft.cache.kind=streaming", "-s",
                             "draft.cache.sinks=2", "-s", "draft.cache.recent=8", "-s",
                             "spec.gamma=3", "--format", "jsonl"});
    const Outcome run = run_process(program("sequoia-generate"), {.arguments = with});
    REQUIRE(run.status == 0);
    const Json summary = Json::parse(run.out.substr(run.out.rfind('\n', run.out.size() - 2) + 1));
    CHECK(summary["spec"]["draft"] == "self");
    CHECK(summary["spec"]["accepted"].get<int>() > 0);
    with.resize(with.size() - 2);
    CHECK(run_process(program("sequoia-generate"), {.arguments = with}).out ==
          run_process(program("pig-generate"), {.arguments = flags}).out);
    with.insert(with.end(), {"--dry-run", "--format", "jsonl"});
    const Json plan =
        Json::parse(run_process(program("sequoia-generate"), {.arguments = with}).out);
    CHECK(plan["draft"] == "self");
    CHECK(plan["tree"]["nodes"] == 4);
  }

  TEST_CASE("spec.gamma auto: rounds choose how long chains are, and greedy text stays") {
    std::vector<std::string> flags = {"-p", "Once upon a time",  "-n", "150",
                                      "-s", "model.compute=f32", "-s", "tree.path="};
    const Outcome fixed = sequoia_generate(flags);
    flags.insert(flags.end(), {"-s", "spec.gamma=auto"});
    const Outcome run = sequoia_generate(flags);
    CAPTURE(run.err);
    CHECK(run.status == 0);
    CHECK(run.out == fixed.out);
    flags.insert(flags.end(), {"--format", "jsonl"});
    const Json summary = json_lines(sequoia_generate(flags).out).back();
    CHECK(summary["spec"]["accepted_hist"].size() == 17);
    CHECK(summary["spec"]["drafted"] > 0);
    CHECK(summary["spec"]["drafted"] < 16 * summary["spec"]["rounds"].get<int>());
  }

  TEST_CASE("tree.path auto: the tree that the times speak for; none where they speak against it") {
    const TemporaryFolder folder;
    const std::string accept =
        folder
            .write("accept.json",
                   R"({"format": "acceptance-vector/1", "method": "topk-greedy", "p": [0.6, 0.1]})")
            .string();
    const auto timing = [&](const std::string& name, const std::string& draft_ms) {
      return folder
          .write(
              name,
              R"({"format": "sequoia-timing/1", "skip_deepest": true, "buckets": [{"context": 4096,
                   "target": {"tokens": [1, 64], "ms": [10, 11]}, "draft": {"tokens": [1], "ms": [)" +
                  draft_ms + "]}}]}")
          .string();
    };
    const std::vector<std::string> text = {"-p", "Once upon a time", "-n", "24",
                                           "-s", "model.compute=f32"};
    const auto run = [&](std::vector<std::string> more) {
      more.insert(more.end(), text.begin(), text.end());
      more.insert(more.end(), {"-s", "tree.accept=" + accept});
      return sequoia_generate(more);
    };
    const std::string plain = sequoia_generate(text).out;
    const std::string cheap = timing("cheap.json", "0.1"), dear = timing("dear.json", "20");
    const Outcome pays =
        run({"-s", "tree.path=auto", "-s", "tree.timing=" + cheap, "-s", "tree.max_levels=4"});
    CHECK(pays.status == 0);
    CHECK(pays.out == plain);
    CHECK(pays.err.find("on 4 levels") != std::string::npos);
    const Json chosen =
        json_lines(
            run({"-s", "tree.path=auto", "-s", "tree.timing=" + cheap, "--format", "jsonl"}).out)
            .back();
    CHECK(chosen["spec"]["predicted"]["speedup"].get<double>() > 1);
    CHECK(chosen["spec"]["nodes"] == chosen["spec"]["predicted"]["nodes"]);

    for (const char* tree : {"auto", "recipes/sequoia/tree-8.json"}) {
      CAPTURE(tree);
      const std::string path =
          std::string(tree) == "auto" ? tree : (tandem::test::source_dir() / tree).string();
      const std::vector<std::string> flags = {
          "-s", "tree.path=" + path, "-s", "tree.timing=" + dear, "--format", "jsonl", "-v"};
      const Outcome declined = run(flags);
      CHECK(declined.err.find("draft weights") == std::string::npos);  // not loaded at all
      CHECK(declined.err.find("speculation would be slower") != std::string::npos);
      const std::vector<Json> events = json_lines(declined.out);
      CHECK(events.back()["spec"]["declined"] == true);
      CHECK(events.back()["spec"]["predicted"]["speedup"].get<double>() < 1);
      CHECK_FALSE(events.back()["spec"].contains("rounds"));
      std::vector<std::string> forced = flags;
      forced.insert(forced.end(), {"-s", "spec.force=true"});
      const Outcome insists = run(forced);
      CHECK(insists.err.find("draft weights") != std::string::npos);
      CHECK(json_lines(insists.out).back()["spec"]["rounds"].get<int>() > 0);
    }
  }

  TEST_CASE("tree.path auto without a vector measures acceptance on the prompt") {
    const TemporaryFolder folder;
    const auto write = [&](const char* name, const Json& json) {
      return "=" + folder.write(name, json.dump()).string();
    };
    const Json target = {{"tokens", {1, 64}}, {"ms", {10, 11}}};
    const Json draft = {{"tokens", {1}}, {"ms", {0.1}}};
    const Json bucket = {{"context", 4096}, {"target", target}, {"draft", draft}};
    const std::string timing = write("timing.json", {{"format", "sequoia-timing/1"},
                                                     {"skip_deepest", true},
                                                     {"buckets", Json::array({bucket})}});
    std::vector<int> children(17, 0);
    children[0] = 16;
    const std::string star =
        write("star.json", {{"format", "sequoia-tree/1"}, {"branch_counts", children}});
    const std::vector<std::string> text = {"-m", "tiny-16m",         "--device", "cpu",
                                           "-p", "Once upon a time", "-n",       "64",
                                           "-s", "model.compute=f32"};
    const auto run = [&](const std::string& tool, std::vector<std::string> more) {
      more.insert(more.begin(), text.begin(), text.end());
      if (tool != "pig-generate") more.insert(more.end(), {"-s", "draft.path=tiny-2m"});
      return run_process(program(tool), {.arguments = std::move(more)});
    };
    const auto spec_of = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"--format", "jsonl"});
      return json_lines(run("sequoia-generate", std::move(more)).out).back()["spec"];
    };
    const std::vector<std::string> flags = {"-s", "tree.path=auto", "-s", "tree.timing" + timing};

    const Outcome chosen = run("sequoia-generate", flags);
    CHECK(chosen.status == 0);
    CHECK(chosen.out == run("pig-generate", {}).out);
    const Json spec = spec_of(flags), measured = spec["predicted"]["acceptance"];
    CHECK(spec["nodes"] == spec["predicted"]["nodes"]);
    CHECK(spec["rounds"].get<int>() > 0);
    const auto p = measured["p"].get<std::vector<double>>();
    CHECK(chosen.err.find(fmt::format("tree     acceptance measured over {} speculation steps in ",
                                      measured["rounds"].get<int>())) != std::string::npos);
    CHECK(chosen.err.find(fmt::format(" s: {:.2f}\n", fmt::join(p, " "))) != std::string::npos);
    CHECK(chosen.err.find(fmt::format("tree     {} nodes on ", spec["nodes"].get<int>())) !=
          std::string::npos);
    CHECK(p.front() > std::accumulate(p.begin() + 1, p.end(), 0.0));

    // Rounds of such a tree accept as often in the same greedy text. Drawn texts are others: the
    // chosen tree must not depend on the random numbers that draw the run's.
    const auto count_both = [&](std::vector<std::string> more) {
      more.insert(more.end(), flags.begin(), flags.end());
      const Json counted = spec_of(more)["predicted"]["acceptance"];
      more.insert(more.end(), {"-s", "tree.path" + star});
      const Json given = spec_of(more);
      const int rounds = counted["rounds"], given_rounds = given["rounds"];
      const auto rates = counted["p"].get<std::vector<double>>();
      const double accepted = std::accumulate(rates.begin(), rates.end(), 0.0) * (rounds + 1);
      return std::array{std::pair(rounds, static_cast<int>(std::lround(accepted))),
                        std::pair(given_rounds, given["accepted"].get<int>())};
    };
    const auto greedy = count_both({});
    CHECK(greedy[0] == greedy[1]);
    bool is_same = true;
    for (const char* seed : {"1", "2", "3"}) {
      const auto drawn =
          count_both({"-s", "sampling.temperature=1", "-s", std::string("run.seed=") + seed});
      is_same = is_same && drawn[0] == drawn[1];
    }
    CHECK_FALSE(is_same);
  }

  TEST_CASE("times are measured once, and kept for these models and this machine") {
    const TemporaryFolder folder, cache;
    const std::string accept =
        folder
            .write("accept.json",
                   R"({"format": "acceptance-vector/1", "method": "topk-greedy", "p": [0.6, 0.1]})")
            .string();
    const Launch launch{
        .arguments = {"-r", "sequoia/tiny-16m", "--device", "cpu", "-p", "Once upon a time", "-n",
                      "12", "-s", "tree.path=auto", "-s", "tree.accept=" + accept, "-s",
                      "tree.max_nodes=8", "-s", "spec.force=true"},
        .variables = {{"TANDEM_CACHE_DIR", cache.path().string()}}};
    const Outcome first = run_process(program("sequoia-generate"), launch);
    CHECK(first.status == 0);
    CHECK(first.err.find("timed speculation steps in") != std::string::npos);
    const Outcome second = run_process(program("sequoia-generate"), launch);
    CHECK(second.err.find("timed speculation steps in") == std::string::npos);
    CHECK(second.out == first.out);

    // A given tree is priced by times of larger ones.
    const TemporaryFolder empty;
    Launch given = launch;
    given.arguments.insert(given.arguments.end(), {"-s", "tree.path=", "-s", "spec.gamma=3"});
    given.variables = {{"TANDEM_CACHE_DIR", empty.path().string()}};
    const Outcome chain = run_process(program("sequoia-generate"), given);
    CHECK(chain.status == 0);
    CHECK(chain.err.find("timed speculation steps in") != std::string::npos);

    // Kept times that speak against it: only the target is loaded.
    fs::path kept;
    for (const auto& entry : fs::directory_iterator(cache.path()))
      if (entry.path().filename().string().starts_with("tree-times-")) kept = entry.path();
    REQUIRE(!kept.empty());
    Json times = Json::parse(file_text(kept));
    CHECK(times["draft"] == "tiny-2m");
    for (Json& ms : times["buckets"][0]["draft"]["ms"]) ms = 1000;
    std::ofstream(kept) << times.dump();
    Launch slow = launch;
    slow.arguments.back() = "spec.force=false";
    slow.arguments.push_back("-v");
    const Outcome declined = run_process(program("sequoia-generate"), slow);
    CHECK(declined.status == 0);
    CHECK(declined.err.find("speculation step times from") != std::string::npos);
    CHECK(declined.err.find("speculation would be slower") != std::string::npos);
    CHECK(declined.err.find("draft weights") == std::string::npos);
  }

  TEST_CASE("a shared document is read once") {
    const TemporaryFolder folder;
    const std::string document =
        folder.write("log.txt", "The lamp was lit at dusk. The keeper wrote down wind and ships.")
            .string();
    const std::string questions =
        folder.write("questions.txt", "Who wrote?\nWhen was the lamp lit?\n").string();
    const std::vector<std::string> flags = {
        "-f", document, "--questions",       questions,  "-n",
        "16", "-s",     "model.compute=f32", "--format", "jsonl"};
    std::vector<std::string> plain_flags = {"-m", "tiny-16m", "--device", "cpu"};
    plain_flags.insert(plain_flags.end(), flags.begin(), flags.end());
    const auto events = json_lines(sequoia_generate(flags).out);
    const auto plain =
        json_lines(run_process(program("pig-generate"), {.arguments = plain_flags}).out);
    const auto ids = [](const std::vector<Json>& all) {
      std::map<int, std::vector<int>> by_text;
      for (const Json& e : all)
        if (e["event"] == "token") by_text[e["seq"]].push_back(e["id"]);
      return by_text;
    };
    CHECK(ids(events) == ids(plain));
    CHECK(events.back()["prompt_tokens"] == plain.back()["prompt_tokens"]);
  }

  TEST_CASE("--dry-run tells the memory of both models") {
    const Outcome run = sequoia_generate({"--dry-run", "-s", "run.context=256"});
    CHECK(run.status == 0);
    CHECK(run.out.find("tree     8 nodes on") != std::string::npos);
    CHECK(run.out.find("draft weights") != std::string::npos);
    const Outcome small = sequoia_generate(
        {"--dry-run", "-s", "run.context=256", "-s", "run.host_memory_limit=32MiB"});
    CHECK(small.status == 5);
    CHECK(small.out.find("does not fit") != std::string::npos);
  }

  TEST_CASE("the installed recipes load, print as they are read, and have a plan") {
    for (const std::string name :
         {"sequoia/tiny-16m", "sequoia/llama3-70b-offload", "sequoia/self-tiny-16m"}) {
      CAPTURE(name);
      const auto run = [&](std::vector<std::string> flags) {
        flags.insert(flags.begin(), {"-r", name});
        return run_process(program("sequoia-generate"), {.arguments = std::move(flags)});
      };
      const Outcome printed = run({"--print-recipe"});
      CHECK(printed.status == 0);
      CHECK(run_process(program("sequoia-generate"),
                        {.arguments = {"-r", "-", "--print-recipe"}, .input = printed.out})
                .status == 0);
      // Layers in host memory are a matter of GPUs.
      const std::vector<std::string> plan = {"--dry-run", "--device",           "cpu",
                                             "-s",        "model.offload=none", "-s"};
      auto roomy = plan, narrow = plan;
      roomy.push_back("run.host_memory_limit=400GiB");  // 70B in any type
      narrow.push_back("run.host_memory_limit=64MiB");
      const Outcome fits = run(roomy);
      CHECK(fits.status == 0);
      CHECK(fits.out.find("  fits\n") != std::string::npos);
      CHECK(fits.cpu_seconds < 2);
      const Outcome small = run(narrow);  // the plan first, then what it lacks
      CHECK(small.status == 5);
      CHECK((small.out.find("draft weights") != std::string::npos) ==
            (name != "sequoia/self-tiny-16m"));
      CHECK(small.out.find("does not fit") != std::string::npos);
    }
    const Outcome on_cpu = run_process(
        program("sequoia-generate"),
        {.arguments = {"-r", "sequoia/llama3-70b-offload", "--dry-run", "--device", "cpu"}});
    CHECK(on_cpu.status == 3);
    CHECK(on_cpu.err.find("choose a GPU with --device cuda") != std::string::npos);
  }

  TEST_CASE("every program generates by every draft, and without one") {
    const auto text = [](const char* tool, std::vector<std::string> more) {
      more.insert(more.end(), {"-m", "tiny-16m", "--device", "cpu", "-p", "The lamp", "-n", "12",
                               "-q", "-s", "model.compute=f32"});
      const Outcome run = run_process(program(tool), {.arguments = std::move(more)});
      CHECK(run.err.empty());
      return run.out;
    };
    const std::string plain = text("pig-generate", {});
    const std::vector<std::string> drafts[] = {
        {"-s", "spec.draft=none"},
        {"-s", "spec.draft=ngram"},
        {"-s", "spec.draft=model", "-s", "draft.path=tiny-2m"},
        {"-s", "spec.draft=self", "-s", "draft.cache.kind=snapkv", "-s", "spec.verify=match"},
        {"-s", "spec.draft=nested", "-s", "spec.within=ngram", "-s", "draft.cache.kind=retrieval"}};
    for (const char* tool :
         {"pig-generate", "sequoia-generate", "triforce-generate", "sirius-generate"})
      for (const std::vector<std::string>& draft : drafts) {
        CAPTURE(tool);
        CAPTURE(fmt::format("{}", fmt::join(draft, " ")));
        CHECK(text(tool, draft) == plain);
      }
    CHECK(text("triforce-generate", {"--fastest"}) == plain);
  }

  TEST_CASE("speculation saves a state and continues from one") {
    const TemporaryFolder folder;
    const std::string state = (folder / "s").string();
    const auto text = [](std::vector<std::string> more) {
      more.insert(more.end(), {"-q", "-s", "model.compute=f32"});
      const Outcome run = sequoia_generate(std::move(more));
      CHECK(run.err.empty());
      return run.out;
    };
    const std::vector<std::string> self = {
        "-s", "draft.path=",     "-s", "tree.path=",
        "-s", "spec.draft=self", "-s", "draft.cache.kind=streaming"};
    const std::string whole = text({"-p", "Once upon a time", "-n", "12"});
    CHECK(text({"-p", "Once upon", "-n", "0", "-s", "output.state=" + state}).empty());
    const std::vector<std::string> on = {"-p", " a time", "-n", "12", "-s", "model.state=" + state};
    CHECK(text(on) == whole);
    std::vector<std::string> by_self = self;
    by_self.insert(by_self.end(), on.begin(), on.end());
    CHECK(text(by_self) == whole);
  }

  TEST_CASE("old and present keys of drafts are one recipe, whose files can be rewritten") {
    const TemporaryFolder folder;
    const auto run = [](std::vector<std::string> arguments) {
      return run_process(program("triforce-generate"), {.arguments = std::move(arguments)});
    };
    const std::string tree = (tandem::test::source_dir() / "recipes/sequoia/tree-8.json").string();
    const std::string head = "# A recipe.\nkind: generate\nversion: 1\nmodel: {path: tiny-16m}\n";
    const std::string tail = "# Sizes.\nrun: {seed: 3}\n";
    const std::string old = head + "draft:  # gone\n  cache: {kind: retrieval}\n" +
                            "draft2: {path: tiny-2m}\ntree: {path: \"" + tree + "\"}\n" +
                            "spec: {draft: nested, gamma2: 4, verify: match}\n" + tail;
    const std::string now = head +
                            "spec:\n  draft: {kind: nested, cache: {kind: retrieval}, inner: "
                            "{path: tiny-2m}, gamma2: 4}\n  shape: {kind: tree, path: \"" +
                            tree + "\"}\n  verify: match\n" + tail;
    const std::string file = folder.write("old.yaml", old).string();
    const Outcome upgraded = run({"--upgrade-recipe", file});
    CHECK(upgraded.status == 0);
    const std::string fresh = folder.write("now.yaml", upgraded.out).string();
    CHECK(upgraded.out.starts_with(head.substr(0, head.find('1')) +
                                   "2\nmodel: {path: tiny-16m}\nspec:\n"));
    CHECK(upgraded.out.ends_with(tail));
    CHECK(run({"--upgrade-recipe", fresh}).out == upgraded.out);
    const std::string same = folder.write("same.yaml", now).string();
    const auto effective = [&](const std::string& recipe, std::vector<std::string> more) {
      more.insert(more.end(), {"-r", recipe, "--print-recipe"});
      std::string text = run(more).out;
      for (size_t at = 0; (at = text.find(" #", at)) != std::string::npos;)
        text.erase(text.find_last_not_of(' ', at) + 1,
                   text.find('\n', at) - text.find_last_not_of(' ', at) - 1);
      return text;
    };
    const std::string whole = effective(file, {});
    CHECK(has(whole, "      path: "));
    CHECK(effective(fresh, {}) == whole);
    CHECK(effective(same, {}) == whole);
    // The last layer wins, however it is spelled.
    const std::vector<std::string> pairs[] = {
        {"spec.draft=ngram", "spec.draft.kind=ngram"},
        {"draft2.path=tiny-16m", "spec.draft.inner.path=tiny-16m"},
        {"spec.gamma2=9", "spec.draft.gamma2=9"},
        {"tree.path=", "spec.shape=chain"}};
    for (const std::vector<std::string>& pair : pairs)
      for (const std::string& recipe : {file, fresh}) {
        CAPTURE(pair[0]);
        CHECK(effective(recipe, {"-s", pair[0]}) == effective(recipe, {"-s", pair[1]}));
        CHECK(effective(recipe, {"-s", pair[0]}) != whole);
      }
    const auto kinds = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"-r", "sequoia/tiny-16m", "--print-recipe"});
      return run(more).out;
    };
    for (const char* of_others : {"spec.width=1", "spec.gamma=auto"})
      CHECK(has(kinds({"-s", of_others}), "\n    kind: tree "));
    CHECK(has(kinds({"-s", "spec.draft=ngram"}), "\n    kind: chain "));
    CHECK(has(kinds({"-s", "spec.shape=beams", "-s", "spec.width=1"}), "\n    kind: chain "));
    CHECK(has(
        run_process(program("pig-generate"),
                    {.arguments = {"-m", "tiny-16m", "-s", "draft.path=tiny-2m", "--print-recipe"}})
            .out,
        "\n    kind: model "));
    const std::vector<std::string> plan = {"-r", file, "-p", "The lamp", "--dry-run"};
    CHECK(has(run(plan).err, "recipe   keys have new names: draft.cache -> spec.draft.cache, "));
    CHECK_FALSE(has(run({"-r", fresh, "-p", "The lamp", "--dry-run"}).err, "new names"));
  }

  TEST_CASE("what does not go together") {
    const TemporaryFolder folder;
    struct Case {
      std::vector<std::string> flags;
      int status;
      std::string says;
    };
    const std::string no_tree =
        folder.write("tree.json", R"({"format": "sequoia-tree/1"})").string();
    const std::vector<std::string> prompt = {"-p", "a"};
    const std::string vector =
        (tandem::test::source_dir() / "recipes/sequoia/accept-reference.json").string();
    for (const Case& c : {
             Case{{}, 2, "expected a prompt, found none"},
             Case{{"-s", "draft.path=synthetic:llama-68m"},
                  4,
                  "draft.path: synthetic:llama-68m has 32000 tokens, tiny-16m has 8192"},
             Case{{"-s", "tree.path=" + no_tree}, 4, "tree.json"},
             Case{{"-s", "tree.path=missing.json"}, 4, "missing.json"},
             Case{{"-s", "output.top_logprobs=2"}, 3, "is not supported with speculation"},
             Case{{"-s", "spec.draft={kind: self, path: tiny-2m}"},
                  3,
                  "spec.draft: kind self has no key 'path'"},
             Case{{"-s", "model.state=s", "-s", "tree.path=auto"},
                  3,
                  "model.state: spec.fastest and spec.shape auto measure on a full prompt"},
             Case{{"-s", "spec.verify=block"},
                  3,
                  "spec.verify: is block, which only supports linear"},
             Case{
                 {"-s", "spec.verify=block", "-s", "tree.path=auto", "-s", "tree.accept=" + vector},
                 3,
                 "spec.verify: block needs a linear draft"},
             Case{{"-s", "spec.draft=ngram", "-s", "spec.verify=traversal"},
                  3,
                  "spec.verify: this rule needs sampled draft tokens"},
             Case{{"-s", "spec.verify=best"}, 3, "spec.verify"},
             Case{{"-s", "draft.cache.kind=topk"},
                  3,
                  "draft.cache.kind: is topk, which does not support trees of draft tokens"},
             Case{{"-s", "draft.cache.kind=verified"},
                  3,
                  "cache.kind: is verified, which is only supported for drafts: its keys"},
             Case{{"-s", "draft.cache.kind=snapkv", "-s", "draft.cache.prefill=windowed"},
                  3,
                  "cache.prefill: windowed needs kind streaming, found snapkv"},
             Case{{"-s", "tree.path=", "-s", "run.context=64", "-s", "spec.gamma=70"},
                  3,
                  "spec.shape.gamma: is 70 tokens, "},
             Case{{"-s", "spec.draft=ngram", "-s", "run.context=64", "-s", "spec.gamma=70"},
                  3,
                  "spec.shape.gamma: is 70 tokens, "},
             Case{{"-s", "tree.path=", "-s", "spec.gamma=[2, auto]"},
                  3,
                  "spec.shape.gamma: expected one number or auto"},
             Case{{"-s", "tree.path=", "-s", "spec.gamma=auto", "-s", "tree.accept=" + vector},
                  3,
                  "spec.shape.gamma: auto does not use spec.shape.accept or spec.shape.replay"},
             Case{{"-s", "spec.shape.gamma=auto"}, 3, "spec.shape: kind tree has no key 'gamma'"},
             Case{{"-s", "tree.path=", "-s", "spec.gamma=300"},
                  3,
                  "spec.shape.gamma: 300 is out of range, expected 1 .. 256 tokens or auto"},
         }) {
      CAPTURE(c.says);
      std::vector<std::string> flags = c.flags;
      if (!c.flags.empty()) flags.insert(flags.end(), prompt.begin(), prompt.end());
      const Outcome run = sequoia_generate(flags);
      CHECK(run.status == c.status);
      CHECK(run.out.empty());
      CHECK(run.err.find(c.says) != std::string::npos);
    }
  }
}
