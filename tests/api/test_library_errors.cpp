#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <optional>
#include <thread>

#include "error_text.h"
#include "source_dir.h"
#include "tandem/tandem.h"
#include "temporary_folder.h"
#include "tensor/cuda.h"

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
    has(refusal([] { opened({.sessions = 0}); }), "expected 1 to 4096, found 0");
    has(refusal([] { opened({.set = {"spec.fastest=true"}}); }), "supported only by the tools");
    has(refusal([] { opened({.set = {"sampling.top_k=3"}}); }),
        "has no effect here / set Sampling");
    has(refusal([] { opened({.set = {"run={threads: 1, seed: 3}"}}); }),
        "run.seed has no effect here");
    has(refusal([] { opened({.cache = "full", .set = {"cache=hybrid"}}); }),
        "cache has no effect here / set ModelOptions::cache");
    has(refusal([] {
          opened({.cache = {std::make_shared<One>(0), "{recent: 64}"}});
        }),
        "a policy of the program does not use 'recent'");
    CHECK(opened({.cache = {std::make_shared<One>(0), "{dense_layers: [0]}"}}).context() == 128);
    has(refusal([] { opened({.set = {"run.batch=7"}}); }), "set ModelOptions::sessions");
    has(refusal([] { opened({.cache = "full", .set = {"cache.kind=hybrid"}}); }),
        "set ModelOptions::cache");
    has(refusal([] {
          opened({.cache = {std::make_shared<One>(0), "hybrid"}});
        }),
        "does not use 'kind'");
    has(refusal([] { (void)Cache(std::shared_ptr<One>()); }), "found a null pointer");
    if (cuda::device_count() == 0)
      CHECK(kind_of([] { (void)Model::open(folder(), {.device = "cuda"}); }) == ErrorKind::device);
    has(refusal([] { (void)Model::open(folder(), {.device = "cuda:0,1"}); }),
        "expected one device");
  }

  TEST_CASE("a policy that chooses what is not there, or nothing, or twice") {
    const auto text_with = [](int offset) {
      return refusal([&] {
        Model model = opened({.cache = {std::make_shared<One>(offset)}});
        (void)model.session().generate("The lamp was", {.max_tokens = 4});
      });
    };
    has(text_with(1), "policy one: layer 0, head ");
    has(text_with(1), "expected at least one of the tokens 0 to");
    has(text_with(-200), "found token -");
    has(text_with(0), "twice");
    has(text_with(-1000), "found no token");
  }

  TEST_CASE("a session whose model is gone, and one that moved away") {
    std::optional<Model> model = opened();
    Session session = model->session();
    session.append("The lamp");
    model.reset();
    has(refusal([&] { (void)session.generate("was"); }), "its model is gone");
    has(refusal([&] { (void)session.ids(); }), "its model is gone");
    Session other = std::move(session);
    has(refusal([&] { (void)session.ids(); }), "moved to another object");  // NOLINT: moved from
    Model one = opened();
    const Model two = std::move(one);
    has(refusal([&] { (void)one.session(); }), "moved to another object");  // NOLINT: moved from
    has(refusal([&] { (void)one.encode("x"); }), "moved to another object");
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
    has(by_callback, "a callback or policy cannot use the model");
    has(by_other, "a callback or policy cannot use the model");
    session.append("x");  // and both go on
    other.append("x");
  }

  TEST_CASE("exceptions of a callback reach the caller, and the session goes on where it was") {
    Model model = opened({.sessions = 2, .set = {"model.compute=f32"}});
    const std::vector<int32_t> prompt = model.encode("The lamp was");
    const std::vector<int32_t> wanted = model.session().generate(prompt, {.max_tokens = 9}).ids;
    for (const int last : {1, 2, 4}) {
      CAPTURE(last);
      Session session = model.session();
      int n = 0;
      const auto throws = [&](const Token&) -> bool {
        if (++n == last) throw 7;
        return true;
      };
      CHECK_THROWS_AS(session.generate(prompt, {.max_tokens = 9}, throws), int);
      const std::vector<int32_t> ids = session.ids();
      REQUIRE(ids.size() >= prompt.size() + static_cast<size_t>(last));
      std::vector<int32_t> all(ids.begin() + std::ssize(prompt), ids.end());
      const int left = 9 - static_cast<int>(all.size());
      const std::vector<int32_t> rest =
          session.generate(std::span<const int32_t>(), {.max_tokens = left}).ids;
      all.insert(all.end(), rest.begin(), rest.end());
      CHECK(all == wanted);
      session.append(prompt);
      CHECK(session.read(prompt).rows == std::ssize(prompt));
    }
  }

  TEST_CASE("hooks of a policy that throw or use the model") {
    struct Hooks : Policy {
      std::string name() const override { return "hooks"; }
      void on_fork(int, int) override {
        if (throws) throw std::runtime_error("no fork");
      }
      void on_end(int) noexcept override {
        if (other != nullptr) message = refusal([&] { (void)other->ids(); });
      }
      void on_tokens(int, const Keys& keys) override {
        std::vector<float> key(1024);
        for (const auto& [layer, head, token] :
             {std::array{99, 0, 0}, {-1, 0, 0}, {0, 50, 0}, {0, 0, -1}, {0, 0, keys.n_tokens()}})
          if (has(refusal([&] { keys.read(layer, head, token, key.data()); }), "Keys::read"))
            ++refused;
      }
      void select(const Query& query, Selection& s) const override {
        std::vector<float> key(1024);
        if (query.layer == 1 && query.head == 0)
          for (const int token : {-1, query.position + 1, 1000000})
            has(refusal([&] { query.keys.read(1, 0, token, key.data()); }), "Keys::read");
        for (int t = 0; t <= query.position; ++t) s.tokens.push_back(t);
        if (weight != 0) s.log_weights.assign(s.tokens.size(), weight);
      }
      bool throws = false;
      float weight = 0;
      int refused = 0;
      Session* other = nullptr;
      std::string message;
    };
    const auto hooks = std::make_shared<Hooks>();
    Model model = opened({.cache = hooks, .sessions = 2, .set = {"run.threads=1"}});
    Session session = model.session();
    (void)session.generate("The lamp was", {.max_tokens = 3});
    CHECK(hooks->refused > 0);
    hooks->throws = true;
    for (int i = 0; i < 3; ++i) CHECK_THROWS_AS((void)session.fork(), std::runtime_error);
    hooks->throws = false;
    { const Session copy = session.fork(); }  // none was lost
    hooks->weight = std::numeric_limits<float>::quiet_NaN();
    has(refusal([&] { (void)session.generate("x", {.max_tokens = 3}); }), "found weight nan");
    hooks->weight = 0;
    hooks->other = &session;
    {
      Session ends = model.session();
      ends.append("The fog");
    }
    hooks->other = nullptr;
    has(hooks->message, "a callback or policy cannot use the model");
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
      has(refusal([&] { session.append(one); }), "expected ids from 0 to");
    }
    CHECK(session.ids().empty());
    const Result filled = session.generate("The lamp", {.max_tokens = 1000});
    CHECK(filled.finish == Finish::context);
    CHECK(session.ids().size() == 128);
  }

  TEST_CASE("an answer ends at the end-of-text token") {
    Model model = opened({.context = 512});
    int ended = 0;
    for (int seed = 0; seed < 8; ++seed) {
      Session session = model.session();
      const Result answer =
          session.chat("Hello", {.max_tokens = 400, .temperature = 1, .seed = seed});
      ended += answer.finish == Finish::end ? 1 : 0;
    }
    CHECK(ended > 0);
  }

  TEST_CASE("a draft leaves the context as it is") {
    const Sampling greedy{.max_tokens = 1000, .temperature = 0};
    Model plain = opened();
    const Result wanted = plain.session().generate("The lamp", greedy);
    for (const Draft& draft : {Draft("ngram"), Draft("{kind: model, path: " + folder() + "}")}) {
      Model model = opened({.draft = draft, .set = {"spec.force=true"}});
      CHECK(model.context() == 128);
      Session session = model.session();
      const Result filled = session.generate("The lamp", greedy);
      CHECK(filled.finish == Finish::context);
      CHECK(session.ids().size() == 128);
      CHECK(filled.ids == wanted.ids);
    }
  }

  TEST_CASE("a policy that throws after a read leaves the session as it was") {
    struct Fails : One {
      Fails() : One(0) {}
      void select(const Query& query, Selection& s) const override { s.tokens = {query.position}; }
      void on_tokens(int, const Keys& keys) override {
        if (keys.n_tokens() > 6) throw std::runtime_error("enough");
      }
    };
    Model model = opened({.cache = {std::make_shared<Fails>()}});
    Session session = model.session();
    const std::vector<int32_t> ids = {5, 6, 7, 8};
    session.append(ids);
    CHECK_THROWS_WITH(session.read(ids), "enough");
    CHECK(session.ids() == ids);
    const std::vector<int32_t> one = {9};
    CHECK(session.read(one).values.size() == static_cast<size_t>(model.vocab()));
    CHECK(session.ids().size() == 5);
  }

  TEST_CASE("exceptions of a receiver of tokens pass through") {
    Model model = opened();
    const auto fails = [](const Token&) -> bool {
      throw Error(ErrorKind::interrupted, "receiver", "enough");
    };
    Session session = model.session();
    has(refusal([&] { (void)session.generate("The lamp", {}, fails); }), "receiver: enough");
    CHECK_FALSE(session.ids().empty());
    session.rewind(0);
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
    has(refusal([&] { (void)session.chat("x", {.max_tokens = 0}); }), "expected at least 1");
    has(refusal([&] { (void)model.decode(std::vector<int32_t>{-1}); }), "expected ids from 0");
    has(refusal([&] { (void)session.generate("x", {.temperature = -1}); }), "temperature");
    session.append("The lamp");
    has(refusal([&] { (void)session.chat("x"); }), "a text that is no chat");
    const test::TemporaryFolder folder;
    has(refusal([&] { (void)model.restore(folder / "none"); }), "none");
  }
}
