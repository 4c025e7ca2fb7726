#include <doctest/doctest.h>

#include "eval/eval_testing.h"

using namespace eval_testing;
using namespace tandem::eval;
using tandem::DType;

namespace {

constexpr int kLength = 500;

std::unique_ptr<Engine> engine_of(const std::vector<NamedPolicy>& policies) {
  return make_engine("tiny-2m", case_engine_spec(policies, DType::f32, 512, kLength));
}

const CaseSpec kEverything{{Protocol::dense, Protocol::sparse}, {Score::forced, Score::generated}};

/// How many outcomes of a policy and protocol are correct.
int correct(const std::vector<Outcome>& outcomes, int policy, Protocol protocol) {
  int n = 0;
  for (const Outcome& o : outcomes)
    n += o.policy == policy && o.protocol == protocol && o.correct ? 1 : 0;
  return n;
}

}  // namespace

TEST_SUITE("eval/protocols") {
  TEST_CASE(
      "full attention finds the needle, a short window does not, a window of everything does") {
    const auto engine = engine_of({full(), streaming(4, 64), streaming(0, kLength)});
    const CaseGenerator make(tokenizer(), {}, 1);
    int seen_far = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      const Case c = make.make(Task::needle1, kLength, i);
      const auto outcomes = run_case(*engine, c, kEverything);
      REQUIRE(outcomes.size() == 3 * 2 * 2);
      for (const Protocol protocol : {Protocol::dense, Protocol::sparse}) {
        CHECK(correct(outcomes, 0, protocol) == 2);  // forced and generated
        CHECK(correct(outcomes, 2, protocol) == 2);
      }
      // Only needles that the window cannot reach prove anything.
      const std::string prompt = tokenizer().decode(c.haystack, true);
      if (prompt.find("special magic") > prompt.size() * 3 / 5) continue;
      ++seen_far;
      CHECK(correct(outcomes, 1, Protocol::sparse) == 0);
      CHECK(correct(outcomes, 1, Protocol::dense) == 0);
    }
    CHECK(seen_far > 0);
  }

  TEST_CASE(
      "the dense question's first token is predicted densely, later ones through the policy") {
    const auto engine = engine_of({full(), streaming(0, 16)});
    const CaseGenerator make(tokenizer(), {}, 1);
    Case c = make.make(Task::needle1, kLength, 0);
    c.answer.resize(1);
    const auto outcomes = run_case(*engine, c, {kEverything.protocols, {Score::forced}});
    CHECK(correct(outcomes, 0, Protocol::dense) == 1);
    CHECK(correct(outcomes, 1, Protocol::dense) == 1);
  }

  TEST_CASE("a wrong answer is found wrong wherever it differs") {
    const auto engine = engine_of({full()});
    const Case right = CaseGenerator(tokenizer(), {}, 1).make(Task::needle1, kLength, 0);
    for (size_t i = 0; i < right.answer.size(); ++i) {
      Case c = right;
      c.answer[i] = c.answer[i] == 500 ? 501 : 500;
      const auto outcomes = run_case(*engine, c, kEverything);
      CHECK(correct(outcomes, 0, Protocol::dense) == 0);
      CHECK(correct(outcomes, 0, Protocol::sparse) == 0);
    }
  }

  TEST_CASE("no sequence is left behind") {
    const auto engine = engine_of({full(), streaming(4, 64)});
    const int before = engine->cache().store().free_pages();
    const CaseGenerator make(tokenizer(), {}, 1);
    for (uint32_t i = 0; i < 3; ++i)
      run_case(*engine, make.make(Task::needle1, kLength, i), kEverything);
    CHECK(engine->cache().store().free_pages() == before);
  }

  TEST_CASE("shares of keys read") {
    const auto config = tandem::decode::open_model(model_path("tiny-2m"), 0).config;
    CHECK(keys_read_share(full().cache, config, 1000) == 1.0);
    CHECK(keys_read_share(streaming(4, 96).cache, config, 1000) == doctest::Approx(0.1));
  }
}
