#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "error_text.h"
#include "source_dir.h"
#include "tandem/tandem.h"
#include "temporary_folder.h"

using namespace tandem;

namespace {

const std::string kPrompt = "The keeper climbed the stairs and lit the lamp, for";

/// f32 on the CPU, so that texts do not depend on how many rows a forward has.
Model opened(ModelOptions options = {}, const std::string& name = "tiny-2m") {
  options.device = "cpu";
  options.set.push_back("model.compute=f32");
  if (options.context == 0) options.context = 512;
  return Model::open((test::source_dir() / "recipes/models" / name).string(), options);
}

std::string text_of(Model& model, const Sampling& how = {.max_tokens = 32}) {
  return model.session().generate(kPrompt, how).text;
}

/// Reads all tokens, in descending order.
struct Everything : Policy {
  std::string name() const override { return "everything"; }
  void begin(const AttentionShape& s) override {
    shape = s;
    ++n_begun;
  }
  void on_tokens(int sequence, const Keys& keys) override {
    if (lengths.size() <= static_cast<size_t>(sequence))
      lengths.resize(static_cast<size_t>(sequence) + 1);
    lengths[static_cast<size_t>(sequence)] = keys.n_tokens();
    std::vector<float> key(static_cast<size_t>(shape.head_dim));
    keys.read(shape.layers - 1, shape.kv_heads - 1, keys.n_tokens() - 1, key.data());
    last_key = key;
  }
  void on_rewind(int sequence, int n) override { lengths[static_cast<size_t>(sequence)] = n; }
  void on_end(int sequence) noexcept override { lengths[static_cast<size_t>(sequence)] = -1; }
  void select(const Query& query, Selection& selection) const override {
    for (int t = query.position; t >= 0; --t) selection.tokens.push_back(t);
  }

  AttentionShape shape;
  int n_begun = 0;
  std::vector<int> lengths;
  std::vector<float> last_key;
};

}  // namespace

