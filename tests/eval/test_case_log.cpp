#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "eval/case_log.h"
#include "eval/report.h"
#include "io/json.h"
#include "temporary_folder.h"

using namespace tandem::eval;
using tandem::Error;
using tandem::ErrorKind;
using tandem::io::Json;

namespace {

const std::vector<std::string> kNames = {"full", "near"};

Json recipe(const std::string& hash, int cases) {
  return {{"sha256", hash},
          {"effective",
           {{"eval", {{"cases", cases}, {"policies", {{{"name", "near"}}}}}},
            {"run", {{"threads", cases}}},
            {"output", {{"path", hash}}}}}};
}

struct TemporaryLog {
  tandem::test::TemporaryFolder folder;
  std::filesystem::path path;

  explicit TemporaryLog(const std::string& text) : path(folder.write("log.jsonl", text)) {}
  CaseLog read(const Json& r) const {
    Settings s;
    s.tasks = {"vt", "kv", "boolq", "perplexity", "attention"};
    s.lengths = {{4096}};
    s.cases = 3;
    s.protocols = {Protocol::dense};
    return read_log(path, r, s, kNames);
  }
};

CaseRecord record(Task task, int index, bool full, bool near) {
  return {task,
          4096,
          index,
          {{0, Protocol::dense, Score::forced, full, Reads{1, 0, 1000}},
           {1, Protocol::dense, Score::forced, near, Reads{0.25, 0.125, 300.0 + index}}}};
}

std::string failure(const std::string& text, const Json& r, ErrorKind kind) {
  try {
    TemporaryLog(text).read(r);
  } catch (const Error& e) {
    CHECK(e.kind() == kind);
    return e.what();
  }
  return "nothing";
}

}  // namespace

