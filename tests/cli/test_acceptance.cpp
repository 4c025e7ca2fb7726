// Acceptance as one vector and as records of many drafts: one body, whose names differ in defaults.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/drafts.h"
#include "cli/probe.h"

using namespace tandem::testing;

namespace {

const Words kOnce = "-p 'Once upon a time'";

/// The vector of one pair.
Outcome pair(const Words& more) {
  return command("sequoia-acceptance -r sequoia/acceptance-tiny-16m --device cpu" + more);
}

/// Records of a few tokens: a second or two.
Outcome drafts(const std::string& list, const Words& more) {
  return command(
      "magicdec-acceptance -m tiny-16m --device cpu -s run.context=300 -s run.batch=2 -s "
      "spec.gamma=3 -s 'bench={new_tokens: 16, temperatures: [0, 1]}'" +
      Words{"-s", "bench.drafts=[" + list + "]"} + more);
}

std::map<std::string, Json> records_of(const std::string& list, const Words& more) {
  const Outcome run = drafts(list, more + "--format jsonl");
  CAPTURE(run.err);
  CHECK(run.status == 0);
  return by_phase(run.out);
}

/// Searches trees by a file of vectors.
Outcome search(const std::string& file) {
  return command("sequoia-tree-search -s tree.sizes=[4] --accept " + file);
}

const std::string kNested =
    "{name: chunks, keys: retrieval, page: 8}, {name: small, kind: model, path: tiny-2m, keys: "
    "full}, {name: both, kind: nested, self: chunks, small: small}";

}  // namespace

