#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/eval_testing.h"
#include "eval/own_answers.h"
#include "temporary_folder.h"

using namespace eval_testing;
using namespace tandem::eval;
using tandem::DType;
using tandem::Tensor;

namespace {

constexpr int kLength = 500;
const std::vector<Protocol> kBoth = {Protocol::dense, Protocol::sparse};

std::unique_ptr<Engine> engine_for(const std::vector<NamedPolicy>& policies, int group) {
  return make_engine("tiny-2m", case_engine_spec(policies, DType::f32, 512, kLength + 64, group));
}

OwnTask read(const std::string& lines) {
  const tandem::test::TemporaryFolder folder;
  return read_own_task({}, folder.write("own.jsonl", lines).string(),
                       tandem::decode::open_model(model_path("tiny-2m"), 0), 0, 1000);
}

OwnSpec spec_of(const OwnTask& task) { return {.protocols = kBoth, .max_tokens = task.max_tokens}; }

const Outcome& outcome(const std::vector<Outcome>& list, int policy, Protocol protocol,
                       Score score) {
  const auto found = std::ranges::find_if(list, [&](const Outcome& o) {
    return o.policy == policy && o.protocol == protocol && o.score == score;
  });
  REQUIRE(found != list.end());
  return *found;
}

/// The log-probability of the last `n` ids after the others, from one dense forward.
double plain_logprob(Engine& engine, const Ids& ids, size_t n) {
  double sum = 0;
  const int slot = engine.cache().create(engine.cache().all_readers());
  const tandem::decode::SeqTokens part[] = {{slot, ids, true}};
  engine.forward_all(tandem::kv::Phase::prefill, part, [&](int first, const Tensor& logits) {
    for (int64_t r = 0; r < logits.rows(); ++r) {
      const size_t next = static_cast<size_t>(first) + static_cast<size_t>(r) + 1;
      if (next < ids.size() - n || next >= ids.size()) continue;
      const float* row = logits.slice(r, 1).as<float>();
      double total = 0;
      for (int v = 0; v < engine.config().vocab_size; ++v) total += std::exp(double{row[v]});
      sum += double{row[ids[next]]} - std::log(total);
    }
  });
  engine.cache().release(slot);
  return sum;
}

const std::string kFacts =
    "It was late, and the lamps were lit. The special magic value for amber-anchor is 4827163. The "
    "old boat lay by the pier. The special magic value for calm-candle is 9035718. Nobody spoke.";

}  // namespace

