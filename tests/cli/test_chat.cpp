#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <cstdio>

#include "cli/window.h"

using namespace tandem::testing;

namespace {

// Follows each prompt: the terminal shall mark pasted text.
const std::string kPrompt = "\033[?2004h";
constexpr const char* kCtrlD = "\x04";

/// Types each line at a prompt, then ends the chat.
std::vector<Act> typed(const Words& lines) {
  std::vector<Act> acts;
  for (const std::string& line : lines) acts.push_back({.after = kPrompt, .type = line + "\n"});
  acts.push_back({.after = kPrompt, .type = kCtrlD});
  return acts;
}

/// A folder with a chat template that writes answers as they are.
struct Place {
  TemporaryFolder folder;
  Words flags = {"-m", "tiny-2m", "-t", "1", "-n", "12", "-s", "model.compute=f32"};

  Place() {
    const std::string file = folder
                                 .write("t.jinja",
                                        "{% for m in messages %}<|start_header_id|>{{ m.role }}"
                                        "<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
                                        "{% if add_generation_prompt %}<|start_header_id|>assistant"
                                        "<|end_header_id|>\n\n{% endif %}")
                                 .string();
    flags = flags + Words{"-s", "chat.template=" + file};
  }

  std::string path(const std::string& name) const { return (folder / name).string(); }
  Session chat(const std::vector<Act>& acts, const Words& more = {},
               const char* tool = "pig-generate") const {
    return run_in_window(120, tool, flags + Words{"--chat"} + more, acts);
  }
  Session chat(const Words& lines, const Words& more = {},
               const char* tool = "pig-generate") const {
    return chat(typed(lines), more, tool);
  }
  /// What the messages of a saved chat are.
  Json saved(const std::string& name) const {
    return json_lines(file_text(folder / name)).at(0).at("messages");
  }
  /// The answer that a run without a terminal gives after these messages.
  std::string answer(const Json& messages, const Words& more = {}) const {
    const std::string file =
        folder.write("prompts.jsonl", Json{{"messages", messages}}.dump() + "\n").string();
    const Outcome run = run_process(program("pig-generate"),
                                    {.arguments = flags + Words{"-q", "--prompts", file} + more});
    REQUIRE(run.status == 0);
    return run.out.substr(0, run.out.size() - 1);
  }
};

struct Counts {
  int kept = -1, dropped = -1, read = -1, written = -1;
};

/// What -v says of the turns.
std::vector<Counts> counts_of(const std::string& bytes) {
  std::vector<Counts> all;
  for (size_t at = 0; (at = bytes.find("turn     ", at)) != std::string::npos; ++at) {
    Counts c;
    CHECK(std::sscanf(bytes.c_str() + at,
                      "turn %d tokens reused, %d dropped, %d prefilled in %*f s, %d generated",
                      &c.kept, &c.dropped, &c.read, &c.written) == 4);
    all.push_back(c);
  }
  return all;
}

}  // namespace