TEST_SUITE("cli/acceptance") {
  TEST_CASE("a vector that the tree search reads, the same on every run") {
    const TemporaryFolder folder;
    const std::string path = folder / "accept.json";
    const Words flags = kOnce + "-n 60 -s accept.width=4";
    const Outcome run = pair(flags);
    CHECK(run.status == 0);
    const Json v = Json::parse(run.out);
    CHECK(v["format"] == "acceptance-vector/1");
    CHECK(v["method"] == "sequoia");
    CHECK(v["samples"] == 60);
    CHECK(v["target"] == "tiny-16m");
    CHECK(v["draft"] == "tiny-2m");
    CHECK(v["p"].size() == 4);
    CHECK(v["stderr"].size() == 4);
    double sum = v["residual"].get<double>();
    for (const Json& p : v["p"]) {
      CHECK(p.get<double>() >= 0);
      sum += p.get<double>();
    }
    CHECK(sum == doctest::Approx(1));
    CHECK(v["p"][0].get<double>() > 0.2);

    const auto in_form = [&](const std::string& form) {
      return pair(flags + ("--format " + form)).out;
    };
    const std::string csv = in_form("csv");
    CHECK(
        csv.starts_with(fmt::format("depth,child,accepted,stderr,positions\n,1,{:.6f},{:.6f},60\n",
                                    v["p"][0].get<double>(), v["stderr"][0].get<double>())));
    CHECK(std::ranges::count(csv, '\n') == 5);
    CHECK(in_form("md").starts_with("| depth | child | accepted |"));
    CHECK(in_form("text").starts_with("depth  child  accepted"));
    CHECK(in_form("jsonl") == run.out);

    CHECK(pair(flags + ("-o " + path)).out.empty());
    CHECK(file_text(path) == run.out);
    CHECK(search(path).status == 0);
  }

  TEST_CASE("rows by depth, which the tree search reads") {
    const TemporaryFolder folder;
    const std::string path = folder / "accept.json";
    const Outcome run = pair(kOnce + ("-n 80 -s accept.width=3 -s accept.depths=3 -o " + path));
    CHECK(run.status == 0);
    CHECK(has(run.err, "depth 0: "));
    const Json v = Json::parse(file_text(path));
    CHECK_FALSE(v.contains("p"));
    REQUIRE(v["rows"].size() >= 2);
    CHECK(v["rows"].size() <= 3);
    CHECK(v["samples"].size() == v["rows"].size());
    int64_t nodes = 0;
    for (size_t d = 0; d < v["rows"].size(); ++d) {
      CHECK(v["rows"][d].size() == 3);
      CHECK(v["stderr"][d].size() == 3);
      nodes += v["samples"][d].get<int64_t>();
    }
    CHECK(nodes == 79);
    CHECK(search(path).status == 0);
  }

  TEST_CASE("of a tree: its rounds' tokens, and rows that predict them within 5 %") {
    const TemporaryFolder folder;
    const std::string accept = folder / "accept.json", log = logbook();
    std::string lines;
    for (size_t i = 0; i < 12; ++i)
      lines += Json{{"prompt", log.substr(1000 * i, 200)}}.dump() + "\n";
    const Words texts = "-n 60 -t 1 -s model.compute=f32 --prompts " +
                        folder.write("prompts.jsonl", lines).string();
    // Uneven: what follows a first child goes deep, what follows the others ends soon.
    const std::string shapes[] = {"[6,2,1,1,0,0,0,2,0,1,0,1,0,1,1,0,0]",
                                  "[6,1,1,1,1,1,1,1,1,1,1,1,1,0,0,0,0,0,0]"};
    for (const std::string& counts : shapes) {
      CAPTURE(counts);
      const Json shape = Json::parse(counts);
      const std::string tree = folder.write(
          "tree.json", Json{{"format", "sequoia-tree/1"}, {"branch_counts", shape}}.dump());
      const Outcome run = pair(
          texts + ("-s accept.width=6 -v --overwrite -s accept.tree=" + tree + " -o " + accept));
      CHECK(run.status == 0);
      const Json v = Json::parse(file_text(accept));
      CHECK(v["tree"]["tokens_lost"] == 0);
      CHECK(v["tree"]["nodes"] == shape.size());
      const double measured = v["tree"]["tokens_per_round"],
                   predicted = v["tree"]["expected_tokens"];
      CAPTURE(measured);
      CHECK(predicted == doctest::Approx(measured).epsilon(0.05));

      // The very rounds of the tool that generates.
      const Json summary = last_event(command(
          "sequoia-generate -r sequoia/tiny-16m --device cpu -s sampling.temperature=0.6 -s "
          "run.batch=1 --format jsonl -s spec.verify=sequoia -s tree.path=" +
          tree + texts));
      CHECK(summary["spec"]["mean_tokens_per_round"].get<double>() == doctest::Approx(measured));
    }
  }

  TEST_CASE("a level that no round passes has a mean of zero") {
    // Twelve levels of one child, few rounds: the deepest level that is reached accepts none.
    const TemporaryFolder folder;
    const std::string tree = folder.write(
        "chain.json", R"({"format":"sequoia-tree/1","branch_counts":[1,1,1,1,1,1,1,1,1,1,1,1,0]})");
    const Outcome run =
        pair(kOnce + ("-n 4 -t 1 -s accept.width=2 -s accept.rule=block -s accept.tree=" + tree));
    CHECK(run.status == 0);
    const Json rows = Json::parse(run.out)["rows"];
    REQUIRE(rows.size() >= 1);
    for (const Json& row : rows) CHECK(row.size() == 1);  // the tree has one child a node
    CHECK(rows.back()[0].get<double>() == 0);
  }

  TEST_CASE("rounds recorded for a search by replay, the same on every run") {
    const TemporaryFolder folder;
    std::string lines;
    for (const char* text : {"Once upon a time", "The storm", "Early in the morning"})
      lines += Json{{"prompt", text}}.dump() + "\n";
    const Words texts = "-n 30 -v --prompts " + folder.write("prompts.jsonl", lines).string() +
                        Words{"-s", "accept.tree=" + recipe_file("sequoia/tree-8.json")};
    const auto record = [&](const std::string& to) {
      return pair(texts + ("-s accept.record=" + to));
    };
    const std::string one = folder / "one", two = folder / "two";
    const Outcome run = record(one);
    CHECK(run.status == 0);
    CHECK(has(run.err, "speculation steps of 8 nodes in " + one));
    CHECK(record(two).status == 0);
    CHECK(file_text(one) == file_text(two));
    const Outcome again = record(one);
    CHECK(again.status == 2);
    CHECK(has(again.err, "exists"));

    const Words replay = "sequoia-tree-search --replay " + one;
    const auto trees = [&](const Words& more) { return command(replay + more); };
    const std::string found = folder / "tree.json";
    const Outcome best = trees("-s tree.sizes=[5] --json");
    CHECK(best.status == 0);
    const Json result = Json::parse(best.out);
    CHECK(result["rule"] == "traversal");
    CHECK(result["trees"][0]["size"] == 5);
    CHECK(result["trees"][0]["tokens"] >= result["trees"][0]["start_tokens"]);
    CHECK(trees("-s tree.sizes=[5] -o " + found).status == 0);
    const Json file = Json::parse(file_text(found));
    CHECK(file["format"] == "sequoia-tree/1");
    CHECK(file["size"] == 5);
    CHECK(file["replay"]["rule"] == "traversal");
    CHECK(file["replay"]["file"] == "one");
    CHECK(has(trees("-s tree.sizes=[3,5]").out, "searched tree"));
    CHECK(has(trees("--dry-run -s tree.sizes=[3,5]").out, "8 nodes on 6 levels"));
    const Json timed = Json::parse(
        trees("--json -s timing.sizes=[1,8] -s timing.target_ms=[9,10] -s timing.draft_ms=[1]")
            .out);
    CHECK(timed["choices"][0]["speedup"] > 1);

    check_refusals(replay + "-s tree.sizes=[5]",
                   {{"-s tree.sizes=[9]", 3, "tree.sizes: expected 2 to 8 nodes"},
                    {"--replay " + recipe_file("sequoia/tree-8.json"), 4, "tree-8.json"},
                    {"--svg a.svg", 3, "drawings need an acceptance vector"},
                    {"-s model.path=tiny-16m", 4,
                     "was recorded at temperature 0.6, this run samples at 0\n  hint: "},
                    {"-s model.path=tiny-2m", 4,
                     "was recorded with the model 'tiny-16m', this run has 'tiny-2m'\n  hint: "}});
    const std::string bytes = file_text(two);
    std::ofstream(two, std::ios::binary) << bytes.substr(0, bytes.size() - 9);
    CHECK(trees("--replay " + two + " -s tree.sizes=[5]").status == 4);

    // The tool that generates searches by the same rounds.
    const Words generate =
        "sequoia-generate -r sequoia/tiny-16m --device cpu -n 12 -s tree.path=auto -s "
        "sampling.temperature=0.6 -s tree.replay=" +
        one + " -s tree.timing=" + write_times(folder, "times.json", 1) + kOnce;
    const Outcome text = command(generate);
    CHECK(text.status == 0);
    CHECK(has(text.err, " tokens per step and "));
    for (const auto& [flag, says] :
         {std::pair{"-s sampling.temperature=1", "was recorded at temperature 0.6"},
          {"-s draft.path=tiny-16m", "was recorded with the draft"},
          {"-s spec.verify=match", "needs an acceptance rule for sampled tokens"}}) {
      const Outcome refused = command(generate + flag);
      CHECK(refused.status != 0);
      CHECK_MESSAGE(has(refused.err, says), refused.err);
    }
  }

  TEST_CASE("each rule of verification has its own name") {
    for (const auto& [flag, method] : {std::pair{"-s sampling.temperature=0", "topk-greedy"},
                                       {"-s accept.rule=topk", "topk-sample"}})
      CHECK(Json::parse(pair(kOnce + "-n 20" + flag).out)["method"] == method);
  }

  TEST_CASE("the target under another policy has a vector, too") {
    const Outcome run = pair(
        "-s 'spec.draft={kind: self, cache: {kind: streaming, recent: 16}}' -s accept.width=4 -s "
        "sampling.temperature=0 -p 'The keeper climbed the stairs and lit the lamp, for the fog "
        "had come in from the west. He' -n 20");
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    const auto p = Json::parse(run.out).at("p").get<std::vector<double>>();
    CHECK(p.size() == 4);
    CHECK(p[0] > 0.3);
    CHECK(p[0] <= 1);
  }

  TEST_CASE("a record for each draft, budget and temperature") {
    const Outcome run = drafts(
        "{name: s}, {name: k, keys: snapkv, scale: off, refresh: 8}, {name: chunks, keys: "
        "retrieval, page: 8, refresh: 16}, {name: top, keys: topk}, {name: small, kind: model, "
        "path: tiny-2m, keys: full}",
        "-s 'bench.budgets=[64, 128]' --format jsonl");
    CAPTURE(run.err);
    CHECK(run.status == 0);
    CHECK(has(run.err, "vLLM's mean acceptance length"));
    const auto records = by_phase(run.out);
    REQUIRE(records.size() == 2 * 9);
    for (const auto& [phase, record] : records) {
      CAPTURE(phase);
      CHECK(record["status"] == "ok");
      CHECK(record["workload"]["distinct_prompts"] == 2);
      const Json &tested = record["acceptance"]["tested"],
                 &drafted = record["acceptance"]["drafted"];
      CHECK(tested["positions"] == 2 * 16);
      CHECK(tested["by_position"].size() == 3);
      CHECK_FALSE(tested.contains("answer"));
      CHECK(tested["alpha"] > 0.2);
      CHECK(tested["alpha"] < 1);
      double length = 1;
      for (const Json& rate : drafted["rate_by_position"]) length += rate.get<double>();
      CHECK(drafted["mean_tokens_per_round"].get<double>() == doctest::Approx(length));
      CHECK(drafted["share_accepted"].get<double>() == doctest::Approx((length - 1) / 3));
      CHECK(drafted["rounds"] <= record["spec"]["rounds"]);
      CHECK(record["spec"]["gamma"] == 3);
    }
    CHECK(records.at("k 64 T 1")["workload"]["draft"]["scale"] == "off");
    CHECK(records.at("k 64 T 1")["workload"]["draft"]["refresh"] == 8);
    CHECK(records.at("chunks 128 T 0")["workload"]["draft"]["chunk"] == 8);
    CHECK(records.at("chunks 128 T 0")["workload"]["draft"]["refresh"] == 16);
    CHECK(records.at("small T 0")["model"]["draft"].get<std::string>().ends_with("tiny-2m"));
    // A better choice of as many keys.
    for (const char* t : {"0", "1"})
      CHECK(records.at(std::string("top 64 T ") + t)["acceptance"]["tested"]["alpha"] >
            records.at(std::string("s 64 T ") + t)["acceptance"]["tested"]["alpha"]);
  }

  TEST_CASE("nested drafts: both levels, by distributions and counted") {
    const auto records = records_of(
        kNested,
        "-s 'bench.budgets=[64, 128]' -s bench.new_tokens=48 -s spec.gamma1=2 -s spec.gamma2=4 -s "
        "spec.inner_steps=2");
    REQUIRE(records.size() == 2 * 5);
    for (const char* phase : {"both 64 T 0", "both 64 T 1", "both 128 T 0", "both 128 T 1"}) {
      CAPTURE(phase);
      const Json& record = records.at(phase);
      CHECK(record["workload"]["draft"]["self"] ==
            (has(phase, "128") ? "chunks 128" : "chunks 64"));
      CHECK_FALSE(record["acceptance"].contains("tested"));
      const Json &around = record["acceptance"]["drafted"],
                 &within = record["acceptance"]["within"], &counts = record["spec"];
      CHECK(around["rounds"] == counts["rounds"]);
      CHECK(within["rounds"] == counts["within"]["rounds"]);
      CHECK(within["by_position"].size() == 2);
      CHECK(around["rate_by_position"].size() <= 6);
      // Sums over distributions, and what was counted, agree.
      for (const auto& [sums, counted] : {std::pair{around, counts}, {within, counts["within"]}}) {
        const double alpha = counted["alpha"], tested = counted["tested"];
        const double error = std::sqrt(alpha * (1 - alpha) / tested);
        CHECK(std::abs(sums["alpha"].get<double>() - alpha) < 3.5 * error + 0.02);
      }
      CHECK(around["by_output"].size() > 4);
      CHECK(around["by_output"][0]["from_token"] == 0);
    }
  }

  TEST_CASE("f32: a budget beyond the text accepts everything") {
    const auto records = records_of(
        "{name: s, budget: 512}, {name: k, keys: snapkv, budget: 512}, {name: v, keys: verified, "
        "budget: 512}, {name: top, keys: topk, budget: 512}",
        "-s model.compute=f32");
    CHECK(records.size() == 8);
    for (const auto& [phase, record] : records) {
      CAPTURE(phase);
      const Json &tested = record["acceptance"]["tested"],
                 &counted = record["acceptance"]["drafted"];
      CHECK(tested["alpha"].get<double>() == doctest::Approx(1).epsilon(1e-4));
      CHECK(counted["alpha"].get<double>() == doctest::Approx(1).epsilon(1e-4));
      CHECK(counted["mean_tokens_per_round"].get<double>() == doctest::Approx(4).epsilon(1e-4));
    }
  }

  TEST_CASE("documents: the answer, and what the target writes after it") {
    const auto records =
        records_of("{name: s64, budget: 64}",
                   "-s bench.prompts=needle1 -s bench.new_tokens=24 -s bench.speculate=false");
    REQUIRE(records.size() == 2);
    for (const auto& [phase, record] : records) {
      const Json& tested = record["acceptance"]["tested"];
      CHECK(tested["positions"] == 2 * 24);
      CHECK(tested["answer"]["positions"] > 2);
      CHECK(tested["answer"]["positions"] < 2 * 24);
      CHECK_FALSE(record["acceptance"].contains("drafted"));
      CHECK(record["workload"]["dataset"] == "generated");
    }
  }

  TEST_CASE("acceptance vectors of all drafts and temperatures, by kind of text") {
    const TemporaryFolder folder;
    const std::string path = folder / "vectors.jsonl";
    const auto measure = [&](const std::string& prompt, const Words& more) {
      return drafts(
          "{name: all, cache: {kind: full}}, {name: few, cache: {kind: snapkv}, budget: "
          "64}, {name: small, kind: model, path: tiny-2m, cache: {kind: streaming, "
          "recent: 60}}",
          "-s model.compute=f32 -s run.context=1000 -s spec.gamma=1 -s accept.width=3 -n "
          "100 -s bench.prompts=given -s bench.speculate=false" +
              Words{"-p", prompt, "-o", path} + more);
    };
    const std::string prompt = logbook().substr(0, 2000);
    const Outcome run = measure(prompt, {});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const std::string text = file_text(path);
    std::map<std::string, Json> records;
    for (const Json& record : json_lines(text)) {
      const Json& work = record["workload"];
      records[work["draft"]["name"].get<std::string>() +
              (work["temperature"] == 0 ? " greedy" : " drawn")] = record;
    }
    REQUIRE(records.size() == 2 * 3);
    for (const auto& [name, record] : records) {
      CAPTURE(name);
      const Json &vector = record["acceptance"]["vector"], &tested = record["acceptance"]["tested"];
      CHECK(vector["samples"] == 100);
      CHECK(vector["method"] == (name.ends_with("greedy") ? "topk-greedy" : "sequoia"));
      const double first = vector["p"][0], alpha = tested["alpha"];
      if (name.starts_with("all"))
        CHECK(first == doctest::Approx(1).epsilon(1e-4));
      else
        CHECK(first < 0.99);
      // Both texts are drawn at temperature 1: a first child is accepted as a chain's token is.
      const double error = tested["alpha_stderr"].get<double>() + vector["stderr"][0].get<double>();
      if (name.ends_with("drawn")) CHECK(std::abs(first - alpha) < 3 * error + 1e-3);
    }
    // Done already, but only for this prompt.
    CHECK(measure(prompt, "--resume").status == 0);
    CHECK(file_text(path) == text);
    CHECK(measure("Once upon a time", "--resume -s bench.rates=true").status == 0);
    CHECK(json_lines(file_text(path)).size() == 2 * records.size());
    std::ofstream(path) << text;

    // No record says that the command line was wrong.
    const std::filesystem::path none = folder / "none.jsonl";
    CHECK(drafts("{name: s64, budget: 64}", Words{"-p", "a", "-o", none}).status == 2);
    CHECK_FALSE(std::filesystem::exists(none));

    // Trees for one of them.
    const Outcome many = search(path);
    CHECK(many.status == 4);
    CHECK(has(many.err, "expected one record with an acceptance vector, found 6: 'all T 0 "));
    const std::string line = text.substr(0, text.find('\n') + 1);
    CHECK(search(folder.write("one.jsonl", line).string()).status == 0);
  }

  TEST_CASE("a sweep goes on where it stopped, and what fails is recorded") {
    const TemporaryFolder folder;
    const std::string path = folder / "records.jsonl";
    const auto sweep = [&](const Words& more) {
      return drafts(
          "{name: s64, budget: 64}, {name: v, kind: model, path: none-such, cache: {kind: "
          "full}}",
          "--sweep spec.gamma=1,2 -o " + path + more);
    };
    const Outcome first = sweep({});
    CAPTURE(first.err);
    CHECK(first.status == 8);
    CHECK(has(first.err, "none-such"));
    auto lines = json_lines(file_text(path));
    CHECK(lines.size() == 2 * 3);
    CHECK(lines[0]["status"] == "failed");
    CHECK(lines[0]["workload"]["phase"] == "v");
    // Without the last point, and with a torn line.
    std::string text;
    for (size_t i = 0; i < 3; ++i) text += lines[i].dump() + "\n";
    std::ofstream(path) << text << "{\"schema\": ";
    CHECK(sweep("--resume").status == 8);
    std::map<std::string, int> ok;
    for (const Json& line : json_lines(file_text(path)))
      if (line["status"] == "ok")
        ++ok[line["point"].get<std::string>() + line["workload"]["phase"].get<std::string>()];
    CHECK(ok.size() == 4);
    for (const auto& [point, n] : ok) CHECK(n == 1);
  }

  TEST_CASE("plans, and what is refused") {
    const Outcome one = pair("--dry-run -s run.context=256"),
                  many = drafts("{name: s64, budget: 64}", "--dry-run");
    CHECK(one.status == 0);
    CHECK(has(one.out, "tiny-2m weights"));
    CHECK(many.status == 0);
    CHECK(has(many.out, "fits"));
    for (const std::string recipe :
         {"magicdec/acceptance-tiny-16m", "magicdec/acceptance-16k-tiny-16m",
          "triforce/acceptance-16k-tiny-16m", "triforce/acceptance-rebuild-tiny-16m"})
      CHECK(command("magicdec-acceptance --dry-run --device cpu -r " + recipe).status == 0);
    const std::string tree = "-s accept.tree=" + recipe_file("sequoia/tree-8.json");
    for (const auto& [flags, status, says] : std::vector<Refusal>{
             {{}, 2, "expected a prompt, found none"},
             {"-p a -n 1", 3, "expected at least 2 tokens of the target"},
             {"-p a -s accept.width=0", 3, "accept.width"},
             {"-p a -s accept.width=1" + Words(tree), 3, "accept.width: is 1, but a node of"},
             {"-p a -s accept.depths=2" + Words(tree), 3,
              "accept.depths: cannot be combined with accept.tree"},
             {"-p a -s accept.rule=topk" + Words(tree), 3,
              "topk does not support accept.tree at a temperature above 0"},
             {"-p a -s accept.record=r", 3, "accept.record: needs accept.tree"},
             {"-p a -s accept.depths=2 -s 'bench.drafts=[{name: s, cache: {kind: streaming}}]'", 3,
              "'s' reads the target's KV cache"},
             {"-p a -s 'bench.temperatures=[0, 1]' -s sampling.temperature=null", 3,
              "measure more with magicdec-acceptance -s accept.width=16"},
             {"-p a -s spec.draft=ngram", 3, "expected kind model or self"},
             {"-p a -s draft.path=synthetic:llama-68m", 4, "has 32000 tokens"}})
      check_refused(pair(flags), status, says);
    const struct {
      std::string drafts;
      Words flags;
      int status;
      std::string says, hint;
    } rows[] = {
        {"{name: n, kind: ngram}",
         {},
         3,
         "'n' is of kind ngram, expected self",
         ", model or nested"},
        {"{name: s, budget: 4}", {}, 3, "expected more than the 4 tokens that are always read", ""},
        {"{name: s}", "-s bench.budgets=[64,64]", 3, "uses the name 's 64' twice", ""},
        {kNested, "-s bench.speculate=false", 3,
         "'both' is nested, which needs bench.speculate=true", ""},
        {"{name: n, kind: nested}", "-s accept.width=2", 3,
         "'n' is nested and proposes linear drafts", "set accept.width=0"},
        {"{name: s64, budget: 64}", "-s spec.gamma=16 -s bench.new_tokens=16", 3,
         "spec.gamma: is 16 tokens", "raise bench.new_tokens"},
        {"{name: s}", "-s spec.gamma=20", 3, "spec.gamma: 20 is out of range, expected 1 .. 16",
         ""},
        {"{name: s}", "-s sampling.temperature=1", 3, "cannot be combined",
         "set bench.temperatures"},
        {"{name: s}", "-p a", 2, "expected no prompt, since bench.prompts is prose",
         "prompts=given"},
        {"{name: s}", "-s bench.prompts=given", 2, "expected a prompt, found none", "-p TEXT"},
        {"{name: s}", "-s bench.rates=false", 3, "accept.width: expected at least 1 child",
         "set it"},
        {"{name: s}", "-s accept.width=2 -s accept.record=r" + Words(tree), 3,
         "expected one draft at one temperature, found 1 and 2", "list one of each"},
        {"{name: s}", "-s run.context=20000", 3, "tiny-16m supports only 16384",
         "lower run.context"},
        {"{name: s}", "-s bench.prompts=kv -s run.context=100", 4, "is too short", "set at least"}};
    for (const auto& row : rows) {
      CAPTURE(row.says);
      const Outcome run = drafts(row.drafts, row.flags);
      CHECK(run.status == row.status);
      CHECK(has(run.err, row.says));
      CHECK(has(run.err, row.hint));
    }
  }
}
