#include <doctest/doctest.h>

#include "decode/conversation.h"
#include "error_text.h"
#include "generate_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::Conversation;
using decode::Engine;
using decode::Finish;
using decode::GenerateEvents;
using decode::GenerateSpec;
using decode::Turn;
using text::ChatMessage;

namespace {

/// Writes messages as they are, and earlier answers cut to `most` characters.
text::ChatTemplate chat_template(int most = 1000) {
  return {
      "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
      "{{ m.content[:" +
          std::to_string(most) +
          "] if m.role == 'assistant' else m.content }}<|eot_id|>{% endfor %}"
          "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n"
          "{% endif %}",
      "t",
      {}};
}

std::unique_ptr<Engine> chat_engine(const recipe::Cache& cache = {}) {
  return make_engine(tiny_model("tiny-2m"),
                     {.chunk = 8, .max_seqs = 1, .max_tokens = 512, .caches = {cache}});
}

GenerateSpec answers(int n) {
  GenerateSpec how;
  how.max_tokens = n;
  how.max_context = 512;
  return how;
}

/// The answer of a run that begins with these messages.
std::string answer_alone(const text::ChatTemplate& chat, const std::vector<ChatMessage>& messages,
                         const GenerateSpec& how) {
  const auto engine = chat_engine();
  const std::string prompt = chat.prompt(text::Chat(messages), "test").text;
  return generate(*engine, {request(engine->tokenizer()->encode(prompt, {.add_bos = false}))}, how)
      .text[0];
}

/// A conversation in a new engine.
struct Talk {
  explicit Talk(const recipe::Cache& cache = {}, int most = 1000)
      : engine(chat_engine(cache)),
        decoder(decode::plain_decoder(*engine)),
        session(*engine, *decoder),
        written(chat_template(most)),
        chat(session, written) {}