TEST_SUITE("eval/own_answers") {
  TEST_CASE("the built-in questions from a file are judged as the built-in ones") {
    const std::vector<NamedPolicy> policies = {full(), streaming(4, 64), streaming(4, 200),
                                               sparse("quest"), sparse("hybrid")};
    constexpr int kGroup = 6;
    const CaseGenerator make(tokenizer(), {}, 1);
    const auto engine = engine_for(policies, kGroup);
    int n_right = 0, n_wrong = 0;
    for (const Task task : {Task::needle1, Task::kv}) {
      std::vector<Case> cases;
      std::string lines;
      for (uint32_t i = 0; i < kGroup; ++i) {
        cases.push_back(make.make(task, kLength, i));
        const Case& c = cases.back();
        lines += nlohmann::json{{"ids", c.haystack},
                                {"question", tokenizer().decode(c.question)},
                                {"answer", c.answer_text}}
                     .dump() +
                 "\n";
      }
      OwnTask own = read(lines);
      std::ranges::sort(own.questions, {}, &OwnQuestion::record);
      const auto expected = run_cases(*engine, cases, {kBoth, {Score::generated}});
      const auto found = answer_own(*engine, own.questions, spec_of(own));
      for (size_t i = 0; i < cases.size(); ++i) {
        CHECK(own.questions[i].question == cases[i].question);
        REQUIRE(found[i].size() == policies.size() * 2);
        for (const Outcome& o : expected[i]) {
          const Outcome& same = outcome(found[i], o.policy, o.protocol, Score::generated);
          CAPTURE(same.text);
          // The built-in questions want the space in front, too.
          CHECK(same.text.starts_with(cases[i].answer_text) == o.correct);
          const bool without = (' ' + same.text).starts_with(cases[i].answer_text);
          CHECK(same.correct == (o.correct || without));
          (o.correct ? n_right : n_wrong) += 1;
        }
      }
    }
    CHECK(n_right > 20);
    CHECK(n_wrong > 20);
  }

  TEST_CASE("choices have the log-probabilities of a plain forward, in sum and over bytes") {
    const OwnTask task =
        read(nlohmann::json{{"prompt", kFacts + "\n\nQuestion: What is the special magic value for "
                                                "calm-candle?\nAnswer: The special magic value for "
                                                "calm-candle is"},
                            {"choices", {"4827163", "9035718", "a boat", "9"}},
                            {"answer", 1}}
                 .dump() +
             "\n" +
             nlohmann::json{{"prompt", kFacts},
                            {"question", " The old boat"},
                            {"choices", {"Z", "lay by the pier, and the lamps were lit."}},
                            {"answer", 1}}
                 .dump() +
             "\n" +
             nlohmann::json{{"prompt", kFacts},
                            {"question", " The old boat"},
                            {"choices", {"4827163", "boat"}},
                            {"answer", 1}}
                 .dump() +
             "\n" +
             nlohmann::json{{"prompt", "Once upon"}, {"choices", {"a", "the"}}, {"answer", "the"}}
                 .dump());
    const auto engine = engine_for({full(), streaming(0, kLength), streaming(0, 8)}, 4);
    const auto found = answer_own(*engine, task.questions, spec_of(task));
    int n_differ = 0, n_by_token = 0;
    for (size_t i = 0; i < task.questions.size(); ++i) {
      const OwnQuestion& q = task.questions[i];
      CAPTURE(q.record);
      std::vector<double> wanted, by_byte, by_token;
      for (size_t c = 0; c < q.choices.size(); ++c) {
        Ids ids = q.prompt;
        ids.insert(ids.end(), q.question.begin(), q.question.end());
        ids.insert(ids.end(), q.choices[c].begin(), q.choices[c].end());
        wanted.push_back(plain_logprob(*engine, ids, q.choices[c].size()));
        by_byte.push_back(wanted[c] / static_cast<double>(q.choice_bytes[c]));
        by_token.push_back(wanted[c] / static_cast<double>(q.choices[c].size()));
      }
      const auto best = [&](const std::vector<double>& of) {
        return static_cast<size_t>(std::ranges::max_element(of) - of.begin()) == q.right;
      };
      n_differ += best(wanted) != best(by_byte) ? 1 : 0;
      n_by_token += best(by_token) != best(by_byte) ? 1 : 0;
      for (const Protocol protocol : kBoth)
        for (const int policy : {0, 1}) {  // a window of all tokens reads all
          const Outcome& acc = outcome(found[i], policy, protocol, Score::acc);
          REQUIRE(acc.logprobs.size() == wanted.size());
          for (size_t c = 0; c < wanted.size(); ++c)
            CHECK(acc.logprobs[c] == doctest::Approx(wanted[c]).epsilon(1e-4));
          CHECK(acc.correct == best(wanted));
          CHECK(outcome(found[i], policy, protocol, Score::acc_norm).correct == best(by_byte));
        }
      if (q.prompt.size() < 8) continue;
      // The question is read through the policy, whose window is shorter than the prompt.
      CHECK(outcome(found[i], 2, Protocol::sparse, Score::acc).logprobs !=
            outcome(found[i], 0, Protocol::sparse, Score::acc).logprobs);
      if (q.choices[0].size() == 1)
        CHECK(outcome(found[i], 2, Protocol::dense, Score::acc).logprobs[0] ==
              outcome(found[i], 0, Protocol::dense, Score::acc).logprobs[0]);
    }
    CHECK(n_differ == 1);    // the sentence is likelier by the byte, not in sum
    CHECK(n_by_token == 1);  // digits are likelier by the token, which has fewer bytes
  }

  TEST_CASE("questions that run together are judged as each alone, and leave nothing behind") {
    const std::vector<NamedPolicy> policies = {full(), streaming(4, 32), sparse("hybrid")};
    const auto together = engine_for(policies, 4), alone = engine_for(policies, 1);
    // Longer questions than one forward takes of all.
    std::string filler;
    while (tokenizer().encode(filler).size() < 160) filler += " The old boat lay by the pier.";
    const int before = together->cache().store().free_pages();
    for (const bool has_choices : {false, true}) {
      std::string lines;
      for (const char* key : {"calm-candle", "amber-anchor"})
        for (const char* lead : {"\nAnswer:", " It was late.\nAnswer: it is"}) {
          nlohmann::json line = {
              {"prompt", kFacts},
              {"question", fmt::format("{}\n\nQuestion: {}?{}", filler, key, lead)},
              {"answer", "9035718"}};
          if (has_choices) line["choices"] = {"4827163", "9035718"};
          lines += line.dump() + "\n";
        }
      const OwnTask task = read(lines);
      const auto found = answer_own(*together, task.questions, spec_of(task));
      for (size_t i = 0; i < task.questions.size(); ++i) {
        const auto own = answer_own(*alone, {&task.questions[i], 1}, spec_of(task))[0];
        REQUIRE(own.size() == found[i].size());
        CHECK(own.size() == policies.size() * 2 * (has_choices ? 2 : 1));
        for (size_t j = 0; j < own.size(); ++j) {
          CHECK(own[j].text == found[i][j].text);
          CHECK(own[j].correct == found[i][j].correct);
          CHECK(own[j].score == found[i][j].score);
          REQUIRE(own[j].logprobs.size() == found[i][j].logprobs.size());
          for (size_t c = 0; c < own[j].logprobs.size(); ++c)
            CHECK(own[j].logprobs[c] == doctest::Approx(found[i][j].logprobs[c]).epsilon(1e-4));
        }
      }
    }
    CHECK(together->cache().store().free_pages() == before);
  }

  TEST_CASE("a text ends at the limit") {
    OwnTask task = read(nlohmann::json{{"prompt", kFacts}, {"answer", "x"}}.dump());
    const auto engine = engine_for({full()}, 1);
    const auto text = [&](int n) {
      OwnSpec spec = spec_of(task);
      spec.max_tokens = n;
      return outcome(answer_own(*engine, task.questions, spec)[0], 0, Protocol::dense,
                     Score::generated)
          .text;
    };
    CHECK(tokenizer().encode(text(7), {.add_bos = false}).size() <= 7);
    CHECK(text(20).starts_with(text(7)));
    CHECK(text(20) != text(7));
  }
}
