#include <doctest/doctest.h>
#include <sys/stat.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/kept_limits.h"
#include "cli/probe.h"
#include "text/tokenizer.h"

using namespace tandem::testing;
namespace fs = std::filesystem;

namespace {

/// tiny-2m unless a model is named; on one thread, which a busy machine slows least.
Outcome pig_generate(const Words& more, Launch launch = {}) {
  const bool named =
      std::ranges::find(more, "-m") != more.end() || std::ranges::find(more, "-r") != more.end();
  launch.variables["TANDEM_CACHE_DIR"] = kept_limits();
  return command("pig-generate -t 1" + Words(named ? "" : "-m tiny-2m") + more, launch);
}

/// Text of one sequence, from its token and finish events.
std::string text_of(const std::vector<Json>& all, int seq) {
  std::string text;
  for (const Json& e : all)
    if ((e["event"] == "token" || e["event"] == "finish") && e["seq"] == seq)
      text += e["text"].get<std::string>();
  return text;
}

void check_error(const Words& arguments, int status, const std::string& text) {
  check_refused(pig_generate(arguments), status, "pig-generate: error: " + text);
}

/// `tokenizer.json` with the token of this id made a special one of another name.
Json with_special(Json tokenizer, int id, const std::string& name) {
  Json& model = tokenizer["model"];
  std::string old;
  for (const auto& [piece, number] : model["vocab"].items())
    if (number == id) old = piece;
  model["vocab"].erase(old);
  model["vocab"][name] = id;
  Json merges = Json::array();
  for (const Json& pair : model["merges"]) {
    const std::string left = pair[0], right = pair[1];
    if (left != old && right != old && left + right != old) merges.push_back(pair);
  }
  model["merges"] = merges;
  Json added = tokenizer["added_tokens"][0];
  added["id"] = id;
  added["content"] = name;
  tokenizer["added_tokens"].push_back(added);
  return tokenizer;
}

/// The events of a few tokens after "Once upon a time".
std::vector<Json> once_upon_a_time(const Words& flags, const std::string& tool = "pig-generate") {
  const Outcome run =
      command(tool + flags + "-p 'Once upon a time' -n 6 -t 1 -s model.compute=f32 --format jsonl");
  CAPTURE(run.err);
  REQUIRE(run.status == 0);
  std::vector<Json> events;
  for (Json& e : json_lines(run.out))
    if (e["event"] != "round") events.push_back(std::move(e));
  return events;
}

const std::string kDocument =
    "The lamp was lit at dusk. The special magic value for amber-anchor is 4137.\n"
    "Fog came in from the west, and the keeper slept.";

}  // namespace