  Turn ask(const std::string& message, int n = 12, const GenerateEvents& events = {}) {
    return chat.ask(message, answers(n), events);
  }
  /// The messages up to the last answer, which a run of its own gives too.
  void check_last_answer(int most = 1000, int n = 12) const {
    std::vector<ChatMessage> before = chat.messages();
    const std::string last = before.back().content;
    before.pop_back();
    CHECK(last == answer_alone(chat_template(most), before, answers(n)));
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<decode::Decoder> decoder;
  decode::Session session;
  text::ChatTemplate written;
  Conversation chat;
};

// tiny-2m answers them in tokens that its tokenizer makes of the same text again.
const char* const kMessages[] = {"The lamp was lit.", "The fog came in.", "The boat left."};

recipe::Cache of_kind(recipe::CacheKind kind) {
  recipe::Cache c;
  c.kind = kind;
  c.sinks = {4};
  c.recent = {8};
  c.dense_layers = {0};
  return c;
}

}  // namespace

TEST_SUITE("decode/conversation") {
  TEST_CASE("a turn reads only new tokens, and its answer is that of a run with all messages") {
    Talk talk;
    size_t held = 0;
    for (const char* message : kMessages) {
      CAPTURE(message);
      const Turn turn = talk.ask(message);
      CHECK(turn.finish == Finish::length);
      CHECK(turn.kept == held);
      CHECK(turn.dropped == 0);
      CHECK(turn.report.prompt_tokens > 5);
      CHECK(turn.report.prompt_tokens < 40);
      // The last token has not been through the model.
      held =
          turn.kept + static_cast<size_t>(turn.report.prompt_tokens + turn.report.new_tokens) - 1;
      talk.check_last_answer();
    }
    CHECK(talk.chat.messages().size() == 6);
    CHECK(talk.engine->cache().length(0) == static_cast<int>(held));
  }

  TEST_CASE("a template that rewrites earlier answers: the cache goes back to where they differ") {
    Talk talk({}, /*most=*/5);
    for (const char* message : kMessages) {
      CAPTURE(message);
      const Turn turn = talk.ask(message);
      CHECK((turn.dropped > 0) == (message != kMessages[0]));
      CHECK((turn.kept > 0) == (message != kMessages[0]));
      talk.check_last_answer(5);
    }
  }

  TEST_CASE("restart keeps the tokens that the new conversation begins with") {
    Talk talk;
    const std::string system = "You keep a lighthouse on a rock in the west.";
    talk.chat.restart(system);
    talk.ask(kMessages[0]);
    talk.chat.restart(system);
    CHECK(talk.chat.messages().size() == 1);
    const Turn again = talk.ask(kMessages[1]);
    CHECK(again.kept > 10);
    CHECK(again.dropped > 10);
    talk.check_last_answer();
    talk.chat.restart("");
    CHECK(talk.chat.messages().empty());
    talk.ask(kMessages[0]);
    talk.check_last_answer();
  }

  TEST_CASE("under every policy, turns give what prompts and steps in one sequence give") {
    recipe::Cache codes = of_kind(recipe::CacheKind::hybrid);
    codes.hybrid.exact = {0.1};
    for (const recipe::Cache& cache :
         {streaming(4, 200), streaming(4, 16), snapkv(50, 8), retrieval(40, 8), codes,
          of_kind(recipe::CacheKind::lsh), of_kind(recipe::CacheKind::quest),
          of_kind(recipe::CacheKind::topk)}) {
      CAPTURE(recipe::yaml_text(cache.kind));
      Talk talk(cache);
      const auto plain = chat_engine(cache);
      const int slot = plain->cache().create();
      for (const char* message : kMessages) {
        CAPTURE(message);
        const Turn turn = talk.ask(message, 40);
        std::vector<ChatMessage> before = talk.chat.messages();
        const std::string answer = before.back().content;
        before.pop_back();
        const Ids ids = plain->tokenizer()->encode(
            chat_template().prompt(text::Chat(before), "test").text, {.add_bos = false});
        plain->cache().truncate(slot, static_cast<int>(turn.kept));
        CHECK((turn.kept > 0) == (message != kMessages[0]));
        CHECK(turn.kept + static_cast<size_t>(turn.report.prompt_tokens) == ids.size());
        Row row = prefill(*plain, slot, std::span(ids).subspan(turn.kept));
        Ids written;
        for (int i = 0;; ++i) {
          written.push_back(argmax(row));
          if (i == 39) break;
          row = extend(*plain, slot, std::span(written).last(1));
        }
        CHECK(plain->tokenizer()->decode(written, /*skip_special=*/true) == answer);
      }
    }
  }

  TEST_CASE("a policy that evicted what a shorter text needs: all is read again") {
    Talk talk(streaming(4, 16), /*most=*/5);
    std::string log;
    for (int i = 0; i < 20; ++i) log += "The keeper wrote that wind came from the north. ";
    talk.ask(log, 100);
    const int length = talk.engine->cache().length(0);
    const Turn turn = talk.ask(kMessages[1]);
    CHECK(turn.kept == 0);
    CHECK(turn.dropped == static_cast<size_t>(length));
    // The prompt is read densely, as a new run reads it.
    const auto alone = chat_engine(streaming(4, 16));
    std::vector<ChatMessage> before = talk.chat.messages();
    const std::string answer = before.back().content;
    before.pop_back();
    const Ids ids = alone->tokenizer()->encode(
        chat_template(5).prompt(text::Chat(before), "test").text, {.add_bos = false});
    CHECK(generate(*alone, {request(ids)}, answers(12)).text[0] == answer);
  }

  TEST_CASE("an interrupted answer stays as far as it goes, and the next turn goes on from there") {
    Talk talk;
    talk.ask(kMessages[0]);
    int n = 0;
    GenerateEvents events;
    events.on_token = [&](const decode::TokenEvent&) { ++n; };
    events.interrupted = [&] { return n >= 4; };
    const Turn stopped = talk.ask(kMessages[1], 12, events);
    CHECK(!stopped.finish);
    CHECK(stopped.report.new_tokens == 4);
    REQUIRE(talk.chat.messages().size() == 4);
    const Turn next = talk.ask(kMessages[2]);
    CHECK(next.dropped == 0);
    talk.check_last_answer();
    // Before its first token: the message goes with it.
    events.interrupted = [] { return true; };
    CHECK(!talk.ask("And the boat?", 12, events).finish);
    CHECK(talk.chat.messages().size() == 6);
    talk.ask("And the boat?");
    CHECK(talk.chat.messages().size() == 8);
    talk.check_last_answer();
  }

  TEST_CASE("a turn beyond the context, or one that the template refuses, changes nothing") {
    Talk talk;
    talk.ask(kMessages[0]);
    std::string text;
    for (int i = 0; i < 300; ++i) text += " lamp " + std::to_string(i);
    const std::string refused = input_error_text([&] { talk.ask(text); });
    CHECK(refused.starts_with("chat: has "));
    CHECK(refused.ends_with(" tokens with this turn, the context holds 512"));
    CHECK(talk.chat.messages().size() == 2);
    const Turn turn = talk.ask(kMessages[1]);
    CHECK(turn.kept > 10);
    talk.check_last_answer();
    const Turn filled = talk.ask("Go on.", 1000);
    CHECK(filled.finish == Finish::context);

    const auto decoder = decode::plain_decoder(*talk.engine);
    decode::Session session(*talk.engine, *decoder);
    const text::ChatTemplate refuses("{{ raise_exception('no') }}", "t", {});
    Conversation strict(session, refuses);
    CHECK(kind_of([&] { strict.ask("Hi", answers(4), {}); }) == ErrorKind::recipe);
    CHECK(strict.messages().empty());
  }

  TEST_CASE("a conversation that ends gives its pages back") {
    const auto engine = chat_engine();
    const int pages = engine->cache().store().free_pages();
    const auto decoder = decode::plain_decoder(*engine);
    {
      const text::ChatTemplate written = chat_template();
      decode::Session session(*engine, *decoder);
      Conversation chat(session, written);
      chat.ask(kMessages[0], answers(4), {});
      CHECK(engine->cache().store().free_pages() < pages);
    }
    CHECK(engine->cache().store().free_pages() == pages);
  }
}