TEST_SUITE("api/library") {
  TEST_CASE("an answer is streamed, and ends at its limit, a stop text or a false return") {
    Model model = opened({.sessions = 2});
    Session session = model.session();
    std::string streamed;
    const Result whole = session.generate(kPrompt, {.max_tokens = 24}, [&](const Token& t) {
      streamed += t.text;
      return true;
    });
    CHECK(whole.finish == Finish::length);
    CHECK(whole.ids.size() == 24);
    CHECK(whole.steps == 23);
    CHECK(whole.text == streamed);
    CHECK(model.decode(session.ids()).ends_with(kPrompt + whole.text));

    const std::string word = whole.text.substr(whole.text.find(' ', 8) + 1, 4);
    const Result cut = model.session().generate(kPrompt, {.max_tokens = 24, .stop = {word}});
    CHECK(cut.finish == Finish::stop);
    CHECK(cut.text == whole.text.substr(0, whole.text.find(word)));

    int n = 0;
    const Result stopped = model.session().generate(kPrompt, {.max_tokens = 24},
                                                    [&](const Token&) { return ++n < 5; });
    CHECK(stopped.finish == Finish::stopped);
    CHECK(whole.text.starts_with(stopped.text));
    CHECK(stopped.ids.size() >= 5);
    CHECK(stopped.ids.size() < 24);
  }

  TEST_CASE("a text goes on where it was: in parts, after a fork, a rewind and a saved file") {
    Model model = opened({.sessions = 2});
    const std::string whole = text_of(model, {.max_tokens = 30});
    Session session = model.session();
    std::string parts = session.generate(kPrompt, {.max_tokens = 10}).text;
    Session copy = session.fork();
    const auto n = static_cast<int64_t>(session.ids().size());
    const test::TemporaryFolder folder;
    session.save(folder / "state");
    for (int i = 0; i < 2; ++i) parts += session.generate("", {.max_tokens = 10}).text;
    CHECK(parts == whole);
    CHECK(whole.ends_with(copy.generate("", {.max_tokens = 20}).text));
    session.rewind(n);
    CHECK(whole.ends_with(session.generate("", {.max_tokens = 20}).text));
    { const Session gone = std::move(session); }
    Session saved = model.restore(folder / "state");
    CHECK(static_cast<int64_t>(saved.ids().size()) == n);
    CHECK(whole.ends_with(saved.generate("", {.max_tokens = 20}).text));
  }

  TEST_CASE("log-probabilities are those of the logits, row by row") {
    Model model = opened({.sessions = 2});
    const std::vector<int32_t> ids = model.encode(kPrompt);
    const auto tail = std::span(ids).subspan(4);
    Session session = model.session();
    session.append(std::span(ids).first(4));
    Session copy = session.fork();
    const std::vector<float> found = session.log_probs(tail);
    CHECK(session.ids() == ids);
    copy.rewind(3);
    const Logits logits = copy.read(std::span(ids).subspan(3));
    CHECK(logits.vocab == model.vocab());
    REQUIRE(logits.rows == std::ssize(tail) + 1);
    for (int i = 0; i + 1 < logits.rows; ++i) {
      double sum = 0;
      for (const float x : logits.row(i)) sum += std::exp(double{x});
      const float x = logits.row(i)[static_cast<size_t>(tail[static_cast<size_t>(i)])];
      CHECK(found[static_cast<size_t>(i)] == doctest::Approx(x - std::log(sum)).epsilon(1e-5));
    }
  }

  TEST_CASE("drafts write plain decoding's text and show their steps") {
    Model plain = opened({}, "tiny-16m");
    const Sampling how{.max_tokens = 40, .temperature = 0.8, .seed = 7};
    const std::string wanted = text_of(plain, how);
    const std::string draft =
        "{kind: model, path: " + (test::source_dir() / "recipes/models/tiny-2m").string() + "}";
    for (const std::string& text : {std::string("ngram"), draft}) {
      CAPTURE(text);
      int64_t drafted = 0, accepted = 0, steps = 0;
      Model model = opened({.draft = text,
                            .set = {"spec.verify=match", "spec.shape.gamma=3"},
                            .on_round =
                                [&](const Round& r) {
                                  drafted += r.drafted;
                                  accepted += r.accepted;
                                  ++steps;
                                }},
                           "tiny-16m");
      CHECK(text_of(model, how) == wanted);
      CHECK(steps > 0);
      CHECK(accepted <= drafted);
      if (text != "ngram") CHECK(accepted > 0);
    }
  }

  TEST_CASE("a batch answers each prompt as a session does, also in turns") {
    Model model = opened({.sessions = 2});
    const std::vector<std::string> prompts = {kPrompt, "The fog", "The boat left the harbour"};
    const std::vector<Result> answers = model.generate(prompts, {.max_tokens = 12});
    REQUIRE(answers.size() == 3);
    for (size_t i = 0; i < prompts.size(); ++i)
      CHECK(answers[i].text == model.session().generate(prompts[i], {.max_tokens = 12}).text);
  }

  TEST_CASE("a chat keeps its turns; a fork of it goes on apart") {
    Model model = opened({.sessions = 2}, "tiny-16m");
    Session session = model.session();
    session.restart_chat("You keep a lighthouse.");
    const Result first = session.chat("Who are you?", {.max_tokens = 16});
    Session copy = session.fork();
    const Result second = session.chat("And the lamp?", {.max_tokens = 16});
    CHECK(second.prompt_tokens < std::ssize(session.ids()) - std::ssize(first.ids));
    CHECK(copy.chat("And the lamp?", {.max_tokens = 16}).text == second.text);
  }

  TEST_CASE("a policy from outside that reads all tokens writes full attention's text") {
    Model full = opened();
    const auto policy = std::make_shared<Everything>();
    Model model = opened({.cache = policy, .sessions = 2});
    CHECK(policy->shape.heads % policy->shape.kv_heads == 0);
    CHECK(policy->n_begun == 1);
    Session session = model.session();
    CHECK(session.generate(kPrompt, {.max_tokens = 32}).text == text_of(full));
    const auto n = static_cast<int>(session.ids().size());
    CHECK(policy->lengths[0] == n - 1);  // the last token has not been read
    CHECK(std::ranges::any_of(policy->last_key, [](float x) { return x != 0; }));
    session.rewind(4);
    CHECK(policy->lengths[0] == 4);
    { const Session gone = std::move(session); }
    CHECK(policy->lengths[0] == -1);
  }

  TEST_CASE("a policy from outside writes the same text with drafts, in chains and trees") {
    struct Strided : Policy {
      std::string name() const override { return "strided"; }
      void select(const Query& query, Selection& s) const override {
        for (int t = 0; t <= query.position; ++t)
          if (t % 3 == 0 || t > query.position - 2) s.tokens.push_back(t);
      }
    };
    const Cache cache(std::make_shared<Strided>());
    Model plain = opened({.cache = cache});
    const std::string wanted = text_of(plain);
    Model full = opened();
    CHECK(text_of(full) != wanted);
    const std::string draft =
        "{kind: model, path: " + (test::source_dir() / "recipes/models/tiny-2m").string() + "}";
    for (const char* shape :
         {"spec.shape={kind: chain, gamma: 4}", "spec.shape={kind: beams, width: 3, gamma: 4}"}) {
      CAPTURE(shape);
      int64_t accepted = 0;
      Model drafted = opened({.cache = cache,
                              .draft = draft,
                              .set = {shape, "spec.force=true"},
                              .on_round = [&](const Round& r) { accepted += r.accepted; }});
      CHECK(text_of(drafted) == wanted);
      CHECK(accepted > 8);
    }
  }

  TEST_CASE("log weights change what a policy's tokens count") {
    struct First : Everything {
      explicit First(float weight) : log_weight(weight) {}
      void select(const Query& query, Selection& selection) const override {
        Everything::select(query, selection);
        selection.log_weights.assign(selection.tokens.size(), 0);
        selection.log_weights.back() = log_weight;  // the first token's
      }
      float log_weight;
    };
    const auto sum = [](const std::shared_ptr<Policy>& policy) {
      Model model = opened({.cache = {policy}});
      const std::vector<int32_t> ids = model.encode(kPrompt);
      Session session = model.session();
      session.append(std::span(ids).first(4));
      double all = 0;
      for (const float x : session.log_probs(std::span(ids).subspan(4))) all += x;
      return all;
    };
    const double plain = sum(std::make_shared<Everything>());
    CHECK(sum(std::make_shared<First>(0.0f)) == plain);
    CHECK(std::abs(plain - sum(std::make_shared<First>(-8.0f))) > 1e-3);
  }

  TEST_CASE("sessions of one model take turns in several threads") {
    Model model = opened({.sessions = 3});
    const std::string wanted = text_of(model);
    std::vector<std::string> texts(3);
    std::vector<std::thread> threads;
    for (std::string& text : texts)
      threads.emplace_back([&] {
        Session session = model.session();
        text = session.generate(kPrompt, {.max_tokens = 16}).text;
        text += session.generate("", {.max_tokens = 16}).text;
      });
    for (std::thread& t : threads) t.join();
    for (const std::string& text : texts) CHECK(text == wanted);
  }
}
