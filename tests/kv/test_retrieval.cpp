#include <doctest/doctest.h>

#include "base/parallel.h"
#include "error_text.h"
#include "kv/retrieval_rig.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::test::retrieval_rig;
using recipe::Cache;
using recipe::ChoosingQuery;
using recipe::ScoreGroup;

namespace {

/// The text of the specification: four chunks of two keys, one query.
void golden_data(Part part, int32_t token, int, int, float* out) {
  constexpr float kKeys[8][2] = {{1, 0}, {0, 1}, {2, 0}, {0, 0}, {-1, 3}, {1, 1}, {4, -4}, {0, 2}};
  constexpr float kQuery[2] = {1, 1};
  std::copy_n(part == Part::q ? kQuery : kKeys[token], 2, out);
}

}  // namespace

TEST_SUITE("kv/retrieval") {
  TEST_CASE("the specification's chunks: two of four") {
    const PolicyRig::Shape shape{.geometry = {.n_layers = 1,
                                              .n_heads = 1,
                                              .n_kv_heads = 1,
                                              .head_dim = 2,
                                              .dtype = DType::f32},
                                 .max_tokens = 64};
    PolicyRig rig(shape, {retrieval(4, 2)}, golden_data);
    CHECK(chosen(rig, rig.sequence(tokens(0, 8)), 0, 0, 1) == Ids{0, 1, 4, 5});
  }

  TEST_CASE("the choice is the naive one: chunks of any size, groups, sums and maxima, windows") {
    for (const int group : {1, 3, 4})
      for (const int chunk : {1, 2, 4, 8, 16, 32, 64})
        for (const ScoreGroup by : {ScoreGroup::sum, ScoreGroup::max})
          for (const ChoosingQuery query : {ChoosingQuery::last, ChoosingQuery::window})
            for (const int length : {320, 333, 383})
              for (const int recent : {0, 5, 40}) {
                CAPTURE(group);
                CAPTURE(chunk);
                CAPTURE(recipe::yaml_text(by));
                CAPTURE(recipe::yaml_text(query));
                CAPTURE(length);
                CAPTURE(recent);
                Cache cache = retrieval(200, chunk);
                cache.retrieval.group = by;
                cache.retrieval.query = query;
                cache.retrieval.force_recent = {recent};
                PolicyRig rig(shape_of(group), {cache}, kCone);
                const Ids prompt = tokens(0, length);
                const int slot = rig.sequence(prompt);
                for (int layer = 0; layer < 2; ++layer)
                  for (int head = 0; head < 2; ++head)
                    check_choice(chosen(rig, slot, layer, head, group),
                                 naive_scores(cache, kCone, prompt, layer, head, group), cache,
                                 length);
              }
  }

  TEST_CASE("bf16: means are of the keys' type") {
    PolicyRig::Shape shape = shape_of(3);
    shape.geometry.dtype = DType::bf16;
    const Cache cache = retrieval(64, 8);
    PolicyRig rig(shape, {cache}, kCone);
    const Ids prompt = tokens(0, 300);
    const int slot = rig.sequence(prompt);
    check_choice(chosen(rig, slot, 0, 1), naive_scores(cache, kCone, prompt, 0, 1, 3), cache, 300,
                 0.02);
  }

  TEST_CASE("equal scores: the lowest chunks, in their order") {
    const TokenData equal = [](Part part, int32_t token, int layer, int head, float* out) {
      part == Part::k ? static_cast<void>(std::fill_n(out, 32, 0.5f))
                      : kCone(part, token, layer, head, out);
    };
    PolicyRig rig({}, {retrieval(64, 8)}, equal);
    CHECK(chosen(rig, rig.sequence(tokens(0, 304)), 0, 0) == tokens(0, 64));
    CHECK(chosen(rig, rig.sequence(tokens(0, 307)), 0, 0) == tokens(0, 56));  // 3 after them
  }

  TEST_CASE("neither chunks of the prefill nor threads show") {
    const Ids prompt = tokens(0, 333);
    for (const ChoosingQuery query : {ChoosingQuery::last, ChoosingQuery::window}) {
      Cache cache = retrieval(64, 8);
      cache.retrieval.query = query;
      PolicyRig whole({}, {cache}, kCone);
      const std::vector<Ids> want = all_chosen(whole, whole.sequence(prompt));
      for (const size_t chunk : {1u, 5u, 31u, 32u, 64u, 300u, 332u}) {
        CAPTURE(chunk);
        PolicyRig rig({}, {cache}, kCone);
        const int slot = rig.cache.create();
        rig.prefill(slot, prompt, chunk);
        CHECK(all_chosen(rig, slot) == want);
      }
      const int threads = max_threads();
      for (const int n : {1, 2, 3, 5}) {
        set_threads(n);
        PolicyRig rig({}, {cache}, kCone);
        CHECK(all_chosen(rig, rig.sequence(prompt)) == want);
      }
      set_threads(threads);
    }
  }

  TEST_CASE("rows attend to the chosen chunks, the tail and what came after it, and no others") {
    const Ids prompt = tokens(0, 301), after = tokens(5000, 5);
    PolicyRig rig({}, {retrieval(64, 8)}, kCone);
    const int slot = rig.sequence(prompt);
    const std::vector<Ids> lists = all_chosen(rig, slot);
    CHECK(lists[0].size() == 56);  // 296 = 37 chunks, then a tail of 5
    const std::vector<Row> rows = rig.extend(slot, after);
    for (int r = 0; r < 5; ++r)
      for (int layer = 0; layer < 2; ++layer)
        for (int head = 0; head < 6; ++head) {
          Ids keys = lists[static_cast<size_t>(2 * layer + head / 3)];
          for (int t = 296; t < 301; ++t) keys.push_back(t);
          keys.insert(keys.end(), after.begin(), after.begin() + r + 1);
          const std::vector<double> want =
              naive_attention(kCone, after[static_cast<size_t>(r)], keys, layer, head, head / 3);
          for (size_t c = 0; c < 32; ++c)
            REQUIRE(rows[static_cast<size_t>(r)][static_cast<size_t>(layer * 6 + head) * 32 + c] ==
                    doctest::Approx(want[c]).epsilon(1e-4));
        }
  }

  TEST_CASE("a prompt within the budget is read in full, and chosen from when it outgrows it") {
    const Ids after = tokens(5000, 20);
    for (const int length : {1, 7, 40, 44}) {
      CAPTURE(length);
      PolicyRig rig({}, {retrieval(64, 8)}, kCone), full({}, {Cache{}}, kCone);
      const Ids prompt = tokens(0, length);
      const int slot = rig.sequence(prompt);
      CHECK(same(rig.extend_each(slot, after), full.extend_each(full.sequence(prompt), after)));
      CHECK(chosen(rig, slot, 0, 0).empty());
      CHECK(rig.cache.next_change(slot, {}) == 65);
      Ids text = prompt;
      for (const Ids& part : {after, tokens(6000, 45 - length)})
        text.insert(text.end(), part.begin(), part.end());
      rig.append(slot, tokens(6000, 45 - length));
      REQUIRE(text.size() == 65);
      CHECK(!chosen(rig, slot, 0, 0).empty());
      PolicyRig fresh({}, {retrieval(64, 8)}, kCone);
      CHECK(all_chosen(rig, slot) == all_chosen(fresh, fresh.sequence(text)));
    }
  }

  TEST_CASE("generated tokens take the place of the worst chunks, inside the budget") {
    for (const auto& [budget, chunk, length] :
         {std::tuple{64, 8, 301}, {256, 8, 400}, {96, 1, 300}, {200, 64, 330}, {20, 4, 203}}) {
      CAPTURE(budget);
      CAPTURE(chunk);
      PolicyRig rig({}, {retrieval(budget, chunk)}, kCone);
      const int slot = rig.sequence(tokens(0, length)), tail = length / chunk * chunk;
      const int step = std::clamp(budget / 16 / chunk * chunk, chunk, 64);
      const std::vector<Ids> first = all_chosen(rig, slot);
      bool again = false;  // they are chosen again
      for (int n = length; !again; ++n) {
        CAPTURE(n);
        const std::vector<Ids> now = all_chosen(rig, slot);
        const int read = static_cast<int>(now[0].size()) + n - tail;
        CHECK(read <= budget);
        CHECK(read > budget - step - chunk);
        for (size_t i = 0; i < now.size(); ++i) {
          REQUIRE(now[i].size() <= first[i].size());
          CHECK(std::equal(now[i].begin(), now[i].end(), first[i].begin()));
          CHECK(now[i][0] == 0);
        }
        const int change = rig.cache.next_change(slot, {});
        CHECK(change > n);
        rig.append(slot, tokens(5000 + n, 1));
        again = all_chosen(rig, slot)[0].size() > now[0].size();
        // What rows read changes where next_change says so, and nowhere else.
        CHECK((all_chosen(rig, slot) != now) == (n + 1 == change));
      }
    }
  }

  TEST_CASE("no room for chunks is left: the last query chooses among generated text, too") {
    PolicyRig rig({}, {retrieval(64, 8)}, kCone);
    const Ids prompt = tokens(0, 200), after = tokens(3000, 90);
    const int slot = rig.sequence(prompt);
    Ids text = prompt;
    bool again = false;
    for (size_t i = 0; i < after.size(); ++i) {
      const size_t before = chosen(rig, slot, 0, 0).size();
      rig.append(slot, std::span(after).subspan(i, 1));
      text.push_back(after[i]);
      if (chosen(rig, slot, 0, 0).size() <= before) continue;
      CHECK(i == 56);  // 64 - 8 tokens leave one chunk
      again = true;
      PolicyRig fresh({}, {retrieval(64, 8)}, kCone);
      CHECK(all_chosen(rig, slot) == all_chosen(fresh, fresh.sequence(text)));
      break;
    }
    CHECK(again);
  }

  TEST_CASE("rebuild: after as many tokens the last accepted query chooses again") {
    const Ids prompt = tokens(0, 200), after = tokens(3000, 100);
    for (const int every : {1, 7, 32, 50}) {
      CAPTURE(every);
      Cache cache = retrieval(160, 8);
      cache.retrieval.rebuild = {.tokens = every};
      PolicyRig rig({}, {cache}, kCone), at_once({}, {cache}, kCone);
      const int slot = rig.sequence(prompt), other = at_once.sequence(prompt);
      for (size_t i = 0; i < after.size(); ++i) rig.append(slot, std::span(after).subspan(i, 1));
      const auto n = static_cast<std::ptrdiff_t>(after.size()) / every * every;
      Ids text = prompt;
      text.insert(text.end(), after.begin(), after.begin() + n);
      PolicyRig fresh({}, {cache}, kCone);
      const int want = fresh.sequence(text);
      for (std::ptrdiff_t i = n; i < static_cast<std::ptrdiff_t>(after.size()); ++i)
        fresh.append(want, std::span(after).subspan(static_cast<size_t>(i), 1));
      CHECK(all_chosen(rig, slot) == all_chosen(fresh, want));
      // A round that ends beyond the token that was due leaves that token's choice.
      at_once.append(other, after);
      CHECK(all_chosen(at_once, other) == all_chosen(fresh, want));
    }
  }

  TEST_CASE("rejected rows leave no trace, nor does how many a round accepts") {
    const Ids prompt = tokens(0, 200), after = tokens(3000, 60);
    Cache cache = retrieval(64, 4);
    cache.retrieval.rebuild = {.tokens = 24};
    PolicyRig plain({}, {cache}, kCone), rounds({}, {cache}, kCone);
    const int a = plain.sequence(prompt), b = rounds.sequence(prompt);
    const std::vector<Row> want = plain.extend_each(a, after);
    size_t done = 0;
    PhiloxStream draw(9);
    while (done < after.size()) {
      // As rounds of a target do: kept up to where reading changes.
      const int room = rounds.cache.next_change(b, {}) - rounds.cache.length(b);
      const int kept[] = {
          std::min({static_cast<int>(draw.below(6)), room, static_cast<int>(after.size() - done)})};
      Ids rows(after.begin() + static_cast<std::ptrdiff_t>(done),
               after.begin() + static_cast<std::ptrdiff_t>(done) + kept[0]);
      for (int i = 0; i < 5; ++i) rows.push_back(9000 + 10 * static_cast<int>(done) + i);
      const kv::SeqRows seq[] = {{b, static_cast<int>(rows.size())}};
      const kv::Step step = rounds.cache.begin({.rows = seq});
      const std::vector<Row> got = rounds.attend(step, rows);
      for (size_t i = 0; i < static_cast<size_t>(kept[0]); ++i)
        REQUIRE(max_difference(got[i], want[done + i]) <= 1e-5);
      rounds.cache.commit(step, kept);
      done += static_cast<size_t>(kept[0]);
    }
    CHECK(all_chosen(rounds, b) == all_chosen(plain, a));
  }
}