TEST_SUITE("eval/case_log") {
  TEST_CASE("what was written is read") {
    TextQuality full, near;
    full = {.n_tokens = 10, .nll = {3.0, 0.25}, .ppl = {20.0, {}}, .nll_difference = {}, .kl = {}};
    near = full;
    near.nll_difference = {0.5, 0.125};
    near.kl.mean = 0.75;
    near.kl_p99 = 2.0;
    near.top1_agree = 0.875;
    const AttentionQuality compared{.n_queries = 12,
                                    .error = {0.5, 0.25},
                                    .lse_error = {0.125, {}},
                                    .ranking_loss = Estimate{0.75, 0.5},
                                    .visible = 100,
                                    .selected = 8,
                                    .exact = 4,
                                    .fixed = 16,
                                    .index_bytes = 32,
                                    .key_bytes = 64};
    const TemporaryLog file(
        header_line(recipe("a", 3), "cuda:1") +
        case_line(record(Task::vt, 0, true, false), kNames) + text_line({full, near}, kNames) +
        attention_line({{}, compared}, kNames) +
        answer_line({.set = AnswerSet::boolq,
                     .record = 5,
                     .answer = "true",
                     .answers = {{.policy = 0}, {.policy = 1, .extracted = "false"}}},
                    kNames) +
        case_line(record(Task::kv, 2, true, true), kNames));
    const CaseLog log = file.read(recipe("a", 3));
    CHECK(log.device == "cuda:1");
    REQUIRE(log.cases.size() == 2);
    CHECK(log.cases[0].task == Task::vt);
    CHECK(log.cases[1].index == 2);
    CHECK(log.cases[0].length == 4096);
    REQUIRE(log.cases[0].outcomes.size() == 2);
    CHECK(log.cases[0].outcomes[0].correct);
    CHECK(log.cases[0].outcomes[1].policy == 1);
    CHECK(!log.cases[0].outcomes[1].correct);
    REQUIRE(log.cases[1].outcomes[1].reads);
    CHECK(log.cases[1].outcomes[1].reads->selected == 0.25);
    CHECK(log.cases[1].outcomes[1].reads->fixed == 0.125);
    CHECK(log.cases[1].outcomes[1].reads->bytes == 302);
    REQUIRE(log.answers.size() == 1);
    CHECK(log.answers[0].record == 5);
    CHECK(*log.answers[0].answers[1].extracted == "false");
    REQUIRE(log.text);
    CHECK((*log.text)[0].nll.stderr_ == 0.25);
    CHECK(!(*log.text)[0].ppl.stderr_);
    CHECK((*log.text)[1].nll_difference.mean == 0.5);
    CHECK((*log.text)[1].top1_agree == 0.875);
    REQUIRE(log.attention);
    REQUIRE(log.attention->size() == 2);
    const AttentionQuality& read = (*log.attention)[1];
    CHECK(attention_json(read) == attention_json(compared));
    CHECK(!read.lse_error.stderr_);
    CHECK(log.whole_bytes == std::filesystem::file_size(file.path));
  }

  TEST_CASE("a torn last line is left out") {
    const std::string whole =
        header_line(recipe("a", 3)) + case_line(record(Task::vt, 0, true, false), kNames);
    const TemporaryLog file(whole + "{\"task\":\"v");
    const CaseLog log = file.read(recipe("a", 3));
    CHECK(log.cases.size() == 1);
    CHECK(log.whole_bytes == whole.size());
  }

  TEST_CASE("logs of versions that counted no reads are read without") {
    const std::string old =
        "{\"task\":\"vt\",\"length\":4096,\"case\":0,\"correct\":{\"full\":{\"dense\":{\"forced\":"
        "true}},\"near\":{\"dense\":{\"forced\":true}}}}";
    const CaseLog log = TemporaryLog(header_line(recipe("a", 3)) + old + "\n").read(recipe("a", 3));
    REQUIRE(log.cases.size() == 1);
    CHECK(log.cases[0].outcomes[0].correct);
    CHECK(!log.cases[0].outcomes[0].reads);
  }

  TEST_CASE("a case without rows logs no reads") {
    CaseRecord r = record(Task::vt, 0, false, false);
    for (Outcome& o : r.outcomes) o.reads.reset();
    const CaseLog log =
        TemporaryLog(header_line(recipe("a", 3)) + case_line(r, kNames)).read(recipe("a", 3));
    CHECK(!log.cases[0].outcomes[0].reads);
  }

  TEST_CASE("another recipe is refused by the keys that differ") {
    const std::string message =
        failure(header_line(recipe("a", 3)), recipe("b", 4), ErrorKind::recipe);
    CHECK(message.find("keys that differ: eval.cases") != std::string::npos);
    CHECK(message.find("threads") == std::string::npos);
    CHECK(message.find("output") == std::string::npos);
  }

  TEST_CASE("malformed logs are refused") {
    const Json r = recipe("a", 3);
    const std::string header = header_line(r);
    for (const std::string text :
         {"{\"task\":", "{}\n", "[]\n", "{\"schema\":3}\n", "{\"schema\":\"tandem.eval/1\"}\n"})
      CHECK(failure(text, r, ErrorKind::input) != "nothing");
    for (const std::string line :
         {"{}", "{\"task\":\"xx\",\"length\":1,\"case\":0,\"correct\":{}}",
          "{\"task\":\"vt\",\"length\":0,\"case\":0,\"correct\":{}}",
          "{\"task\":\"vt\",\"length\":1,\"case\":0,\"correct\":{\"near\":{\"dense\":{\"forced\":1}"
          "}}}",
          "{\"task\":\"vt\",\"length\":1,\"case\":0,\"correct\":{\"far\":{\"dense\":{\"forced\":"
          "true}}}}",
          "{\"task\":\"vt\",\"length\":1,\"case\":0,\"correct\":{\"near\":7}}",
          "{\"task\":\"vt\",\"length\":1,\"case\":0,\"correct\":{},\"reads\":7}",
          "{\"task\":\"vt\",\"length\":1,\"case\":0,\"correct\":{},\"reads\":{\"near\":{\"dense\":{"
          "\"forced\":{\"selected\":1,\"fixed\":0,\"bytes\":1}}}}}",
          "{\"task\":\"vt\",\"length\":1,\"case\":0,\"correct\":{\"near\":{\"dense\":{\"forced\":"
          "true}}},"
          "\"reads\":{\"near\":{\"dense\":{\"forced\":{\"selected\":1}}}}}",
          "{\"task\":\"boolq\",\"record\":1,\"answer\":\"true\",\"policies\":{\"full\":{}}}",
          "{\"task\":\"perplexity\",\"policies\":{\"full\":{}}}",
          "{\"task\":\"attention\",\"policies\":{\"near\":{\"n_queries\":1}}}"})
      CHECK(failure(header + line + "\n", r, ErrorKind::input) != "nothing");
  }
}

