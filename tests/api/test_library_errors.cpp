#include <doctest/doctest.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "error_text.h"
#include "source_dir.h"
#include "tandem/tandem.h"
#include "temporary_folder.h"

using namespace tandem;
using test::kind_of;

namespace {

std::string folder() { return (test::source_dir() / "recipes/models/tiny-2m").string(); }

Model opened(ModelOptions options = {}) {
  options.device = "cpu";
  if (options.context == 0) options.context = 128;
  return Model::open(folder(), options);
}

/// The message and hint of what a call throws.
template <class F>
std::string refusal(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return std::string(e.what()) + " / " + e.hint_text();
  }
  return "no error";
}
bool has(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

/// Chooses one token, wherever that is.
struct One : Policy {
  explicit One(int o) : offset(o) {}
  std::string name() const override { return "one"; }
  void select(const Query& query, Selection& s) const override {
    if (offset > -1000) s.tokens = {query.position + offset, query.position + offset};
  }
  int offset;
};

}  // namespace

TEST_SUITE("api/errors") {
  TEST_CASE("models and settings that do not exist") {
    CHECK(kind_of([] { (void)Model::open("/no/such/folder"); }) == ErrorKind::input);
    has(refusal([] { opened({.cache = "hybird"}); }), "did you mean 'hybrid'");
    has(refusal([] { opened({.cache = "{kind: streaming, recnt: 5}"}); }),
        "unknown key 'recnt' in section 'cache'");
    has(refusal([] { opened({.draft = "{kind: ngram, path: x}"}); }), "path");
    has(refusal([] { opened({.set = {"run.seeed=1"}}); }), "unknown key 'seeed'");
    has(refusal([] { opened({.context = 1 << 30}); }), "run.context");
    has(refusal([] { opened({.sessions = 0}); }), "sessions >= 1");
    has(refusal([] { opened({.set = {"spec.fastest=true"}}); }), "supported only by the tools");
  }

  TEST_CASE("a policy that chooses what is not there, or nothing, or twice") {
    const auto text_with = [](int offset) {
      return refusal([&] {
        Model model = opened({.cache = {std::make_shared<One>(offset)}});
        (void)model.session().generate("The lamp was", {.max_tokens = 4});
      });
    };
    has(text_with(1), "policy one: layer 0, head ");
    has(text_with(1), "expected tokens from 0 to");
    has(text_with(-200), "found token -");
    has(text_with(0), "twice");
    has(text_with(-1000), "found none");
  }

  TEST_CASE("a session whose model is gone, and one that moved away") {
    std::optional<Model> model = opened();
    Session session = model->session();
    session.append("The lamp");
    model.reset();
    has(refusal([&] { (void)session.generate("was"); }), "its model is gone");
    has(refusal([&] { (void)session.ids(); }), "its model is gone");
    Session other = std::move(session);
    CHECK(kind_of([&] { (void)session.ids(); }) == ErrorKind::usage);  // NOLINT: moved from
  }

  TEST_CASE("two threads in one session, and callbacks that use their model") {
    Model model = opened({.sessions = 2});
    Session session = model.session(), other = model.session();
    std::string by_thread, by_callback, by_other;
    (void)session.generate("The lamp was", {.max_tokens = 3}, [&](const Token&) {
      std::thread([&] { by_thread = refusal([&] { session.append("x"); }); }).join();
      by_callback = refusal([&] { session.append("x"); });
      by_other = refusal([&] { other.append("x"); });
      return false;
    });
    has(by_thread, "in use by another thread / give each thread its own");
    has(by_callback, "a callback cannot use the model");
    has(by_other, "a callback cannot use the model");
    session.append("x");  // and both go on
    other.append("x");
  }

  TEST_CASE("an error within a callback reaches the caller, and the session goes on") {
    Model model = opened();
    Session session = model.session();
    CHECK_THROWS_AS(session.generate("The lamp was", {},
                                     [](const Token&) -> bool { throw std::logic_error("mine"); }),
                    std::logic_error);
    CHECK(session.generate(" lit", {.max_tokens = 3}).ids.size() == 3);
  }

  TEST_CASE("more sessions, tokens or ids than there is room for") {
    Model model = opened();
    Session session = model.session();
    has(refusal([&] { (void)model.session(); }), "expected at most 1 session alive");
    has(refusal([&] { (void)session.fork(); }), "expected at most 1 session alive");
    has(refusal([&] { (void)model.generate(std::vector<std::string>{"x"}); }), "at most 1 session");
    const std::vector<int32_t> many(129, 5);
    has(refusal([&] { session.append(many); }),
        "would have 129 tokens, but a session has room for 128");
    has(refusal([&] { (void)session.generate(many); }), "would have 130 tokens");
    for (const int32_t id : {-1, model.vocab()}) {
      const std::vector<int32_t> one = {id};
      has(refusal([&] { session.append(one); }), "expected token ids from 0 to");
    }
    CHECK(session.ids().empty());
    const Result filled = session.generate("The lamp", {.max_tokens = 1000});
    CHECK((filled.finish == Finish::context || filled.finish == Finish::end));
  }

  TEST_CASE("calls that a session's state does not allow") {
    Model model = opened({.sessions = 2});
    Session session = model.session();
    const std::vector<int32_t> one = {5};
    has(refusal([&] { (void)session.generate(std::span<const int32_t>()); }), "expected a prompt");
    has(refusal([&] { (void)session.log_probs(one); }), "expected a text before the tokens");
    has(refusal([&] { session.save("x"); }), "expected a text to save");
    has(refusal([&] { session.rewind(1); }), "expected 0 to 0 tokens, found 1");
    has(refusal([&] { (void)session.generate("x", {.max_tokens = 0}); }), "expected at least 1");
    has(refusal([&] { (void)session.generate("x", {.temperature = -1}); }), "temperature");
    session.append("The lamp");
    has(refusal([&] { (void)session.chat("x"); }), "a text that is no chat");
    const test::TemporaryFolder folder;
    has(refusal([&] { (void)model.restore(folder / "none"); }), "none");
  }
}
