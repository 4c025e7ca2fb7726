#include <doctest/doctest.h>

#include <numeric>

#include "eval/eval_testing.h"

using namespace eval_testing;
using namespace tandem::eval;
using tandem::DType;

namespace {

constexpr int kLength = 500;

std::unique_ptr<Engine> engine_of(const std::vector<NamedPolicy>& policies, int group = 1) {
  return make_engine("tiny-2m", case_engine_spec(policies, DType::f32, 512, kLength, group));
}

const CaseSpec kEverything{{Protocol::dense, Protocol::sparse}, {Score::forced, Score::generated}};

std::vector<Outcome> run_case(Engine& engine, const Case& c, const CaseSpec& spec) {
  return run_cases(engine, {&c, 1}, spec)[0];
}

std::vector<int> every_layer() {
  std::vector<int> layers(
      static_cast<size_t>(tandem::decode::open_model(model_path("tiny-2m"), 0).config.n_layers));
  std::iota(layers.begin(), layers.end(), 0);
  return layers;
}

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

  TEST_CASE("cases that run together are judged as each alone") {
    const std::vector<NamedPolicy> policies = {full(),         streaming(4, 200), sparse("lsh"),
                                               sparse("topk"), sparse("quest"),   sparse("hybrid")};
    constexpr int kGroup = 5;
    const auto alone = engine_of(policies), together = engine_of(policies, kGroup);
    const CaseGenerator make(tokenizer(), {}, 1);
    for (const Task task : {Task::needle8, Task::kv, Task::vt}) {
      std::vector<Case> cases;
      for (uint32_t i = 0; i < kGroup; ++i) cases.push_back(make.make(task, kLength, i));
      const auto outcomes = run_cases(*together, cases, kEverything);
      REQUIRE(outcomes.size() == kGroup);
      for (size_t i = 0; i < kGroup; ++i) {
        const auto own = run_case(*alone, cases[i], kEverything);
        REQUIRE(own.size() == outcomes[i].size());
        for (size_t j = 0; j < own.size(); ++j) {
          CAPTURE(own[j].policy);
          CHECK(own[j].policy == outcomes[i][j].policy);
          CHECK(own[j].correct == outcomes[i][j].correct);
          CHECK(own[j].reads.has_value() == outcomes[i][j].reads.has_value());
          if (own[j].policy > 1 || !own[j].reads) continue;
          CHECK(own[j].reads->bytes == outcomes[i][j].reads->bytes);
          CHECK(own[j].reads->fixed == outcomes[i][j].reads->fixed);
        }
      }
    }
  }

  TEST_CASE("reads: full attention reads all, a window its keys, top-k its share") {
    const auto engine = engine_of({full(), streaming(4, 96), sparse("topk")});
    const CaseGenerator make(tokenizer(), {}, 1);
    const Case c = make.make(Task::needle1, kLength, 0);
    const auto outcomes = run_case(*engine, c, {{Protocol::sparse}, {Score::forced}});
    const auto& config = engine->config();
    const double token =
        2.0 * config.n_layers * config.n_kv_heads * config.head_dim * sizeof(float);
    const auto rows = static_cast<double>(c.question.size() + c.answer.size() - 1);
    const double visible = static_cast<double>(c.haystack.size()) + (rows + 1) / 2;  // mean of rows
    CHECK(outcomes[0].reads->selected == 1);
    CHECK(outcomes[0].reads->fixed == 0);
    CHECK(outcomes[0].reads->bytes == doctest::Approx(token * visible));
    CHECK(outcomes[1].reads->selected == 0);
    CHECK(outcomes[1].reads->fixed == doctest::Approx(100 / visible).epsilon(1e-3));
    CHECK(outcomes[1].reads->bytes == doctest::Approx(token * 100));
    // 2 % of each row's keys, rounded down, for each query head; layer 0 reads all.
    CHECK(outcomes[2].reads->selected > 0.017);
    CHECK(outcomes[2].reads->selected <= 0.02);
    CHECK(outcomes[2].reads->fixed == 0);
    const double dense = token / config.n_layers,
                 chosen = dense * config.n_heads / config.n_kv_heads * outcomes[2].reads->selected;
    CHECK(outcomes[2].reads->bytes > visible * (dense + (config.n_layers - 1) * chosen));
  }

  TEST_CASE("a policy whose every layer is dense reads all") {
    const auto engine = engine_of({full(), sparse("topk", every_layer())});
    const CaseGenerator make(tokenizer(), {}, 1);
    const Case c = make.make(Task::needle1, kLength, 0);
    const auto outcomes = run_case(*engine, c, {{Protocol::sparse}, {Score::forced}});
    CHECK(outcomes[1].reads->selected == 1);
    CHECK(outcomes[1].reads->bytes == doctest::Approx(outcomes[0].reads->bytes));
  }

  TEST_CASE("a haystack is a prompt's end only where the question goes through the policies") {
    // Quest indexes whole pages at the end of a prompt; asked densely, haystack and question are
    // one.
    const auto both = engine_of({full(), sparse("quest")}),
               dense = engine_of({full(), sparse("quest")});
    const CaseGenerator make(tokenizer(), {}, 1);
    const Case c = make.make(Task::kv, kLength, 0);
    const auto a = run_case(*both, c, {{Protocol::sparse, Protocol::dense}, {Score::forced}});
    const auto b = run_case(*dense, c, {{Protocol::dense}, {Score::forced}});
    REQUIRE(a.size() == 4);
    REQUIRE(b.size() == 2);
    CHECK(a[3].reads->fixed == b[1].reads->fixed);
    CHECK(a[3].reads->selected == b[1].reads->selected);
    CHECK(a[1].reads->fixed > b[1].reads->fixed);  // the question's rows were never indexed
  }
}
