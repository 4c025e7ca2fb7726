// Generation with drafts, by programs of one body whose names differ in defaults.
#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "cli/drafts.h"
#include "cli/probe.h"

using namespace tandem::testing;
namespace fs = std::filesystem;

namespace {

const Words kExact = "--device cpu -s model.compute=f32";
const Words kJson = "--format jsonl";
const Words kPlain = "pig-generate -m tiny-16m";
const Words kLong = "-p 'The keeper of the lighthouse' -n 120";
const Words kOnce = "-p 'Once upon a time'";

/// A program with the recipe of its method.
Outcome sequoia(const Words& more) {
  return command("sequoia-generate -r sequoia/tiny-16m --device cpu" + more);
}
Outcome sirius(const Words& more) {
  return command("sirius-generate -r sirius/tiny-16m --device cpu" + more);
}
Outcome triforce(const Words& more) {
  return command("triforce-generate -r triforce/tiny-16m --device cpu" + more);
}

/// Checks a greedy text, which must be plain decoding's, and what its summary has of steps.
Json spec_of(const Words& way, const std::string& verify, const std::string& says = "") {
  static const auto plain = ids_of(command(kPlain + kExact + kLong + kJson));
  CAPTURE(fmt::format("{}", fmt::join(way, " ")));
  const Outcome run = command(way + kExact + kLong + kJson);
  CAPTURE(run.err);
  CHECK(run.status == 0);
  CHECK(plain.at(0).size() == 120);
  CHECK(ids_of(run) == plain);
  CHECK(has(run.err, says));
  CHECK(has(run.err, "\nplain    "));
  CHECK(has(run.err, " ms per token, measured over "));
  CHECK(speedup_in(run.err) > 0);
  const Json summary = last_event(run), spec = summary["spec"];
  const int rounds = spec["rounds"], accepted = spec["accepted"], drafted = spec["drafted"];
  CHECK(spec["verify"] == verify);
  CHECK(accepted > 0);
  CHECK(accepted <= drafted);
  CHECK(spec["emitted"] == accepted + rounds);
  CHECK(summary["decode_steps"] == rounds);
  const double mean = spec["mean_tokens_per_round"];
  CHECK(mean == doctest::Approx(1 + double(accepted) / rounds));
  const auto rates = spec["rate_by_position"].get<std::vector<double>>();
  CHECK(1 + std::accumulate(rates.begin(), rates.end(), 0.0) == doctest::Approx(mean));
  CHECK(spec["share_accepted"].get<double>() == doctest::Approx(double(accepted) / drafted));
  CHECK(spec["plain_steps"].get<int>() >= 1);
  CHECK(spec["plain_batch"] == 1);
  CHECK(spec["plain_ms_per_token"].get<double>() > 0);
  CHECK(spec["speedup"].get<double>() == doctest::Approx(spec["plain_ms_per_token"].get<double>() /
                                                         spec["ms_per_token"].get<double>()));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which hold memory themselves
  CHECK(summary["peak_bytes"].get<double>() <= 1.05 * summary["planned_peak_bytes"].get<double>());
#endif
  return spec;
}

}  // namespace