TEST_SUITE("eval/case_log of killed runs and of hands") {
  TEST_CASE("before its first line is whole, a log holds nothing") {
    const Json r = recipe("a", 3);
    for (const size_t n : {size_t{0}, size_t{1}, header_line(r).size() - 1}) {
      const CaseLog log = TemporaryLog(header_line(r).substr(0, n)).read(r);
      CHECK(log.whole_bytes == 0);
      CHECK(log.cases.empty());
    }
    CHECK(failure("my only notes", r, ErrorKind::input).find("does not begin a record") !=
          std::string::npos);
  }

  TEST_CASE("a case counts once, if it is the recipe's and judged in full") {
    const Json r = recipe("a", 3);
    const std::string first = case_line(record(Task::vt, 0, true, false), kNames),
                      start = header_line(r) + first;
    const CaseLog log =
        TemporaryLog(start + case_line(record(Task::vt, 1, true, true), kNames) + first).read(r);
    CHECK(log.cases.size() == 2);
    CHECK(log.n_repeated == 1);
    const auto refused = [&](const CaseRecord& last) {
      const std::string text = failure(start + case_line(last, kNames), r, ErrorKind::input);
      return text.substr(std::min(text.size(), text.find(".jsonl:") + 7));
    };
    CHECK(refused(record(Task::vt, 0, true, true)).starts_with("3: contradicts "));
    CHECK(refused(record(Task::vt, 3, true, true)) ==
          "3: case 3 of vt at 4096 tokens is not in the recipe");
    CHECK(refused(record(Task::cwe, 1, true, true)) ==
          "3: case 1 of cwe at 4096 tokens is not in the recipe");
    CaseRecord part = record(Task::vt, 1, true, true);
    part.length = 8192;
    CHECK(refused(part) == "3: case 1 of vt at 8192 tokens is not in the recipe");
    part.length = 4096;
    part.outcomes.pop_back();
    CHECK(refused(part) ==
          "3: case 1 of vt at 4096 tokens lacks an answer for policy 'near', protocol dense, score "
          "forced");
    const AnswerRecord answer{.set = AnswerSet::boolq,
                              .record = 5,
                              .answer = "true",
                              .answers = {{.policy = 0}, {.policy = 1}}};
    AnswerRecord other = answer;
    other.answers[1].text = "no";
    const std::string line = answer_line(answer, kNames);
    CHECK(TemporaryLog(start + line + line).read(r).answers.size() == 1);
    CHECK(failure(start + line + answer_line(other, kNames), r, ErrorKind::input)
              .find(":4: contradicts ") != std::string::npos);
  }
}

