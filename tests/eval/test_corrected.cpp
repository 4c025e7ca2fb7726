#include <doctest/doctest.h>

#include "eval/case_log.h"
#include "eval/eval_testing.h"
#include "eval/report.h"
#include "io/json.h"
#include "temporary_folder.h"

using namespace eval_testing;
using namespace tandem::eval;
using tandem::DType;
using tandem::recipe::SparseKind;
using tandem::speculate::VerifyChoice;

namespace {

constexpr int kLength = 500, kCases = 3;
const CaseSpec kGenerated{{Protocol::dense}, {Score::generated}};

NamedPolicy drafts(double keep, SparseKind kind, int gamma, VerifyChoice verify) {
  NamedPolicy p{.name = "drafts", .cache = {}};
  p.sparse.kind = kind;
  p.sparse.keep = {keep};
  p.spec.gamma = gamma;
  p.spec.verify = verify;
  return p;
}

/// Outcomes of each case, and those of full attention first.
std::vector<std::vector<Outcome>> run(const std::vector<NamedPolicy>& policies) {
  std::vector<NamedPolicy> all = {full()};
  all.insert(all.end(), policies.begin(), policies.end());
  CaseSpec spec = kGenerated;
  for (const NamedPolicy& policy : all) spec.corrections.push_back(policy.spec);
  const auto files = tandem::decode::open_model(model_path("tiny-2m"), 0);
  const auto engine = make_engine(
      "tiny-2m", case_engine_spec(all, DType::f32, 512, kLength, kCases, files.config.vocab_size));
  const CaseGenerator make(tokenizer(), {}, 1);
  std::vector<Case> cases;
  for (uint32_t i = 0; i < kCases; ++i) cases.push_back(make.make(Task::needle1, kLength, i));
  const int pages = engine->cache().store().free_pages();
  auto outcomes = run_cases(*engine, cases, spec);
  CHECK(engine->cache().store().free_pages() == pages);
  return outcomes;
}

}  // namespace

TEST_SUITE("eval/corrected") {
  TEST_CASE("by match a corrected policy answers as full attention does, whatever it drafts") {
    const auto outcomes = run({drafts(.3, SparseKind::griffin, 7, VerifyChoice::match),
                               drafts(.02, SparseKind::cats, 3, VerifyChoice::match),
                               drafts(.02, SparseKind::cats, 0, VerifyChoice::match)});  // bare
    int lost = 0;
    for (const auto& of_case : outcomes) {
      REQUIRE(of_case.size() == 4);
      for (size_t i = 0; i < 3; ++i) CHECK(of_case[i].correct == of_case[0].correct);
      for (const size_t corrected : {size_t{1}, size_t{2}}) {
        REQUIRE(of_case[corrected].rounds.has_value());
        CHECK_FALSE(of_case[corrected].reads.has_value());
        const RoundCounts& r = *of_case[corrected].rounds;
        CHECK(r.rounds > 0);
        CHECK(r.emitted == r.accepted + r.rounds);
        CHECK_FALSE(r.lossy);
      }
      CHECK_FALSE(of_case[3].rounds.has_value());
      lost += of_case[0].correct && !of_case[3].correct ? 1 : 0;
    }
    CHECK(lost > 0);  // or there was nothing to correct
  }

  TEST_CASE("all channels are accepted as often as there is room, none by a floor above 1") {
    NamedPolicy none = drafts(.5, SparseKind::griffin, 7, VerifyChoice::floor);
    none.spec.floors.floor = 1.5;
    for (const auto& of_case :
         run({drafts(1, SparseKind::griffin, 7, VerifyChoice::floor_or_argmax), none})) {
      const RoundCounts &all = *of_case[1].rounds, &nothing = *of_case[2].rounds;
      CHECK(all.advance() == doctest::Approx(all.most()));
      CHECK(all.cut_short == 0);
      CHECK(all.density == doctest::Approx(1));
      CHECK(all.lossy);
      CHECK(nothing.advance() == 1);
      CHECK(nothing.density < 1);
      CHECK(of_case[1].correct == of_case[0].correct);
      CHECK(of_case[2].correct == of_case[0].correct);
    }
  }

  TEST_CASE("figures of rounds: parameters used a token, and what a rollback gives up") {
    RoundCounts r{.rounds = 10,
                  .emitted = 150,
                  .accepted = 140,
                  .offered = 150,
                  .cut_short = 2,
                  .density = .649};
    CHECK(r.advance() == 15);
    CHECK(r.most() == 16);
    CHECK(r.rollback() == 5);
    CHECK(r.apu() == doctest::Approx((1 + 15 * .649) / 15));
    r.add({.rounds = 10, .emitted = 10, .offered = 150, .cut_short = 10, .density = .649});
    CHECK(r.advance() == 8);
    CHECK(r.apu() == doctest::Approx((1 + 15 * .649) / 8));
    CHECK(RoundCounts{}.apu() == 0);
  }

  TEST_CASE("a log keeps the counts, and rows and tables add them up") {
    const std::vector<std::string> names = {"full", "drafts"};
    const tandem::io::Json recipe = {{"sha256", "x"}, {"effective", tandem::io::Json::object()}};
    std::string text = header_line(recipe);
    for (int i = 0; i < 2; ++i) {
      const RoundCounts rounds{.rounds = 3,
                               .emitted = 20 + i,
                               .accepted = 17 + i,
                               .offered = 45,
                               .cut_short = 3,
                               .density = .7,
                               .lossy = true};
      text += case_line({Task::needle1,
                         4096,
                         i,
                         {{0, Protocol::dense, Score::generated, true},
                          {1, Protocol::dense, Score::generated, true, {}, rounds}}},
                        names);
    }
    const tandem::test::TemporaryFolder folder;
    Settings settings;
    settings.tasks = {"needle1"};
    settings.protocols = {Protocol::dense};
    settings.scores = {ProseScore::generated};
    settings.policies = {drafts(.5, SparseKind::cats, 15, VerifyChoice::floor_or_argmax)};
    const CaseLog log = read_log(folder.write("log.jsonl", text), recipe, settings, names);
    REQUIRE(log.cases.size() == 2);
    for (const Outcome& o : log.cases[1].outcomes) {
      REQUIRE(o.rounds.has_value() == (o.policy == 1));
      if (!o.rounds) continue;
      CHECK(o.rounds->emitted == 21);
      CHECK(o.rounds->density == .7);
      CHECK(o.rounds->lossy);
    }
    const auto rows = summarize(settings, log.cases);
    REQUIRE(rows.size() == 2);
    CHECK_FALSE(rows[0].rounds.has_value());
    CHECK(rows[1].rounds->emitted == 41);
    const std::string table = score_tables(rows, names, tandem::io::TableFormat::text);
    CHECK(table.find("AAL") != std::string::npos);
    const tandem::io::Json json = score_json(rows[1], settings.all_policies());
    CHECK(json["spec"]["lossy"] == true);
    CHECK(json["spec"]["aal"].get<double>() == doctest::Approx(41. / 6));
    CHECK(json["spec"]["k"] == 16);
  }
}