TEST_SUITE("cli/generate/drafts") {
  TEST_CASE("every way writes plain decoding's text; summaries tell steps, rule and speed-up") {
    const Words pair = "sequoia-generate -r sequoia/tiny-16m";
    const Json tree = spec_of(pair, "traversal", "tokens per step by traversal, draft");
    CHECK(tree["drafted"] == 7 * tree["rounds"].get<int>());
    for (const std::string rule : {"match", "sequoia", "traversal"})
      CHECK(spec_of(pair + ("-s spec.verify=" + rule), rule)["accepted_hist"] ==
            tree["accepted_hist"]);
    const Json chain =
        spec_of(pair + "-s tree.path=", "block", " (tokens per step include one from the target)");
    const Json lookup = spec_of("sequoia-generate -m tiny-16m -s spec.draft=ngram", "match");
    for (const Json& spec : {tree, chain, lookup}) CHECK(spec["accepted"] < spec["drafted"]);
    spec_of("sequoia-generate -r sequoia/self-tiny-16m", "block");
    const Json automatic = spec_of(pair + "-s tree.path= -s spec.gamma=auto", "block");
    CHECK(automatic["accepted_hist"].size() == 17);
    CHECK(automatic["drafted"] < 16 * automatic["rounds"].get<int>());
    const Json self = spec_of(
        "sequoia-generate -m tiny-16m -s spec.draft=self -s draft.cache.kind=streaming -s "
        "draft.cache.sinks=2 -s draft.cache.recent=8 -s spec.gamma=3",
        "block");
    CHECK(self["draft"] == "self");
    CHECK(self["drafted"] == 3 * self["rounds"].get<int>());

    const Words sparse = "sirius-generate -r sirius/tiny-16m -s spec.verify=match";
    const Json neurons =
        spec_of(sparse, "match", "\nneurons  cats: drafts compute 50.0 % of the FFN,");
    const Json channels = neurons["channels"];
    CHECK(channels["policy"] == "cats");
    CHECK(channels["k"] == 8.0);
    const double aal = channels["aal"], density = channels["density"];
    CHECK(aal > 1);
    CHECK(aal <= 8);
    CHECK(channels["apu"].get<double>() == doctest::Approx((1 + 7 * density) / aal));
    CHECK(neurons["drafted"] == 7 * neurons["rounds"].get<int>());
    const Json beams = spec_of(sparse + "-s spec.width=4", "match");
    CHECK(beams["channels"]["aal"] > aal);
    CHECK(beams["drafted"] == 28 * beams["rounds"].get<int>());
    CHECK(sirius(kExact + kLong + "-s spec.width=4 -s spec.verify=floor").status == 0);
    spec_of("sirius-generate -m tiny-16m", "match");  // its defaults

    for (const Words& inner : {Words(), Words("-s spec.within=ngram -s draft2.path=")}) {
      const Json spec = spec_of("triforce-generate -r triforce/tiny-16m" + inner, "block");
      const Json within = spec["within"];
      CHECK(within["emitted"] == within["accepted"].get<int>() + within["rounds"].get<int>());
      CHECK(within["emitted"] >= spec["drafted"]);
      CHECK(within["accepted"] > 0);
      CHECK(within["drafted"] > within["accepted"]);
    }
  }

  TEST_CASE("texts of a document, its questions and a batch are plain decoding's, too") {
    const TemporaryFolder folder;
    const std::string document = folder.write("document.txt", logbook().substr(0, 4000));
    const std::string prompts = folder.write("prompts.jsonl",
                                             "{\"prompt\": \"The keeper\"}\n{\"prompt\": "
                                             "\"Once\"}\n{\"prompt\": \"The lamp was\"}\n");
    const Words one = "-n 30 -f " + document,
                shared = one + Words{"--questions", recipe_file("demo/questions.txt")},
                batch = "-n 60 --prompts " + prompts;
    const Words lookup = "sequoia-generate -m tiny-16m -s spec.draft=ngram",
                pair = "sequoia-generate -r sequoia/tiny-16m",
                nested = "triforce-generate -r triforce/tiny-16m",
                by_text = nested + "-s spec.within=ngram -s draft2.path= -s spec.gamma1=4";
    for (const auto& [text, ways] : {std::pair{one, std::vector<Words>{nested, by_text}},
                                     {shared, {pair, nested, by_text}},
                                     {batch, {lookup}}}) {
      const Outcome plain = command(kPlain + kExact + text + kJson);
      CHECK(ids_of(plain).size() >= (text == one ? 1 : 3));
      for (const Words& way : ways) {
        CAPTURE(fmt::format("{} {}", fmt::join(way, " "), fmt::join(text, " ")));
        const Outcome run = command(way + kExact + text + kJson);
        CHECK(run.status == 0);
        CHECK(ids_of(run) == ids_of(plain));
        CHECK(last_event(run)["prompt_tokens"] == last_event(plain)["prompt_tokens"]);
        if (text != batch) continue;
        CHECK(last_event(run)["spec"]["plain_batch"] == 3);
        CHECK(has(run.err, " ms per token for 3 sequences, measured over "));
      }
    }
    const Json drawn =
        last_event(command(by_text + kExact + one + kJson + "-s sampling.temperature=0.7"))["spec"];
    CHECK(drawn["emitted"] == drawn["accepted"].get<int>() + drawn["rounds"].get<int>());
    CHECK(drawn["within"]["accepted"] > 0);
  }

  TEST_CASE("every program generates by every draft, and without one") {
    const auto text = [](const std::string& tool, const Words& more) {
      const Outcome run =
          command(tool + "-generate -m tiny-16m -p 'The lamp' -n 12 -q" + kExact + more);
      CHECK(run.err.empty());
      return run.out;
    };
    const std::string plain = text("pig", {});
    for (const char* tool : {"pig", "sequoia", "triforce", "sirius"})
      for (const Words draft :
           {"-s spec.draft=none", "-s spec.draft=ngram",
            "-s spec.draft=model -s draft.path=tiny-2m",
            "-s spec.draft=self -s draft.cache.kind=snapkv -s spec.verify=match",
            "-s spec.draft=nested -s spec.within=ngram -s draft.cache.kind=retrieval"}) {
        CAPTURE(tool);
        CAPTURE(draft.at(1));
        CHECK(text(tool, draft) == plain);
      }
    CHECK(text("triforce", "--fastest") == plain);
  }

  TEST_CASE("the tokens of a step come before the next, and steps add up to the summary") {
    const std::vector<Json> events = json_lines(sequoia(kOnce + kExact + "-n 30" + kJson).out);
    int rounds = 0, drafted = 0, accepted = 0, tokens = 0;
    int promised = 1;  // by the prompt and the rounds so far
    for (const Json& e : events) {
      if (e["event"] == "token") CHECK(++tokens <= promised);
      if (e["event"] != "round") continue;
      CHECK(tokens == promised);  // those of the round before come first
      promised += e["accepted"].get<int>() + 1;
      ++rounds;
      drafted += e["drafted"].get<int>();
      accepted += e["accepted"].get<int>();
    }
    const Json spec = events.back()["spec"];
    CHECK(tokens == 30);
    CHECK(spec["rounds"] == rounds);
    CHECK(spec["drafted"] == drafted);
    CHECK(spec["accepted"] == accepted);
  }

  TEST_CASE("a draft that reads its prompt under a window goes beyond what it was made for") {
    // tiny-2m, said to be made for 512 tokens, behind a prompt of some 2,700.
    const TemporaryFolder folder;
    const std::string draft =
        changed_model(folder, "config.json", {{"max_position_embeddings", 512}});
    const Words text =
        kExact + ("-n 24 -f " + folder.write("prompt.txt", logbook().substr(0, 10000)).string());
    const Words dense = text + ("-s tree.path= -s draft.cache.kind=streaming -s "
                                "draft.cache.recent=300 -s draft.path=" +
                                draft);
    const Words windowed = dense + "-s draft.cache.reposition=true -s draft.cache.prefill=windowed";
    CHECK(has(sequoia(dense).err, "the context holds only 512"));
    const Outcome run = sequoia(windowed);
    CHECK(run.status == 0);
    CHECK(run.out == command(kPlain + text).out);
    CHECK(has(sequoia(windowed + "-s draft.cache.recent=600").err,
              "draft.cache: sinks and recent are 604 tokens, but "));
  }

  TEST_CASE("tree.path auto: the tree that the times speak for; none where they speak against it") {
    const TemporaryFolder folder;
    const Words text = kOnce + kExact + "-n 24",
                accept = "-s tree.accept=" + write_vector(folder, "topk-greedy", "[0.6, 0.1]");
    const Words cheap = "-s tree.timing=" + write_times(folder, "cheap.json", 0.1),
                dear = "-s tree.timing=" + write_times(folder, "dear.json", 20);
    const Words automatic = text + accept + cheap + "-s tree.path=auto";
    const Outcome pays = sequoia(automatic + "-s tree.max_levels=4");
    CHECK(pays.status == 0);
    CHECK(pays.out == sequoia(text).out);
    CHECK(has(pays.err, "on 4 levels"));
    const Json chosen = last_event(sequoia(automatic + kJson))["spec"];
    CHECK(chosen["predicted"]["speedup"].get<double>() > 1);
    CHECK(chosen["nodes"] == chosen["predicted"]["nodes"]);

    for (const std::string& tree : {std::string("auto"), recipe_file("sequoia/tree-8.json")}) {
      CAPTURE(tree);
      const Words flags = text + accept + dear + kJson + "-v" + Words{"-s", "tree.path=" + tree};
      const Outcome declined = sequoia(flags);
      CHECK_FALSE(has(declined.err, "draft weights"));  // not loaded at all
      CHECK(has(declined.err, "speculation would be slower"));
      const Json spec = last_event(declined)["spec"];
      CHECK(spec["declined"] == true);
      CHECK(spec["predicted"]["speedup"].get<double>() < 1);
      CHECK_FALSE(spec.contains("rounds"));
      const Outcome insists = sequoia(flags + "-s spec.force=true");
      CHECK(has(insists.err, "draft weights"));
      CHECK(last_event(insists)["spec"]["rounds"].get<int>() > 0);
    }
  }

  TEST_CASE("tree.path auto without a vector measures acceptance on the prompt") {
    const TemporaryFolder folder;
    std::vector<int> children(17, 0);
    children[0] = 16;
    const std::string star = folder.write(
        "star.json", Json{{"format", "sequoia-tree/1"}, {"branch_counts", children}}.dump());
    const Words text = kOnce + kExact + "-n 64",
                run = "sequoia-generate -m tiny-16m -s draft.path=tiny-2m" + text,
                automatic = run + ("-s tree.path=auto -s tree.timing=" +
                                   write_times(folder, "timing.json", 0.1));
    const auto spec = [](const Words& line) { return last_event(command(line + kJson))["spec"]; };

    const Outcome chosen = command(automatic);
    CHECK(chosen.status == 0);
    CHECK(chosen.out == command(kPlain + text).out);
    const Json told = spec(automatic), measured = told["predicted"]["acceptance"];
    CHECK(told["nodes"] == told["predicted"]["nodes"]);
    CHECK(told["rounds"].get<int>() > 0);
    const auto p = measured["p"].get<std::vector<double>>();
    for (const std::string& says :
         {fmt::format("tree     acceptance measured over {} speculation steps in ",
                      measured["rounds"].get<int>()),
          fmt::format(" s: {:.2f}\n", fmt::join(p, " ")),
          fmt::format("tree     {} nodes on ", told["nodes"].get<int>())})
      CHECK_MESSAGE(has(chosen.err, says), says);
    CHECK(p.front() > std::accumulate(p.begin() + 1, p.end(), 0.0));

    // Rounds of such a tree accept as often in the same greedy text. Drawn texts are others: the
    // chosen tree must not depend on the random numbers that draw the run's.
    const auto count_both = [&](const Words& more) {
      const Json counted = spec(automatic + more)["predicted"]["acceptance"];
      const Json given = spec(automatic + more + ("-s tree.path=" + star));
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
      const auto drawn = count_both(std::string("-s sampling.temperature=1 -s run.seed=") + seed);
      is_same = is_same && drawn[0] == drawn[1];
    }
    CHECK_FALSE(is_same);
  }

  TEST_CASE("times are measured once, and kept for these models and this machine") {
    const TemporaryFolder folder, cache, empty;
    const Words line =
        "sequoia-generate -r sequoia/tiny-16m --device cpu -n 12 -s tree.path=auto "
        "-s tree.max_nodes=8 -s tree.accept=" +
        write_vector(folder, "topk-greedy", "[0.6, 0.1]") + kOnce;
    const auto run = [&](const Words& more, const TemporaryFolder& kept) {
      return command(line + more, {.variables = {{"TANDEM_CACHE_DIR", kept.path()}}});
    };
    const Words force = "-s spec.force=true";
    const Outcome first = run(force, cache), second = run(force, cache);
    CHECK(first.status == 0);
    CHECK(has(first.err, "timed speculation steps in"));
    CHECK_FALSE(has(second.err, "timed speculation steps in"));
    CHECK(second.out == first.out);

    // A given tree is priced by times of larger ones.
    const Outcome chain = run(force + "-s tree.path= -s spec.gamma=3", empty);
    CHECK(chain.status == 0);
    CHECK(has(chain.err, "timed speculation steps in"));

    // Kept times that speak against it: only the target is loaded.
    fs::path kept;
    for (const auto& entry : fs::directory_iterator(cache.path()))
      if (entry.path().filename().string().starts_with("tree-times-")) kept = entry.path();
    REQUIRE(!kept.empty());
    Json times = Json::parse(file_text(kept));
    CHECK(times["draft"] == "tiny-2m");
    for (Json& ms : times["buckets"][0]["draft"]["ms"]) ms = 1000;
    std::ofstream(kept) << times.dump();
    const Outcome declined = run("-v", cache);
    CHECK(declined.status == 0);
    CHECK(has(declined.err, "speculation step times from"));
    CHECK(has(declined.err, "speculation would be slower"));
    CHECK_FALSE(has(declined.err, "draft weights"));
  }

  TEST_CASE("--dry-run tells what steps are made of, and the memory of all models") {
    const auto plan = [](Outcome (*run)(const Words&), const Words& more) {
      return Json::parse(run("-p a --dry-run" + kJson + more).out);
    };
    const Outcome pair = sequoia("--dry-run -s run.context=256");
    CHECK(pair.status == 0);
    CHECK(has(pair.out, "tree     8 nodes on"));
    CHECK(has(pair.out, "draft weights"));
    const Json self = plan(sequoia,
                           "-s draft.path= -s tree.path= -s spec.draft=self -s "
                           "draft.cache.kind=streaming -s spec.gamma=3");
    CHECK(self["draft"] == "self");
    CHECK(self["tree"]["nodes"] == 4);

    const Outcome sparse = sirius("-p a --dry-run");
    CHECK(sparse.status == 0);
    CHECK(has(sparse.out, "\ndraft    self, cats neurons\n"));
    const Json griffin = plan(sirius, {"-s", "draft.sparse={kind: griffin, weigh: false}"});
    CHECK(griffin["draft_sparse"] == "griffin");
    CHECK(has(griffin.dump(), "\"index\""));

    const Json nested = plan(triforce, "-s spec.gamma1=3");
    CHECK(nested["nested"] == Json{{"rounds", 3}, {"enough", 6}, {"most", 9}});
    CHECK(nested["tree"]["nodes"] == 4);
    CHECK(nested["within"] == "retrieval");
    const Json by_text = plan(triforce, "-s spec.within=ngram -s draft2.path= -s spec.gamma1=4");
    CHECK(by_text["draft"] == "ngram");
    CHECK(by_text["within"] == "retrieval");
    CHECK(by_text["tree"]["nodes"] == 5);
    CHECK_FALSE(has(by_text.dump(), "draft weights"));
    CHECK_FALSE(has(by_text.dump(), "draft_cache"));
    // The paper's pair fits an H200.
    const Outcome paper =
        command("triforce-generate -r triforce/llama2-7b-128k --dry-run -s run.plan_for=h200",
                {.variables = {{"CUDA_VISIBLE_DEVICES", ""}}});
    CAPTURE(paper.err);
    CHECK(paper.status == 0);
    CHECK(has(paper.out, "  fits\n"));
    CHECK_FALSE(has(paper.out, "does not fit"));
    CHECK(
        has(paper.out, "\ninner    4 steps per speculation step, drafts of 6 tokens, at most 7\n"));
    CHECK(has(paper.out,
              "\ndraft    synthetic:llama-68m, streaming in inner steps, verified by the target "
              "under retrieval\n"));
  }

  TEST_CASE("the installed recipes load, print as they are read, and have a plan") {
    std::vector<std::string> names = {"sequoia/tiny-16m", "sequoia/llama3-70b-offload",
                                      "sequoia/self-tiny-16m"};
    for (const auto& entry : fs::directory_iterator(recipe_file("pig")))
      if (has(file_text(entry.path()), "\nkind: generate\n"))
        names.push_back("pig/" + entry.path().stem().string());
    CHECK(names.size() >= 6);
    for (const std::string& name : names) {
      CAPTURE(name);
      Words line = "sequoia-generate -r " + name;
      if (has(name, "pig/")) line = "pig-generate -r " + name;
      if (has(name, "pig/llama3")) line = line + "-m synthetic:llama-3.1-8b";
      const Outcome printed = command(line + "--print-recipe");
      CHECK(printed.status == 0);
      CHECK(command({line[0], "-r", "-", "--print-recipe"}, {.input = printed.out}).status == 0);
      // Layers in host memory are a matter of GPUs.
      const Words plan = line + "--dry-run --device cpu -s model.offload=none";
      const std::string room = has(name, "70b") ? "400GiB" : "64GiB";
      const Outcome fits = command(plan + ("-s run.host_memory_limit=" + room));
      CHECK(fits.status == 0);
      CHECK(has(fits.out, "  fits\n"));
      CHECK(fits.cpu_seconds < 2);
      const Outcome small = command(plan + "-s run.host_memory_limit=16MiB");
      CHECK(small.status == 5);  // the plan first, then what it lacks
      CHECK(has(small.out, "draft weights") ==
            (has(name, "sequoia/") && name != "sequoia/self-tiny-16m"));
      CHECK(has(small.out, "does not fit"));
    }
  }

  TEST_CASE("speculation saves a state and continues from one") {
    const TemporaryFolder folder;
    const std::string state = folder / "s";
    const auto text = [](const Words& more) {
      const Outcome run = sequoia(kExact + "-q" + more);
      CHECK(run.err.empty());
      return run.out;
    };
    const std::string whole = text(kOnce + "-n 12");
    CHECK(text("-p 'Once upon' -n 0 -s output.state=" + state).empty());
    const Words on = "-p ' a time' -n 12 -s model.state=" + state;
    CHECK(text(on) == whole);
    CHECK(text("-s draft.path= -s tree.path= -s spec.draft=self -s draft.cache.kind=streaming" +
               on) == whole);
  }

  TEST_CASE("old and present keys of drafts are one recipe, whose files can be rewritten") {
    const TemporaryFolder folder;
    const auto run = [](const Words& more) { return command("triforce-generate" + more); };
    const std::string tree = recipe_file("sequoia/tree-8.json");
    const std::string head = "# A recipe.\nkind: generate\nversion: 1\nmodel: {path: tiny-16m}\n";
    const std::string tail = "# Sizes.\nrun: {seed: 3}\n";
    const std::string old = head + "draft:  # gone\n  cache: {kind: retrieval}\n" +
                            "draft2: {path: tiny-2m}\ntree: {path: \"" + tree + "\"}\n" +
                            "spec: {draft: nested, gamma2: 4, verify: match}\n" + tail;
    const std::string now = head +
                            "spec:\n  draft: {kind: nested, cache: {kind: retrieval}, inner: "
                            "{path: tiny-2m}, gamma2: 4}\n  shape: {kind: tree, path: \"" +
                            tree + "\"}\n  verify: match\n" + tail;
    const std::string file = folder.write("old.yaml", old), same = folder.write("same.yaml", now);
    const Outcome upgraded = run("--upgrade-recipe " + file);
    CHECK(upgraded.status == 0);
    const std::string fresh = folder.write("now.yaml", upgraded.out);
    CHECK(upgraded.out.starts_with(head.substr(0, head.find('1')) +
                                   "2\nmodel: {path: tiny-16m}\nspec:\n"));
    CHECK(upgraded.out.ends_with(tail));
    CHECK(run("--upgrade-recipe " + fresh).out == upgraded.out);
    const auto effective = [&](const std::string& recipe, const Words& more) {
      return without_origins(run("--print-recipe -r " + recipe + more).out);
    };
    const std::string whole = effective(file, {});
    CHECK(has(whole, "      path: "));
    CHECK(effective(fresh, {}) == whole);
    CHECK(effective(same, {}) == whole);
    // The last layer wins, however it is spelled.
    for (const auto& [before, after] :
         {std::pair{"-s spec.draft=ngram", "-s spec.draft.kind=ngram"},
          {"-s draft2.path=tiny-16m", "-s spec.draft.inner.path=tiny-16m"},
          {"-s spec.gamma2=9", "-s spec.draft.gamma2=9"},
          {"-s tree.path=", "-s spec.shape=chain"}})
      for (const std::string& recipe : {file, fresh}) {
        CAPTURE(before);
        CHECK(effective(recipe, before) == effective(recipe, after));
        CHECK(effective(recipe, before) != whole);
      }
    for (const auto& [flags, kind] : {std::pair{"-s spec.width=1", "tree"},
                                      {"-s spec.gamma=auto", "tree"},
                                      {"-s spec.draft=ngram", "chain"},
                                      {"-s spec.shape=beams -s spec.width=1", "chain"},
                                      {"-m tiny-16m -s draft.path=tiny-2m", "model"}}) {
      CAPTURE(flags);
      const Words line =
          has(flags, "-m ") ? "pig-generate" : "triforce-generate -r sequoia/tiny-16m";
      CHECK(has(command(line + flags + "--print-recipe").out,
                std::string("\n    kind: ") + kind + " "));
    }
    const Words plan = "-p 'The lamp' --dry-run";
    CHECK(has(run("-r " + file + plan).err,
              "recipe   keys have new names: draft.cache -> spec.draft.cache, "));
    CHECK_FALSE(has(run("-r " + fresh + plan).err, "new names"));
  }

  TEST_CASE("what does not go together is told in a line, with what to do") {
    const TemporaryFolder folder;
    const std::string no_tree = folder.write("tree.json", R"({"format": "sequoia-tree/1"})");
    const std::string vector = recipe_file("sequoia/accept-reference.json");
    const Words prompt = "--device cpu -p a";
    check_refusals("sequoia-generate -m tiny-16m" + prompt,
                   {{{}, 3, "draft.path: expected the draft model, found none"}});
    check_refusals(
        "sequoia-generate -r sequoia/tiny-16m" + prompt,
        {{"-s draft.path=synthetic:llama-68m", 4,
          "draft.path: synthetic:llama-68m has 32000 tokens, tiny-16m has 8192"},
         {"-s tree.path=" + no_tree, 4, "tree.json"},
         {"-s tree.path=missing.json", 4, "missing.json"},
         {"-s output.top_logprobs=2", 3, "is not supported with speculation"},
         {{"-s", "spec.draft={kind: self, path: tiny-2m}"},
          3,
          "spec.draft: kind self has no key 'path'"},
         {"-s model.state=s -s tree.path=auto", 3,
          "model.state: spec.fastest and spec.shape auto measure on a full prompt"},
         {"-s spec.verify=block", 3, "spec.verify: is block, which only supports linear"},
         {"-s spec.verify=block -s tree.path=auto -s tree.accept=" + vector, 3,
          "spec.verify: block needs a linear draft"},
         {"-s spec.draft=ngram -s spec.verify=traversal", 3,
          "spec.verify: this rule needs sampled draft tokens"},
         {"-s spec.verify=best", 3, "spec.verify"},
         {"-s draft.cache.kind=topk", 3,
          "draft.cache.kind: is topk, which does not support trees of draft tokens"},
         {"-s draft.cache.kind=verified", 3,
          "cache.kind: is verified, which is only supported for drafts: its keys"},
         {"-s draft.cache.kind=snapkv -s draft.cache.prefill=windowed", 3,
          "cache.prefill: windowed needs kind streaming, found snapkv"},
         {"-s tree.path= -s run.context=64 -s spec.gamma=70", 3,
          "spec.shape.gamma: is 70 tokens, "},
         {"-s spec.draft=ngram -s run.context=64 -s spec.gamma=70", 3,
          "spec.shape.gamma: is 70 tokens, "},
         {"-s tree.path= -s 'spec.gamma=[2, auto]'", 3,
          "spec.shape.gamma: expected one number or auto"},
         {"-s tree.path= -s spec.gamma=auto -s tree.accept=" + vector, 3,
          "spec.shape.gamma: auto does not use spec.shape.accept or spec.shape.replay"},
         {"-s spec.shape.gamma=auto", 3, "spec.shape: kind tree has no key 'gamma'"},
         {"-s tree.path= -s spec.gamma=300", 3,
          "spec.shape.gamma: 300 is out of range, expected 1 .. 256 tokens or auto"}});
    check_refusals(
        "sirius-generate -r sirius/tiny-16m" + prompt,
        {{"-s draft.sparse.keep=0", 3, "draft.sparse.keep: 0 is out of range"},
         {"-s draft.sparse.keep=1.01", 3, "draft.sparse.keep: 1.01 is out of range"},
         {"-s draft.sparse.keep=-0.5", 3, "draft.sparse.keep: -0.5 is out of range"},
         {"-s draft.sparse.keep=.nan", 3, "draft.sparse.keep"},
         {"-s draft.sparse.keep=0.0001", 3, "sparse.keep: is 0.0001 and keeps none of a layer's "},
         {"-s draft.sparse.kind=none-such", 3, "draft.sparse.kind"},
         {"-s draft.sparse.refresh=0.5", 3, "sparse.refresh: needs kind griffin, found cats"},
         {"-s draft.sparse.kind=griffin", 3, "sparse.weighted: needs kind cats, found griffin"},
         {"-s 'draft.sparse={kind: cats_threshold, weigh: false}'", 3,
          "sparse.thresholds: kind cats_threshold needs a file"},
         {"-s 'draft.sparse={kind: cats_threshold, weigh: false, thresholds: none.json}'", 4,
          "none.json"},
         {"-s 'spec.draft={kind: ngram, sparse: {kind: cats}}'", 3,
          "spec.draft: kind ngram has no key 'sparse'"},
         {"-s spec.width=9", 3, "spec.shape.width: 9 is out of range, expected 2 .. 8 beams"},
         {"-s spec.width=4 -s sampling.temperature=0.5", 3,
          "spec.shape.kind: beams do not support sampling, but sampling.temperature is 0.5; set "
          "sampling.temperature=0"},
         {"-s spec.width=4 -s spec.verify=block", 3,
          "spec.verify: block needs sampled draft tokens, but beams do not sample"},
         {"-s 'spec.shape={kind: beams, path: a.json}'", 3,
          "spec.shape: kind beams has no key 'path'"},
         {"-s spec.width=4 -s spec.gamma=auto", 3, "spec.shape.gamma: auto does not support beams"},
         {"-s spec.width=8 -s spec.gamma=128", 3,
          "spec.shape.width: 8 beams of 128 tokens make 1025 nodes with the root, but at most "
          "1024"},
         {"-s draft.cache.kind=topk", 3,
          "draft.cache.kind: is topk, which does not support trees of draft tokens"}});
    const Words by_text = "-s spec.within=ngram -s draft2.path=";
    check_refusals(
        "triforce-generate -r triforce/tiny-16m" + prompt,
        {{"-s draft2.path=", 3,
          "spec.draft.inner.path: expected the small model of inner steps, found none"},
         {"-s draft2.path=none-such", 4, "none-such"},
         {"-s 'spec.draft.inner={kind: ngram, path: tiny-2m}'", 3,
          "spec.draft.inner: kind ngram has no key 'path'"},
         {by_text + "-s spec.draft=auto", 3,
          "spec.draft.inner.kind: spec.draft auto needs a model; set model, or "
          "spec.draft.kind=nested"},
         {"-s spec.draft=self -s spec.within=ngram", 3, "spec.draft: kind self has no key 'inner'"},
         {by_text + "-s tree.path=some.json", 3,
          "spec.shape.kind: spec.draft.inner is ngram, which does not propose trees"},
         {by_text + "-s spec.verify_within=sequoia", 3,
          "spec.draft.inner_verify: this rule needs sampled draft tokens, but prompt lookup does "
          "not sample; set match or auto"},
         {"-s spec.within=none", 3, "spec.draft.inner.kind"},
         {"-s draft2.path=synthetic:llama-68m", 4,
          "synthetic:llama-68m has 32000 tokens, tiny-16m has 8192"},
         {"-s draft.path=tiny-2m", 3, "spec.draft: kind nested has no key 'path'"},
         {"-s 'draft.cache.retrieval={budget: 12, chunk: 8}'", 3,
          "cache.retrieval.budget: 12 tokens do not hold two chunks of 8"},
         {"-s draft.cache.retrieval.chunk=7", 3,
          "cache.retrieval.chunk: expected a divisor of 64, found 7"},
         {"-s 'draft.cache.retrieval={budget: 512, chunk: 128}'", 3, "cache.retrieval.chunk"},
         {"-s run.context=64 -s spec.gamma2=70", 3, "spec.draft.gamma2: is 70 tokens, "},
         {"-s spec.gamma2=300", 3, "spec.draft.gamma2: 300 is out of range"},
         {"-s spec.rounds=0", 3, "spec.draft.inner_steps: 0 is out of range"},
         {"-s tree.path=auto", 3,
          "spec.shape.kind: auto needs spec.draft model or self, found nested"},
         {"-s tree.path=missing.json", 4, "missing.json"}});
  }
}