TEST_SUITE("eval/report") {
  TEST_CASE("rows count cases and pair differences") {
    Settings s;
    s.tasks = {"vt", "kv"};
    s.protocols = {Protocol::dense};
    s.policies = {{"near", {}}};
    const std::vector<CaseRecord> records = {
        record(Task::vt, 0, true, false), record(Task::vt, 1, true, true),
        record(Task::vt, 2, false, true), record(Task::vt, 3, true, false),
        record(Task::kv, 0, true, true)};
    const auto rows = summarize(s, records);
    REQUIRE(rows.size() == 6);  // vt, kv and their mean, for two policies
    CHECK(rows[0].mean == 0.75);
    CHECK(!rows[0].difference);
    CHECK(rows[0].reads->bytes == 1000);
    const ScoreRow& vt = rows[3];
    CHECK(vt.n_cases == 4);
    CHECK(vt.mean == 0.5);
    REQUIRE(vt.difference);
    CHECK(vt.difference->mean == -0.25);  // -1, 0, 1, -1
    CHECK(*vt.difference->stderr_ == doctest::Approx(std::sqrt(2.75 / 3 / 4)));
    CHECK(*vt.ratio == doctest::Approx(0.5 / 0.75));
    CHECK(vt.reads->bytes == 301.5);  // 300 .. 303
    CHECK(!vt.falls_behind);
    CHECK(rows[1].task == "kv");
    CHECK(!rows[4].difference->stderr_);
    const ScoreRow& mean = rows[5];
    CHECK(mean.task == "mean");
    CHECK(mean.n_cases == 5);
    CHECK(mean.mean == 0.75);  // of 0.5 and 1, however many cases each has
    CHECK(mean.difference->mean == -0.125);
    CHECK(*mean.ratio == doctest::Approx(0.75 / 0.875));
    CHECK(mean.reads->bytes == (301.5 + 300) / 2);
    const Json json = score_json(vt, {{"full", {}}, {"near", {}}});
    CHECK(json["policy"] == "near");
    CHECK(json["kind"] == "full");
    CHECK(json["difference"] == -0.25);
    CHECK(json["reads"]["bytes"] == 301.5);
    CHECK(json["falls_behind"] == false);
  }

  TEST_CASE("a policy that loses a task is marked, and the tables explain the mark") {
    Settings s;
    s.tasks = {"vt", "kv"};
    s.protocols = {Protocol::dense};
    s.policies = {{"near", {}}};
    std::vector<CaseRecord> records;
    for (int i = 0; i < 20; ++i) {
      records.push_back(record(Task::vt, i, true, i >= 6));  // 6 of 20 lost: significant
      records.push_back(record(Task::kv, i, true, i >= 2));  // 2 of 20 lost: not
    }
    const std::string text =
        score_tables(summarize(s, records), kNames, tandem::io::TableFormat::text);
    CHECK(text.find("4096 tokens, dense question, forced answers, 20 cases per task") == 0);
    CHECK(text.find("0.70*") != std::string::npos);
    CHECK(text.find("0.90*") == std::string::npos);
    CHECK(text.find("0.90") != std::string::npos);
    CHECK(text.find("*: below 95 % of full attention's") != std::string::npos);
    records.resize(4);
    CHECK(score_tables(summarize(s, records), kNames, tandem::io::TableFormat::text).find('*') ==
          std::string::npos);
  }

  TEST_CASE("a group's score is the mean of its sets, where all have cases") {
    Settings s;
    s.tasks = {"arithmetic", "boolq"};
    s.policies = {{"near", {}}};
    std::vector<AnswerRecord> records;
    const auto add = [&](AnswerSet set, bool full, bool near) {
      const auto answer = [](int policy, bool correct) {
        return SetAnswer{.policy = policy,
                         .correct = correct,
                         .extracted = correct ? std::optional<std::string>("1") : std::nullopt,
                         .ended = correct,
                         .reads = Reads{1, 0, 100}};
      };
      records.push_back({.set = set,
                         .record = static_cast<int64_t>(records.size()) + 1,
                         .answer = "1",
                         .answers = {answer(0, full), answer(1, near)}});
    };
    for (const AnswerSet set : sets_of(SetGroup::arithmetic)) add(set, true, false);
    add(AnswerSet::gsm8k, false, false);
    add(AnswerSet::boolq, true, true);
    const auto rows = summarize_answers(s, records);
    REQUIRE(rows.size() == 2 * (1 + 8));  // boolq alone; seven sets and their mean
    CHECK(rows[0].task == "boolq");
    CHECK(!rows[0].is_mean);
    const ScoreRow& gsm8k = rows[2 + 1];
    CHECK(gsm8k.task == "gsm8k");
    CHECK(gsm8k.n_cases == 2);
    CHECK(gsm8k.mean == 0.5);
    CHECK(gsm8k.answers->none == 1);
    CHECK(gsm8k.answers->at_limit == 1);
    const ScoreRow& mean = rows[2 + 7];
    CHECK(mean.task == "arithmetic");
    CHECK(mean.is_mean);
    CHECK(mean.n_cases == 8);
    CHECK(mean.mean == doctest::Approx(6.5 / 7));
    CHECK(mean.answers->none == 1);
    const ScoreRow& near = rows.back();
    CHECK(near.policy == 1);
    CHECK(near.mean == 0);
    CHECK(near.difference->mean == doctest::Approx(-6.5 / 7));
    CHECK(near.reads->bytes == 100);
    const Json json = score_json(gsm8k, {{"full", {}}, {"near", {}}});
    CHECK(json["group"] == "arithmetic");
    CHECK(json["n_no_answer"] == 1);
    CHECK(!json.contains("length"));
    CHECK(!json.contains("protocol"));

    const std::string text = score_tables(rows, kNames, tandem::io::TableFormat::text);
    CHECK(text.find("commonsense, greedy answers up to 32 tokens, 1 cases per task\n") == 0);
    CHECK(text.find("arithmetic, greedy answers up to 256 tokens, 1 to 2 cases per task\n") !=
          std::string::npos);
    CHECK(text.find("0.929") != std::string::npos);
    CHECK(text.find("12.5 %") != std::string::npos);  // 1 of 8 without an answer
    // Some sets of a group have no score of their own together.
    s.tasks = {"gsm8k", "addsub"};
    const auto some = summarize_answers(s, records);
    REQUIRE(some.size() == 4);
    for (const ScoreRow& row : some) CHECK(!row.is_mean);
    CHECK(score_tables(some, kNames, tandem::io::TableFormat::text).find(" .. ") ==
          std::string::npos);
  }

  TEST_CASE("tasks without cases have no row") {
    Settings s;
    s.tasks = {"vt", "kv"};
    s.protocols = {Protocol::dense};
    const std::vector<CaseRecord> records = {record(Task::vt, 0, true, false)};
    for (const ScoreRow& row : summarize(s, records)) CHECK(row.task != "kv");
  }
}