TEST_SUITE("cli/pig_generate") {
  TEST_CASE("memory is measured for -v alone, once, and its rate is shown from then on") {
    const TemporaryFolder folder;
    std::string said;
    const auto summary = [&](const Words& flags) {
      const Outcome run = command("pig-generate -t 1 -m tiny-2m -p Log -n 4 --format jsonl" + flags,
                                  {.variables = {{"TANDEM_CACHE_DIR", folder.path()}}});
      CHECK(run.status == 0);
      const Json last = last_event(run);
      CHECK(has(run.err, " % of the memory's ") == last.contains("frac_of_mem_read"));
      said = run.err;
      return last;
    };
    CHECK(!summary({}).contains("mem_read_gbps"));
    CHECK(!fs::exists(folder / "ceilings.json"));
    const Json measured = summary("-v");
    CHECK((measured.contains("from_cache") || measured["mem_read_gbps"] > 0.1));
    // On a busy machine it is not kept.
    CHECK(fs::exists(folder / "ceilings.json") != has(said, "limits of this machine are not"));
    write_limits(folder / "ceilings.json");
    CHECK(summary({})["mem_read_gbps"] == 1e6);
    CHECK(summary("-v")["mem_read_gbps"] == 1e6);
    write_limits(folder / "ceilings.json", 1e-3);
    CHECK(summary({})["from_cache"] == true);
    CHECK(has(said, " GB/s (from cache)\n"));
  }

  TEST_CASE("without a folder to keep a measurement in, a run says so, once, and goes on") {
    const auto stderr_of = [](const Words& flags, const char* folder = "") {
      const Outcome run = command(
          "pig-generate -t 1 -m tiny-2m -p Log -n 4" + flags,
          {.variables = {{"TANDEM_CACHE_DIR", folder}, {"XDG_CACHE_HOME", ""}, {"HOME", ""}}});
      CHECK(run.status == 0);
      return run.err;
    };
    const std::string warning =
        "pig-generate: warning: measurements of this machine are not saved: none of "
        "TANDEM_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder\n";
    // What was measured on a busy machine is not kept anyway, and says that instead.
    const std::string busy = "pig-generate: warning: the limits of this machine are not saved: ";
    const std::string said = stderr_of("-v");
    CHECK(has(said, warning) != has(said, busy));
    CHECK(said.find(warning) == said.rfind(warning));
    CHECK(!has(stderr_of({}), "warning"));  // nothing was measured
    const std::string there = stderr_of("-v", "/proc/none");
    CHECK(has(there, "warning: measurements of this machine are not saved: /proc/none: ") !=
          has(there, busy));
  }

  TEST_CASE("neither the document nor a file of the model is an output") {
    const TemporaryFolder folder;
    fs::copy(recipe_file("models/tiny-2m"), folder / "m");
    fs::create_symlink("m", folder / "mm");
    folder.write("p.txt", "Once");
    const Words line = "pig-generate -n 1 -q -m " + (folder / "m").string();
    const auto refused = [&](const fs::path& out, const fs::path& input) {
      const std::string before = file_text(out);
      check_refused(command(line + Words{"-f", folder / "p.txt", "--overwrite", "-o", out}), 2,
                    out.string() + ": this run would write the file that it reads" +
                        (out == input ? "\n" : " as " + input.string() + "\n"));
      CHECK(file_text(out) == before);
    };
    refused(folder / "p.txt", folder / "p.txt");
    refused(folder / "m/config.json", folder / "m/config.json");
    refused(folder / "mm/tokenizer.json", folder / "m/tokenizer.json");
    refused(folder / "m/model.safetensors", folder / "m/model.safetensors");
    CHECK(command(line + "-p a -o" + Words{folder / "m/new"}).status == 0);
  }

  TEST_CASE("text, and the same as events with a summary of everything") {
    const Outcome text = pig_generate("-p 'Once upon a time' -n 8 --seed 7");
    REQUIRE(text.status == 0);
    CHECK(text.out.ends_with("\n"));
    CHECK(has(text.err, "device   cpu  "));
    CHECK(has(text.err, "  seed 7\n"));
    const Outcome run = pig_generate(
        "-p 'Once upon a time' -n 8 --seed 7 -v --format jsonl -s output.top_logprobs=2");
    REQUIRE(run.status == 0);
    const auto all = json_lines(run.out);
    REQUIRE(all.size() == 1 + 8 + 1 + 1);
    CHECK(all[0]["event"] == "prompt");
    CHECK(all[0]["ids"].size() == all[0]["tokens"]);
    CHECK(all[0]["ids"][0] == 0);  // BOS
    for (size_t i = 1; i <= 8; ++i) {
      CHECK(all[i]["event"] == "token");
      CHECK(all[i]["top"].size() == 2);
      CHECK(all[i]["top"][0][0] == all[i]["id"]);  // greedy
      CHECK(all[i]["logprob"] <= 0);
      CHECK(all[i]["t_ms"] >= all[i == 1 ? 1 : i - 1]["t_ms"]);
    }
    CHECK(all[9]["event"] == "finish");
    CHECK(all[9]["reason"] == "length");
    CHECK(text_of(all, 0) + "\n" == text.out);
    Json summary = all.back();
    CHECK(summary["event"] == "summary");
    CHECK(summary["device"] == "cpu");
    CHECK(summary["seed"] == 7);
    CHECK(summary["prompt_tokens"] == all[0]["tokens"]);
    CHECK(summary["new_tokens"] == 8);
    const double load_s = summary["load_s"].get<double>();
    CHECK(load_s > 0);
    CHECK(summary["first_token_s"].get<double>() ==
          doctest::Approx(load_s + all[1]["t_ms"].get<double>() * 1e-3).epsilon(0.05));
  }

  TEST_CASE("--stop ends a text before the words that it names") {
    const std::string whole = pig_generate("-p 'Once upon a time' -n 16").out;
    const std::string stop = whole.substr(whole.size() / 2, 3);
    const Outcome run = pig_generate("-p 'Once upon a time' -n 16 --stop '" + stop + "'");
    CHECK(run.out == whole.substr(0, whole.find(stop)) + "\n");
  }

  TEST_CASE("--stop sees special tokens in every generator, and the text does not show them") {
    const std::vector<Json> plain = once_upon_a_time("-m tiny-2m");
    const std::string t[] = {plain[1]["text"], plain[2]["text"], plain[3]["text"],
                             plain[4]["text"]};
    const TemporaryFolder folder;
    const Json tokenizer = Json::parse(file_text(recipe_file("models/tiny-2m/tokenizer.json")));
    const std::string model = changed_model(folder, "tokenizer.json",
                                            with_special(tokenizer, plain[3]["id"], "<|halt|>"));
    REQUIRE(text_of(once_upon_a_time("-m " + model), 0) ==
            text_of(plain, 0).replace((t[0] + t[1]).size(), t[2].size(), ""));
    for (const auto& [tool, draft] : {std::pair{"pig-generate", "run.seed=0"},
                                      {"sequoia-generate", "spec.draft=ngram"},
                                      {"triforce-generate", "spec.draft=ngram"},
                                      {"sirius-generate", "spec.draft=ngram"}})
      for (const auto& [stop, text, n] :
           {std::tuple{std::string("<|halt|>"), t[0] + t[1], size_t{3}},
            {t[1] + "<|halt|>", t[0], 3},
            {"<|halt|>" + t[3], t[0] + t[1], 4},
            {t[1] + "<|halt|>" + t[3], t[0], 4}}) {
        CAPTURE(tool);
        CAPTURE(stop);
        const auto events = once_upon_a_time({"-m", model, "-s", draft, "--stop", stop}, tool);
        CHECK(text_of(events, 0) == text);
        CHECK(events.size() == 1 + n + 2);
        CHECK(events[1 + n]["reason"] == "stop_string");
      }
  }

  TEST_CASE("--stop-id ends a text at a token, which does not show") {
    const std::vector<Json> plain = once_upon_a_time("-m tiny-2m");
    const std::string id = plain[3]["id"].dump();
    const auto events = once_upon_a_time("-m tiny-2m --stop-id 8000 --stop-id " + id);
    REQUIRE(events.size() == 1 + 3 + 2);
    CHECK(events[3]["id"] == plain[3]["id"]);
    CHECK(events[4]["reason"] == "stop_id");
    CHECK(text_of(events, 0) ==
          plain[1]["text"].get<std::string>() + plain[2]["text"].get<std::string>());
    const auto rounds =
        once_upon_a_time("-m tiny-2m -s spec.draft=ngram -s 'sampling.stop_ids=[8000, " + id + "]'",
                         "sequoia-generate");
    CHECK(text_of(rounds, 0) == text_of(events, 0));
    // The model's own ids stay.
    const TemporaryFolder folder;
    const std::string model =
        changed_model(folder, "generation_config.json", {{"eos_token_id", plain[2]["id"]}});
    CHECK(once_upon_a_time("-m " + model + " --stop-id " + id).size() == 1 + 2 + 2);

    check_error("-p x --stop-id -1", 3, "--stop-id: sampling.stop_ids: -1 is out of range");
    check_error("-p x --stop-id end", 3, "--stop-id: sampling.stop_ids: expected");
    check_error(
        "-p x --stop-id 8192", 3,
        "sampling.stop_ids: expected a token id of the model, found 8192; its ids end at 8191");
    check_error("-p x --stop-id 8192 --dry-run", 3,
                "sampling.stop_ids: expected a token id of the model, found 8192");
    const std::string random = "synthetic:" + recipe_file("models/tiny-2m/config.json");
    const std::string ids = folder.write("ids.json", "[3]");
    check_error("-m " + random + " --prompt-ids " + ids + " --stop x", 3,
                "sampling.stop: stop texts need a tokenizer, but " + random + " has none\n");
    check_error("-p x --stop ''", 3, "--stop: sampling.stop: expected a text, found an empty one");
  }

  TEST_CASE("files that begin with a byte order mark read as without it; UTF-16 is refused") {
    const TemporaryFolder folder;
    const std::string mark = "\xEF\xBB\xBF", text = "Once upon a time";
    const auto events = [](const Words& flags, const std::string& in) {
      const Outcome run = pig_generate(flags + "-n 1 --format jsonl", {.input = in});
      CAPTURE(run.err);
      CHECK(run.status == 0);
      std::vector<std::string> lines;
      for (Json& e : json_lines(run.out)) {
        e.erase("t_ms");
        if (e["event"] != "summary") lines.push_back(e.dump());
      }
      return lines;
    };
    const std::string file = folder / "file", document = folder.write("document", text);
    for (const auto& [flags, bytes] :
         {std::pair{Words("-f " + file), text},
          {"-f -", text},
          {"-p -", text},
          {"-f " + document + " --questions " + file, std::string("Who?\nWhere?\n")},
          {"--prompts " + file, std::string("{\"prompt\": \"Once\"}\n{\"ids\": [3, 4]}")},
          {"--prompt-ids " + file, std::string("[20, 21, 22]")},
          {"-p 'Once upon a time' -r " + file,
           std::string("kind: generate\nmodel: {path: tiny-2m}\n")}}) {
      CAPTURE(flags);
      folder.write("file", bytes);
      const auto plain = events(flags, bytes);
      folder.write("file", mark + bytes);
      CHECK(events(flags, mark + bytes) == plain);
      for (const std::string& front : {std::string("\xFF\xFE"), std::string("\xFE\xFF")}) {
        folder.write("file", front + bytes);
        const Outcome run = pig_generate(flags, {.input = front + bytes});
        CHECK(run.status == (has(bytes, "kind") ? 3 : 4));
        CHECK(has(run.err, "is UTF-16 text, expected UTF-8"));
        CHECK(has(run.err, "iconv -f UTF-16 -t UTF-8"));
      }
    }
    CHECK(events("-p -", text) == events({"-p", text}, ""));
    CHECK(has(pig_generate("-f " + file + " -p -").err,
              "--prompt: is - (standard input), which cannot follow the document of --file\n"));
    folder.write("file", text + mark + text);  // a mark elsewhere is text
    CHECK(events("-f " + file, "") != events({"-p", text + text}, ""));
  }

  TEST_CASE("sampling.from=model draws as generation_config.json says, keys that are set first") {
    const auto drawn_by = [](const std::string& model, const Words& flags) {
      const std::vector<Json> events = once_upon_a_time("--seed 5 -m " + model + flags);
      return std::pair(text_of(events, 0), events.back()["sampling"]);
    };
    const auto greedy = drawn_by("tiny-2m", {}),
               drawn = drawn_by("tiny-2m", "-s 'sampling={temperature: 0.6, top_p: 0.9}'"),
               from_model = drawn_by("tiny-2m", "-s sampling.from=model");
    CHECK(drawn.first != greedy.first);
    CHECK(from_model == drawn);
    CHECK(from_model.second ==
          Json::parse(R"({"temperature": 0.6, "top_k": 0, "top_p": 0.9, "min_p": 0.0,
                          "repetition_penalty": 1.0})"));
    CHECK(drawn_by("tiny-2m", "-s 'sampling={from: model, temperature: 0}'").first == greedy.first);

    const TemporaryFolder folder;
    const std::string model =
        changed_model(folder, "generation_config.json",
                      {{"do_sample", false}, {"repetition_penalty", 1.3}, {"top_k", 7}});
    CHECK(
        drawn_by(model, "-s sampling.from=model") ==
        drawn_by(model,
                 "-s 'sampling={temperature: 0, top_k: 7, top_p: 0.9, repetition_penalty: 1.3}'"));
  }

  TEST_CASE("what generation_config.json suggests is noted where a run says nothing of its own") {
    const auto noted = [](const std::string& model, const Words& flags) {
      return pig_generate("-p x -n 1 -m " + model + flags).err;
    };
    const std::string note =
        "generation_config.json suggests temperature 0.6, top_p 0.9. To use these values: -s "
        "sampling.from=model\n";
    CHECK(has(noted("tiny-2m", {}), note));
    CHECK(has(noted("tiny-2m", "-s sampling.from=model"), "sampling temperature 0.6, top_p 0.9\n"));
    CHECK(has(noted("tiny-2m", "-s sampling.from=model --dry-run"),
              "sampling temperature 0.6, top_p 0.9\n"));
    CHECK_FALSE(has(noted("tiny-2m", "-s sampling.temperature=0"), "suggests"));
    CHECK_FALSE(has(noted("tiny-2m", "-q"), "suggests"));
    const TemporaryFolder folder;
    const std::string model = changed_model(folder, "generation_config.json", {{"top_p", 2}});
    CHECK_FALSE(has(noted(model, {}), "suggests"));
    check_error(
        "-m " + model + " -p x -s sampling.from=model", 4,
        model + "/generation_config.json: key 'top_p': 2 is out of range, expected 0 < x <= 1\n");
  }

  TEST_CASE("--questions shares the document; each answer is that of its own run") {
    const TemporaryFolder folder;
    const std::string document = folder.write("d.txt", kDocument);
    const std::string questions =
        folder.write("q.txt", "What is the value for amber-anchor?\n\nWho slept?\n");
    const Outcome run =
        pig_generate("-f " + document + " --questions " + questions + " -n 6 -s model.compute=f32");
    REQUIRE(run.status == 0);
    std::string expected;
    for (const std::string question : {"What is the value for amber-anchor?", "Who slept?"})
      expected += question + "\n" +
                  pig_generate("-n 6 -s model.compute=f32 -f " + document +
                               Words{"-p", "\n\nQuestion: " + question + "\nAnswer:"})
                      .out +
                  "\n";
    CHECK(run.out == expected);
  }

  TEST_CASE("--prompts reads text, ids and chats, in order") {
    const TemporaryFolder folder;
    const std::string path =
        folder.write("p.jsonl",
                     "{\"prompt\": \"Log of the lighthouse\"}\n{\"ids\": [5, 6, 7]}\n"
                     "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}\n");
    const Words batch = "--prompts " + path + " -n 5 -s model.compute=f32";
    const Outcome run = pig_generate(batch);
    REQUIRE(run.status == 0);
    const std::string first =
        pig_generate("-p 'Log of the lighthouse' -n 5 -s model.compute=f32").out;
    const std::string last = pig_generate("-p Hello --chat -n 5 -s model.compute=f32").out;
    CHECK(run.out.starts_with("[0]\n" + first + "\n[1]\n"));
    CHECK(run.out.ends_with("\n[2]\n" + last + "\n"));
    CHECK(pig_generate(batch + "-s run.batch=1").out == run.out);
  }

  TEST_CASE("--format results gives a line a prompt, in order, with its id") {
    const TemporaryFolder folder;
    const std::string path = folder.write(
        "p.jsonl",
        "{\"id\": \"a\", \"prompt\": \"Log of the lighthouse\"}\n"
        "{\"prompt\": \"The lamp\"}\n{\"ids\": [5, 6, 7], \"id\": 7}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"id\": \"c\"}\n");
    const Words batch = "--prompts " + path + " -n 5 -s model.compute=f32";
    const Outcome run = pig_generate(batch + "--format results");
    REQUIRE(run.status == 0);
    const auto lines = json_lines(run.out);
    REQUIRE(lines.size() == 4);
    std::string texts;
    for (size_t i = 0; i < lines.size(); ++i) {
      CHECK(lines[i]["seq"] == i);
      CHECK(lines[i]["tokens"] == 5);
      CHECK(lines[i]["prompt_tokens"] > 0);
      CHECK(lines[i]["finish"] == "length");
      CHECK(lines[i]["first_token_ms"] > 0);
      CHECK(lines[i]["last_token_ms"] >= lines[i]["first_token_ms"]);
      texts += "[" + std::to_string(i) + "]\n" + lines[i]["text"].get<std::string>() + "\n\n";
    }
    CHECK(texts == pig_generate(batch).out);
    CHECK(lines[0]["id"] == "a");
    CHECK(lines[0]["prompt"] == "Log of the lighthouse");
    CHECK_FALSE(lines[1].contains("id"));
    CHECK(lines[2]["id"] == 7);
    CHECK_FALSE(lines[2].contains("prompt"));
    CHECK(lines[3]["prompt"][0]["content"] == "Hello");
    CHECK(pig_generate(batch + "--format results -s run.batch=1").status == 0);
    const auto one = json_lines(pig_generate("-p Hello -n 3 --format results").out);
    REQUIRE(one.size() == 1);
    CHECK(one[0]["prompt"] == "Hello");
    CHECK(one[0]["text"].get<std::string>() + "\n" == pig_generate("-p Hello -n 3").out);
    folder.write("p.jsonl", "{\"id\": [1], \"prompt\": \"x\"}\n");
    check_error("--prompts " + path, 4,
                path + ":1: key 'id': expected a string or a number, found an array of 1 item\n");
  }

  TEST_CASE("lines of --prompts that are wrong are named, fit for a terminal") {
    const TemporaryFolder folder;
    const std::string path = folder / "p.jsonl";
    const auto check = [&](const std::string& line, const std::string& text) {
      folder.write("p.jsonl", "{\"prompt\": \"fine\"}\n" + line + "\n");
      check_error("--prompts " + path, 4, path + ":2: " + text);
    };
    check("{\"promt\": \"x\"}", "unknown key 'promt'\n  hint: did you mean 'prompt'?\n");
    check("{\"x\\u001b[2J\": 1}",
          "unknown key 'x?[2J'\n  hint: use one of the keys prompt, ids, messages, and optionally "
          "id and adapter\n");
    check("{\"prompt\": \"x\", \"ids\": [1]}",
          "expected one of the keys prompt, ids, messages, found prompt and ids\n");
    check("{}", "expected one of the keys prompt, ids, messages, found none\n");
    check("[1]", "expected an object with one of the keys prompt, ids, messages, found an array");
    check("{\"ids\": []}", "the list is empty\n");
    check(
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"\\u001b]0;x\\u0007\"}]}]}",
        "a content part of type '?]0;x?' is not supported, only text\n");
    check("{\"messages\": []}", "key 'messages': expected at least one message, found none\n");
    check("{\"messages\": [{\"role\": \"user\", \"content\": 1}]}",
          "key 'content' of a message: expected text or a list of parts, found the number 1\n");
  }

  TEST_CASE("section chat reaches the template: file, date, tools, variables") {
    const TemporaryFolder folder;
    const auto jinja = [&](const char* text) { return folder.write("t.jinja", text).string(); };
    const auto ids = [&](const Words& more) {
      const Outcome run = pig_generate("-n 1 --format jsonl -v" + more);
      CAPTURE(run.err);
      REQUIRE(run.status == 0);
      return Json::parse(run.out.substr(0, run.out.find('\n'))).at("ids");
    };
    const auto plain = [&](const std::string& text) {
      return ids("--prompt-ids " + folder.write("ids.json", text).string());
    };
    const auto of = [](const std::string& text) {
      const auto t = tandem::text::load_tokenizer(recipe_file("models/tiny-2m"));
      return Json(t->encode(text, {.add_bos = false})).dump();
    };
    const std::string file = jinja(
        "{{ messages[0].content }} on {{ strftime_now('%d %b %Y') }} {{ mood }} "
        "{{ (tools or [{}])[0].name }}");
    const std::string tools = folder.write("tools.json", R"([{"name": "tide"}])");
    const Words chat = "--chat -p Hi -s chat.template=" + file;
    const Words more = "-s chat.date=2031-02-03 -s chat.variables.mood=calm -s chat.tools=" + tools;
    CHECK(ids(chat + more) == plain(of("Hi on 03 Feb 2031 calm tide")));
    // Without a recipe the date is today's, with one it is fixed.
    const std::string recipe = folder.write(
        "r.yaml",
        "kind: generate\nversion: 1\nmodel: {path: tiny-2m}\nchat: {template: " + file + "}\n");
    CHECK(ids("-r " + recipe + " --chat -p Hi") == plain(of("Hi on 26 Jul 2024  ")));
    const Outcome today = pig_generate(chat + "-n 0");
    CHECK(has(today.err, "chat.date: the chat template uses 20"));
    CHECK_FALSE(has(today.err, "2024-07-26"));
    check_error(chat + "-s chat.date=tomorrow", 3,
                "--set #2: chat.date: expected a date such as 2026-03-31, found 'tomorrow'\n");
    // What the template refuses reaches the user.
    jinja("{{ raise_exception('Only one turn, please') }}");
    check_error(chat, 3,
                file +
                    ":1:19: the chat template rejects the chat: Only one turn, please (for the "
                    "chat in --chat)\n");
    jinja("{{ messages | frobnicate }}");
    check_error(chat, 4, file + ":1:15: chat template: no filter is named 'frobnicate'\n");
  }

  TEST_CASE("a state keeps the date that a chat has") {
    const TemporaryFolder folder;
    const std::string file =
        folder.write("t.jinja", "{{ strftime_now('%Y') }}: {{ messages[0].content }}");
    const std::string state = folder / "s",
                      lines = folder.write(
                          "p.jsonl",
                          "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n");
    const Words how = "-n 1 -s chat.template=" + file;
    REQUIRE(pig_generate(how + ("--chat -p Hi -s chat.date=2031-02-03 -s output.state=" + state))
                .status == 0);
    const Words again = how + ("-s model.state=" + state);
    CHECK(has(pig_generate(again + "-p x").err, "uses 2031-02-03 as the current date"));
    check_error(again + "--prompts " + lines, 3,
                "chat.date: is 2024-07-26, but the saved state has the date 2031-02-03\n  hint: "
                "set chat.date to the state's date, or save the state again\n");
  }

  TEST_CASE("chat.thinking asks for a chat, and for a template that knows thinking") {
    check_error("-p Hi -s chat.thinking=false", 3,
                "chat.thinking: needs a chat, but no prompt uses the chat template\n  hint: add "
                "--chat, or put {\"messages\"} in lines of --prompts\n");
    for (const std::string thinking : {"false", "true"})
      check_error(
          "-p Hi --chat -s chat.thinking=" + thinking, 3,
          "chat.thinking: the chat template does not read enable_thinking or thinking\n  hint: "
          "leave chat.thinking out, or set the template's variable in chat.variables\n");
  }

  TEST_CASE("a saved state continues with the same text") {
    const TemporaryFolder folder;
    std::vector<int> ids(200);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(7 + 13 * i % 4000);
    const std::vector<int> head(ids.begin(), ids.begin() + 130), tail(ids.begin() + 130, ids.end());
    const std::string whole = folder.write("ab.json", Json(ids).dump());
    const std::string a = folder.write("a.json", Json(head).dump());
    const std::string b = folder.write("b.json", Json(tail).dump());
    const std::string state = folder / "s", f32 = "model.compute=f32";
    const Outcome save =
        pig_generate("--prompt-ids " + a + " -n 0 -s " + f32 + " -s output.state=" + state);
    CHECK(save.status == 0);
    CHECK(save.out.empty());
    CHECK(has(save.err, "prefill  130 tokens "));
    const Outcome on =
        pig_generate("--prompt-ids " + b + " -n 8 -s " + f32 + " -s model.state=" + state);
    const Outcome once = pig_generate("--prompt-ids " + whole + " -n 8 -s " + f32);
    CHECK(on.status == 0);
    CHECK(on.out == once.out);
    check_error("-m tiny-16m -p x -s model.state=" + state, 4, state + ": ");
  }

  TEST_CASE("a state is refused by the name of the setting that has changed") {
    const TemporaryFolder folder;
    const auto write_model = [&](const Json& scaling, const std::string& name) {
      fs::copy(recipe_file("models/tiny-2m"), folder / name);
      Json config = Json::parse(file_text(folder / name / "config.json"));
      config["max_position_embeddings"] = 64;
      config["rope_scaling"] = {
          {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
      config["rope_scaling"].update(scaling);
      folder.write(name + "/config.json", config.dump());
      return (folder / name).string();
    };
    const std::string model = write_model(Json::object(), "m");
    const std::string state = "model.state=" + (folder / "s").string();
    const Outcome saved =
        pig_generate("-m " + model + " -p Once -n 0 -s output.state=" + (folder / "s").string());
    CHECK(saved.status == 0);
    // The context is longer than config.json states; a note says so once.
    const std::string note = "context  256 = 4 x 64 by YaRN (max_position_embeddings of m: 64)";
    const size_t first = saved.err.find(note);
    CHECK(first != std::string::npos);
    CHECK(saved.err.find(note, first + 1) == std::string::npos);
    CHECK(pig_generate("-m " + model + " -s " + state + " -p ' upon' -n 1").status == 0);
    for (const auto& [key, is] : std::map<std::string, Json>{
             {"beta_fast", 16}, {"beta_slow", 4}, {"attention_factor", 2}, {"truncate", false}}) {
      CAPTURE(key);
      const std::string other = write_model({{key, is}}, key);
      check_error(
          "-m " + other + " -s " + state + " -p ' upon' -n 1 -q", 4,
          (folder / "s").string() + ": was saved with another model ('m'): '" + key + "' was ");
    }
  }

  TEST_CASE("output.state takes the place of nothing unasked") {
    const TemporaryFolder folder;
    const auto save = [&](const std::string& name, const Words& more = {}) {
      return pig_generate("-p Log -n 0 -s output.state=" + (folder / name).string() + more);
    };
    folder.write("old", "old");
    const Outcome refused = save("old");
    CHECK(refused.status == 2);
    CHECK(has(refused.err,
              "old: the output file exists already\n  hint: replace it with --overwrite"));
    CHECK(file_text(folder / "old") == "old");

    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    fs::create_directory(folder / "sub");
    for (const char* name : {"pipe", "sub"}) {
      const Outcome special = save(name, "--overwrite");
      CHECK(special.status == 4);
      CHECK(has(special.err, "is not a regular file"));
    }
    CHECK(fs::is_fifo(folder / "pipe"));
    CHECK(save("pipe").status == 4);
    CHECK(save("none/s").status == 4);

    fs::create_symlink("old", folder / "link");
    CHECK(save("link").status == 2);
    CHECK(save("link", "--overwrite").status == 0);
    CHECK(fs::is_symlink(folder / "link"));
    CHECK(fs::file_size(folder / "old") > 1000);
    CHECK(folder.n_files() == 4);

    const std::string state = "output.state=" + (folder / "new").string();
    check_error({"-p", "x", "-s", "output.state='-'"}, 3,
                "--set #1: output.state: expected a file, found -");
    check_error("-p x -s " + state + " -o " + (folder / "new").string(), 3,
                "--set #1: output.state: ");
    const std::string two = folder.write("p.jsonl", "{\"ids\": [1]}\n{\"ids\": [2]}\n");
    check_error("--prompts " + two + " -s " + state, 2,
                "output.state: expected prompts with a shared beginning");
    CHECK(save("new", "--dry-run").status == 0);
    CHECK(!fs::exists(folder / "new"));
  }

  TEST_CASE("-n 0 reads every prompt and says so") {
    const TemporaryFolder folder;
    const Outcome one = pig_generate("--format jsonl -p 'Once upon a time' -n 0");
    const auto all = json_lines(one.out);
    REQUIRE(all.size() == 1);
    CHECK(all[0]["prompt_tokens"] > 3);
    CHECK(all[0]["new_tokens"] == 0);
    const std::string batch = folder.write("p.jsonl", "{\"ids\": [1, 2, 3]}\n{\"ids\": [2]}\n");
    const Outcome two = pig_generate("--format jsonl --prompts " + batch + " -n 0");
    CHECK(last_event(two)["prompt_tokens"] == 4);
  }

  TEST_CASE("no sequence outgrows the model or run.context") {
    const TemporaryFolder folder;
    const std::string longer = folder.write("l.json", Json(std::vector<int>(40, 9)).dump());
    check_error("-p x -s run.context=20000", 3,
                "run.context: is 20000 tokens, but tiny-2m supports 16384\n");
    check_error("-p x -n 2147483647 -s run.context=5000000000", 3, "run.context: ");
    check_error("--prompt-ids " + longer + " -s run.context=39", 4,
                "prompt: has 40 tokens, but the context holds only 39\n  hint: raise run.context");
    const std::string blank = folder.write("blank.txt", std::string(10'000'000, ' '));
    check_error("-f " + blank, 4,
                "prompt: has at least 312501 tokens (1 in the first 0 of 10000000 bytes, at least "
                "312500 after them); the context holds 16384");
    const Outcome full =
        pig_generate("--prompt-ids " + longer + " -s run.context=44 -n 100 --format jsonl");
    const auto all = json_lines(full.out);
    CHECK(all[all.size() - 2]["reason"] == "context");
    CHECK(all.back()["new_tokens"] == 4);
    const std::string said = "\nstopped at run.context (44 tokens)\n";
    CHECK(full.err.ends_with(said));
    const std::string batch = folder.write("p.jsonl", "{\"ids\": [1, 2, 3]}\n{\"ids\": [2]}\n");
    CHECK(pig_generate("--prompts " + batch + " -s run.context=44 -n 42")
              .err.ends_with("\n1 of 2 sequences stopped at run.context (44 tokens)\n"));
    CHECK_FALSE(has(pig_generate("--prompt-ids " + longer + " -n 4").err, "stopped at"));
  }

  TEST_CASE("each kind of mistake has its status") {
    const TemporaryFolder folder;
    check_error("-m tiny-3m -p x", 4, "--model: model 'tiny-3m' not found\n");
    check_error("-n 3", 2, "prompt: expected a prompt, found none\n");
    check_error("-p x --prompt-ids y", 2,
                "prompt: expected one source of prompts, found several\n");
    check_error("-p x --tokens 3", 2, "--tokens: unknown flag\n");
    check_error("-p x -n many", 3, "--max-tokens: sampling.max_tokens: expected an integer");
    check_error("-p x -s eval.tasks=[vt]", 3, "--set #1: unknown key 'eval'");
    check_error("-p x -t 1025", 3,
                "--threads: run.threads: 1025 is out of range, expected 0 .. 1024\n");
    check_error("-p x -s run.prefill_chunk=5000000000", 3, "--set #1: run.prefill_chunk: ");
    check_error("-p x -q -s run.host_memory_limit=1MiB", 5, "");
    check_error("-p x --device cuda", 6, "--device: ");
    check_error("-f " + (folder / "none.txt").string(), 4,
                (folder / "none.txt").string() + ": cannot open");
    const std::string latin = folder.write("latin.txt", "caf\xE9");
    check_error("-f " + latin, 4, "text: byte 3 (0xE9) is not UTF-8 (in " + latin + ")\n");
    check_error("-p ''", 4, "-p: the prompt is empty\n");
  }

  TEST_CASE("a reader that leaves ends it quietly") {
    const Outcome run =
        run_shell(program("pig-generate") +
                  " -q -t 1 -m tiny-2m -p Log -n 2000 --format jsonl | head -1 | wc -l; "
                  "echo ${PIPESTATUS[0]}");
    CHECK(run.out == "1\n141\n");
    CHECK(run.err.empty());
  }

  TEST_CASE("an interruption of a batch, or of speculation, leaves no partial file") {
    const TemporaryFolder folder;
    std::string lines;
    for (int i = 0; i < 32; ++i) lines += "{\"ids\": [5, " + std::to_string(i) + "]}\n";
    const std::string batch = folder.write("p.jsonl", lines);
    for (const Words line :
         {"pig-generate -t 1 -m tiny-16m -n 16000 --prompts " + batch,
          std::string("triforce-generate -r triforce/tiny-16m --device cpu -p 'The keeper' -n 3000 "
                      "-s run.context=4096")}) {
      CAPTURE(line.at(0));
      Launch launch{.signal = SIGINT};
      launch.signal_after = "memory   cpu";  // what -v tells before the weights are made
      launch.signal_at_cpu = 1.5;            // both take some ten seconds, all before tenths
      const Outcome run = command(line + Words{"-v", "-o", folder / "out"}, launch);
      CAPTURE(run.err);
      CHECK(run.status == 130);
      CHECK(has(run.err, "interrupted, finishing the current step"));
      CHECK(run.cpu_seconds < 2);
      CHECK(folder.n_files() == 1);
    }
  }
}
