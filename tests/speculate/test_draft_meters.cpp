#include <doctest/doctest.h>

#include <cmath>

#include "io/file.h"
#include "rounds_testing.h"
#include "speculate/measure/chain_meter.h"
#include "speculate/measure/forced_meter.h"
#include "tools/acceptance/figures.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

namespace {

Tensor rows_of(std::vector<float>& values, int64_t n) {
  return {values.data(), DType::f32, {n, static_cast<int64_t>(values.size()) / n}};
}

const std::vector<double> kTemperatures = {0, 0.6, 1};

/// The text of a test: of a language, so that drafts are neither sure nor lost.
Ids log_text(const decode::Engine& engine, size_t n) {
  std::string log = io::read_file(source_dir() / "recipes/demo/lighthouse-logbook.txt");
  Ids ids = engine.tokenizer()->encode(log.substr(0, 8 * n));
  ids.resize(n);
  return ids;
}

/// Of one text, predicted from token `first` on; [drafts][temperatures][positions].
std::vector<std::vector<std::vector<double>>> forced(decode::Engine& target,
                                                     const std::vector<Reader>& drafts,
                                                     const Ids& text, int first, int gamma) {
  const int slot = target.cache().create(target.cache().all_readers());
  const decode::SeqTokens prompt[] = {
      {slot, std::span(text).first(static_cast<size_t>(first) - 1), true}};
  target.prefill(prompt, {});
  const ForcedText texts[] = {{text, first}};
  const int slots[] = {slot};
  ForcedMeter meter(target, drafts, kTemperatures, gamma);
  const auto all = meter.read(slots, texts);
  CHECK(target.cache().length(slot) == static_cast<int>(text.size()) - 1);
  target.cache().release(slot);
  std::vector<std::vector<std::vector<double>>> of_text(all.size());
  for (size_t d = 0; d < all.size(); ++d)
    for (const auto& at : all[d]) of_text[d].push_back(at[0]);
  return of_text;
}

/// The last token's row after a dense prefill of the tokens before it.
Row row_after(decode::Engine& engine, std::span<const int32_t> text) {
  const int slot = engine.cache().create();
  const decode::SeqTokens prompt[] = {{slot, text.first(text.size() - 1), true}};
  engine.prefill(prompt, {});
  const Row row = extend(engine, slot, text.last(1));
  engine.cache().release(slot);
  return row;
}

}  // namespace