TEST_SUITE("cli/chat") {
  TEST_CASE("a chat reads only the new tokens of each turn, under every policy") {
    for (const std::string policy : {"{kind: full}", "{kind: streaming, sinks: 4, recent: 64}",
                                     "{kind: snapkv, snapkv: {budget: 64}}",
                                     "{kind: hybrid, dense_layers: [0], sinks: 4, recent: 8}",
                                     "{kind: lsh, dense_layers: [0], sinks: 4, recent: 8}"}) {
      CAPTURE(policy);
      const Place place;
      const Session run =
          place.chat({"The lamp was lit.", "The fog came in.", "/save " + place.path("c")},
                     {"-v", "-s", "cache=" + policy});
      CAPTURE(run.bytes);
      CHECK(run.status == 0);
      const auto counts = counts_of(run.bytes);
      REQUIRE(counts.size() == 2);
      CHECK(counts[0].kept == 0);
      CHECK(counts[0].written == 12);
      // The last token of the answer has not been through the model.
      CHECK(counts[1].kept == counts[0].read + 12 - 1);
      CHECK(counts[1].dropped == 0);
      CHECK(counts[1].read < counts[0].read + 5);
      const Json messages = place.saved("c");
      REQUIRE(messages.size() == 4);
      for (const size_t i : {1, 3}) {
        const std::string text = messages[i]["content"];
        CHECK(has(run.bytes, text.substr(0, text.find('\n'))));
        if (i == 1 || policy == "{kind: full}")
          CHECK(text == place.answer(Json(messages.begin(), messages.begin() + i),
                                     {"-s", "cache=" + policy}));
      }
      // The file is a prompt of its own: the answer after the last one.
      CHECK(place.answer(messages).size() > 1);
      int peak = 0, planned = 0;
      const size_t memory = run.bytes.find("memory   peak ");
      REQUIRE(memory != std::string::npos);
      REQUIRE(std::sscanf(run.bytes.c_str() + memory, "memory   peak %d%*[^,], planned %d", &peak,
                          &planned) == 2);
      CHECK(peak <= planned);
    }
  }

  TEST_CASE("/quit and /exit end a chat") {
    for (const char* word : {"/quit", "/exit"}) {
      const Session run = Place().chat({{.after = kPrompt, .type = std::string(word) + "\n"}});
      CAPTURE(run.bytes);
      CHECK(run.status == 0);
      CHECK_FALSE(has(run.bytes, "expected a command"));
    }
  }

  TEST_CASE("/reset, /system, --system, /help and a wrong command") {
    const Place place;
    const Session run = place.chat(
        {"Hi", "/reset", "/save " + place.path("none"), "Who are you?", "/save " + place.path("a"),
         "/system Be brief.", "  ", "Hi again", "/save " + place.path("b"),
         "/save " + place.path("b"), "/system", "Bare", "/save " + place.path("c"), "/rest",
         "/help", "/save", " /etc holds what?", "/save " + place.path("d")},
        {"--system", "You keep a lamp."});
    CAPTURE(run.bytes);
    CHECK(run.status == 0);
    const auto message = [](const char* role, const char* content) {
      return Json{{"role", role}, {"content", content}};
    };
    const Json a = place.saved("a"), b = place.saved("b"), c = place.saved("c");
    REQUIRE(a.size() == 3);
    CHECK(a[0] == message("system", "You keep a lamp."));
    CHECK(a[1] == message("user", "Who are you?"));
    CHECK(a[2]["content"] == place.answer(Json::array({a[0], a[1]})));
    REQUIRE(b.size() == 3);
    CHECK(b[0] == message("system", "Be brief."));
    CHECK(b[2]["content"] == place.answer(Json::array({b[0], b[1]})));
    REQUIRE(c.size() == 2);
    CHECK(c[0] == message("user", "Bare"));
    CHECK(place.saved("d")[2] == message("user", " /etc holds what?"));
    CHECK(has(run.bytes, "new conversation with the system message\r\n"));
    CHECK(has(run.bytes, "new conversation\r\n"));
    CHECK(has(run.bytes, "b: the file exists already\r\n  hint: name another one"));
    CHECK(has(run.bytes, "error: '/rest': expected a command\r\n  hint: /reset, /system TEXT, "));
    CHECK(has(run.bytes, "\r\n/save FILE    save the conversation"));
    CHECK(has(run.bytes, "error: /save: expected the name of a file"));
    CHECK(!std::filesystem::exists(place.folder / "none/x"));
  }

  TEST_CASE("lines that are continued, pasted or recalled") {
    const Place place;
    const Session run = place.chat({{.after = kPrompt, .type = "one \\\n"},
                                    {.after = kPrompt, .type = "two\n"},
                                    {.after = kPrompt, .type = "a\033[200~b\rc\td\re\033[201~f\n"},
                                    {.after = kPrompt, .type = "\033[A\x01Z\n"},  // up, Ctrl-A
                                    {.after = kPrompt, .type = "caf\u00e9 \u4e2d\n"},
                                    {.after = kPrompt, .type = "/save " + place.path("c") + "\n"},
                                    {.after = kPrompt, .type = kCtrlD}});
    CAPTURE(run.bytes);
    CHECK(run.status == 0);
    const Json messages = place.saved("c");
    REQUIRE(messages.size() == 8);
    CHECK(messages[0]["content"] == "one \ntwo");
    CHECK(messages[2]["content"] == "ab\nc\td\nef");
    CHECK(messages[4]["content"] == "Zab\nc\td\nef");
    CHECK(messages[6]["content"] == "caf\u00e9 \u4e2d");
  }

  TEST_CASE("Ctrl-C stops an answer only, and at a prompt says how to end") {
    const Place place;
    const std::string begin =
        place.answer(Json::array({{{"role", "user"}, {"content", "The lamp was lit."}}}));
    const Session run = place.chat({{.after = kPrompt, .type = std::string("half a li") + kCtrlC},
                                    {.after = kPrompt, .type = "The lamp was lit.\n"},
                                    {.after = begin, .type = kCtrlC},
                                    {.after = kPrompt, .type = "And now?\n"},
                                    {.after = kPrompt, .type = "/save " + place.path("c") + "\n"},
                                    {.after = kPrompt, .type = kCtrlD}},
                                   {"-v", "-n", "1000"});
    CAPTURE(run.bytes);
    CHECK(run.status == 0);
    CHECK(has(run.bytes, "Ctrl-D ends the chat\r\n"));
    CHECK(has(run.bytes, "\nstopped\r\n"));
    CHECK(!has(run.bytes, "press again to abort"));
    const Json messages = place.saved("c");
    REQUIRE(messages.size() == 4);
    const std::string first = messages[1]["content"];
    CHECK(first.starts_with(begin));
    CHECK(first.size() < 10000);
    const auto counts = counts_of(run.bytes);
    REQUIRE(counts.size() == 2);
    CHECK(counts[1].kept >= counts[0].read + counts[0].written - 2);
  }

  TEST_CASE("SIGTERM ends a chat at its prompt with its own status") {
    const Place place;
    const Session run =
        place.chat({{.after = kPrompt, .type = "Hi\n"}, {.after = kPrompt, .signal = SIGTERM}});
    CAPTURE(run.bytes);
    CHECK(run.status == 143);
    CHECK(has(run.bytes, "pig-generate: error: interrupted\r\n"));
  }

  TEST_CASE("a turn beyond the context is refused, and nothing is lost") {
    const Place place;
    std::string text;
    for (int i = 0; i < 60; ++i) text += "lamp " + std::to_string(i) + " ";
    const Session run =
        place.chat({"Hi", text, "Ho", "/save " + place.path("c")}, {"-v", "-s", "run.context=80"});
    CAPTURE(run.bytes);
    CHECK(run.status == 0);
    CHECK(has(run.bytes, "error: chat: has "));
    CHECK(has(run.bytes,
              " tokens with this turn, the context holds 80\r\n  hint: begin a new conversation "
              "(/reset)"));
    const Json messages = place.saved("c");
    REQUIRE(messages.size() == 4);
    CHECK(messages[2]["content"] == "Ho");
    CHECK(has(run.bytes, "stopped at 12 tokens (to allow more: -n N)"));
    const Session full = place.chat({"Hi"}, {"-n", "1000", "-s", "run.context=40"});
    CHECK(has(full.bytes,
              "stopped at the context limit (40 tokens). /reset starts a new conversation"));
  }

  TEST_CASE("without a terminal, and with what a chat does not take, an error says what to do") {
    const Place place;
    const auto refused = [&](const Words& more, const std::string& says) {
      check_refused(
          run_process(program("pig-generate"),
                      {.arguments = place.flags + Words{"-q", "--chat"} + more, .input = "Hi\n"}),
          2, "pig-generate: error: " + says);
    };
    refused({},
            "--chat: expected a terminal to chat on, but standard input is not a terminal\n  hint: "
            "give one message with -p TEXT or -f -, or several turns with --prompts FILE\n");
    refused({"-p", "a", "b"}, "--prompt: given more than once: 'a' and 'b'");
    refused({"--dry-run", "-o", place.path("o")},
            "output.path: is not supported for a chat, which writes to the terminal\n");
    refused({"--dry-run", "--format", "jsonl"}, "--format: expected text for a chat\n");
    refused({"--dry-run", "-s", "output.state=" + place.path("s")},
            "output.state: saving the state of a chat is not supported\n");
    refused({"--dry-run", "-n", "0"}, "sampling.max_tokens: expected at least 1");
    refused({"--dry-run", "--fastest"}, "--fastest: expected a prompt to try drafts on");
  }

  TEST_CASE("a chat speculates by every draft, in every program") {
    const Place place;
    const Words lines = {"The lamp was lit.", "The fog came in.", "/save " + place.path("c")};
    REQUIRE(place.chat(lines).status == 0);
    const Json plain = place.saved("c");
    REQUIRE(plain.size() == 4);
    for (const auto& [tool, draft] :
         {std::pair{"pig-generate", Words{"spec.draft=ngram"}},
          {"sequoia-generate", {"spec.draft=model", "draft.path=tiny-2m", "spec.force=true"}},
          {"sirius-generate",
           {"spec.draft=self", "draft.sparse.kind=cats", "spec.verify=match", "spec.gamma=2"}},
          {"triforce-generate",
           {"spec.draft=nested", "spec.within=ngram", "draft.cache.kind=retrieval"}}}) {
      CAPTURE(tool);
      Words settings = {"--overwrite", "-v"};
      for (const std::string& setting : draft) settings = settings + Words{"-s", setting};
      const Session run = place.chat(lines, settings, tool);
      CAPTURE(run.bytes);
      CHECK(run.status == 0);
      CHECK(place.saved("c") == plain);
      // Later turns go on from the target's keys of the earlier ones.
      REQUIRE(counts_of(run.bytes).size() == 2);
      CHECK(counts_of(run.bytes)[1].kept > 0);
    }
  }

  TEST_CASE("without run.context a chat has as much of the model's context as fits") {
    const Place place;
    const auto plan = [&](const Words& more) {
      return run_process(program("pig-generate"),
                         {.arguments = place.flags + Words{"--chat", "--dry-run"} + more});
    };
    const Outcome whole = plan({});
    CHECK(has(whole.out, "prefill of 16384 tokens "));
    const size_t peak = whole.out.find("peak ");
    REQUIRE(peak != std::string::npos);
    const std::string limit =
        fmt::format("run.host_memory_limit={}MiB", std::stoi(whole.out.substr(peak + 5)) - 2);
    const Outcome half = plan({"-s", limit});
    CHECK(half.status == 0);
    CHECK(has(half.out, "prefill of 8192 tokens "));
    CHECK(plan({"-s", limit, "-s", "run.context=16384"}).status == 5);
    const Session run = place.chat({"Hi"}, {"-s", limit});
    CHECK(has(run.bytes, "context  8192 tokens fit in memory, the model supports 16384"));
  }
}