TEST_SUITE("speculate/draft_meters") {
  TEST_CASE("overlaps by hand") {
    std::vector<float> p, q;
    for (const double x : {.5, .3, .2, .2, .2, .6}) p.push_back(static_cast<float>(std::log(x)));
    for (const double x : {.2, .3, .5, .1, .3, .6}) q.push_back(static_cast<float>(std::log(x)));
    CHECK(distribution(std::span(p).first(3), 1)[1] == doctest::Approx(.3));
    // At half the temperature the squares: .25, .09, .04 over .38.
    CHECK(distribution(std::span(p).first(3), .5)[0] == doctest::Approx(.25 / .38));
    CHECK(distribution(std::span(p).first(3), 0) == std::vector<double>{1, 0, 0});
    const double temperatures[] = {0, .5, 1};
    const auto all = RowDistributions(rows_of(p, 2), temperatures).overlaps(rows_of(q, 2));
    CHECK(all[0] == std::vector<double>{0, 1});
    CHECK(all[1][0] == doctest::Approx((.04 + .09 + .04) / .38));
    CHECK(all[1][1] == doctest::Approx(.01 / .46 + .04 / .44 + .36 / .46));
    CHECK(all[2][0] == doctest::Approx(.2 + .3 + .2));
    CHECK(all[2][1] == doctest::Approx(.1 + .2 + .6));
    q[4] = NAN;
    CHECK_THROWS_WITH_AS(
        (void)RowDistributions(rows_of(p, 2), temperatures).overlaps(rows_of(q, 2)),
        "logits of the target or a draft hold NaN", Error);
  }

  TEST_CASE("f32: drafts that read the whole text agree everywhere") {
    recipe::Cache topk, verified;
    topk.kind = recipe::CacheKind::topk;
    topk.topk.ratio = {1};
    verified.kind = recipe::CacheKind::verified;
    const auto target =
        make_engine(tiny_model("tiny-16m"),
                    {.caches = {{}, streaming(4, 4096), snapkv(4096, 32), topk, verified}});
    const auto other = make_engine(tiny_model("tiny-16m"));
    const Ids text = log_text(*target, 120);
    std::vector<Reader> drafts;
    for (int policy = 1; policy <= 4; ++policy) drafts.push_back({*target, {.keys = policy}});
    for (const std::vector<Reader>& some : {drafts, std::vector<Reader>{*other}})
      for (const auto& of_draft : forced(*target, some, text, 80, 3))
        for (const auto& of_temperature : of_draft) {
          CHECK(of_temperature.size() == 40);
          for (const double x : of_temperature) CHECK(x == doctest::Approx(1).epsilon(1e-4));
        }
  }

  TEST_CASE("drafts under few keys: row by row what two engines say") {
    const auto target = make_engine(tiny_model("tiny-16m"), {.caches = {{}, streaming(2, 12)}});
    const auto narrow = make_engine(tiny_model("tiny-16m"), {.caches = {streaming(2, 12)}});
    const auto small = make_engine(tiny_model("tiny-2m"));
    const Ids text = log_text(*target, 60);
    constexpr int kFirst = 48;
    // A draft's row reads the target's keys if it is a round's only one.
    const auto self = forced(*target, {{*target, {.keys = 1}}}, text, kFirst, 1);
    const auto other = forced(*target, {*small}, text, kFirst, 5);
    double least = 1;
    for (size_t i = 0; i < text.size() - kFirst; ++i) {
      const auto seen = std::span(text).first(kFirst + i);
      const Row p = row_after(*target, seen), q = row_after(*narrow, seen),
                r = row_after(*small, seen);
      for (size_t t = 0; t < kTemperatures.size(); ++t) {
        const double temperature = kTemperatures[t];
        const auto share = [&](const Row& draft) {
          return overlap(distribution(p, temperature), distribution(draft, temperature));
        };
        CHECK(self[0][t][i] == doctest::Approx(share(q)).epsilon(1e-4));
        CHECK(other[0][t][i] == doctest::Approx(share(r)).epsilon(1e-4));
      }
      least = std::min(least, self[0][2][i]);
    }
    CHECK(least < 0.9);
  }

  TEST_CASE("texts of different lengths, together as alone") {
    recipe::Cache reads = snapkv(20, 4);
    const auto target = make_engine(tiny_model("tiny-16m"), {.caches = {{}, reads}});
    const Ids text = log_text(*target, 100);
    const Ids cut(text.begin() + 20, text.begin() + 75);
    const ForcedText texts[] = {{text, 60}, {cut, 50}};
    int slots[2];
    for (size_t i = 0; i < 2; ++i) {
      slots[i] = target->cache().create(target->cache().all_readers());
      const decode::SeqTokens prompt[] = {
          {slots[i], texts[i].tokens.first(static_cast<size_t>(texts[i].first) - 1), true}};
      target->prefill(prompt, {});
    }
    ForcedMeter meter(*target, {{*target, {.keys = 1}}}, {1}, 4);
    const auto together = meter.read(slots, texts);
    const auto first = forced(*target, {{*target, {.keys = 1}}}, text, 60, 4)[0][2],
               second = forced(*target, {{*target, {.keys = 1}}}, cut, 50, 4)[0][2];
    REQUIRE(together[0][0][0].size() == 40);
    REQUIRE(together[0][0][1].size() == 5);
    for (size_t i = 0; i < 40; ++i)
      CHECK(together[0][0][0][i] == doctest::Approx(first[i]).epsilon(1e-4));
    for (size_t i = 0; i < 5; ++i)
      CHECK(together[0][0][1][i] == doctest::Approx(second[i]).epsilon(1e-4));
  }

  TEST_CASE("rounds: the sums are what counting comes to") {
    const Pair pair;
    for (const float temperature : {0.0f, 1.0f}) {
      CAPTURE(temperature);
      ChainMeter meter(3);
      int64_t accepted = 0, tested = 0, full = 0;
      RoundOptions options{.verify = VerifyChoice::sequoia};
      options.on_verified = [&](const Round& round, const Tensor& logits) {
        meter.add(round, logits);
      };
      options.on_round = [&](const RoundEvent& e) {
        if (e.drafted < 3) return;
        accepted += e.accepted;
        tested += std::min(e.accepted + 1, 3);
        ++full;
      };
      const auto rounds = model_rounds(*pair.target, *pair.draft, chain_tree(4), options);
      (void)test::generate(*pair.target, pair.requests(6), rules(160, temperature, 3),
                           rounds.get());
      const tools::DraftedAcceptance sums(meter.rounds());
      CHECK(static_cast<int64_t>(sums.rounds) == full);
      const auto n = static_cast<double>(full);
      if (temperature == 0) {
        CHECK(sums.tokens_per_round == doctest::Approx(1 + static_cast<double>(accepted) / n));
        CHECK(sums.alpha.mean == doctest::Approx(double(accepted) / double(tested)));
      } else {
        // Some 450 rounds, of a standard deviation of about 1.2 tokens.
        CHECK(std::abs(sums.tokens_per_round - 1 - static_cast<double>(accepted) / n) < 0.2);
        CHECK(std::abs(sums.alpha.mean - double(accepted) / double(tested)) < 0.07);
      }
    }
  }

  TEST_CASE("figures by hand") {
    const tools::DraftedAcceptance drafted(
        {{.tested = {1, .5}, .accepted = {.75, .25}}, {.tested = {1, 1}, .accepted = {1, .5}}});
    CHECK(drafted.alpha.mean == doctest::Approx(2.5 / 3.5));
    CHECK(drafted.tokens_per_round == doctest::Approx(2.25));
    CHECK(drafted.share_accepted == doctest::Approx(2.5 / 4));
    CHECK(drafted.rate_by_position == std::vector<double>{.875, .375});
    CHECK(drafted.by_position == std::vector<double>{.875, .5});
    tools::TestedAcceptance tested(2, 4);
    tested.add({1, .5, .5, 0}, 2);
    tested.add({.5, 1, 1, .5}, 1);
    CHECK(tested.alpha().mean == doctest::Approx(5. / 8));
    CHECK(tested.answer()->mean == doctest::Approx(2. / 3));
    const auto json = tested.json();
    CHECK(json["by_position"].get<std::vector<double>>() == std::vector<double>{.75, .5});
    CHECK(json["positions"] == 8);
    CHECK(json["answer"]["positions"] == 3);
    CHECK(json["by_output"].size() == 4);
  }
}
