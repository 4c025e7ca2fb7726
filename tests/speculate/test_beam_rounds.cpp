// Beams against a search that reads every path alone (Sirius' specification, section 12: O4, O9,
// O10 and O11).
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "error_text.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

namespace {

constexpr double kFloor = 0.05, kTemperature = 0.6;
const FloorRule kRule{.probability = kFloor, .temperature = static_cast<float>(kTemperature)};

std::vector<double> log_softmax(const Row& row) {
  const double max = *std::ranges::max_element(row);
  double sum = 0;
  for (const float x : row) sum += std::exp((x - max) / kTemperature);
  std::vector<double> log_p;
  for (const float x : row) log_p.push_back((x - max) / kTemperature - std::log(sum));
  return log_p;
}

/// A model as it reads a text and then each path after it, alone: the text itself is always read
/// whole, and what follows it by one policy.
class Alone {
 public:
  Alone(decode::Engine& engine, int policy) : engine_(engine), policy_(policy) {}
  ~Alone() { begin({}); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

  /// text   empty: none
  void begin(const Ids& text) {
    if (slot_ >= 0) engine_.cache().release(std::exchange(slot_, -1));
    if (text.empty()) return;
    slot_ = engine_.cache().create(engine_.cache().all_readers());
    root_ = text.back();
    (void)prefill(engine_, slot_, std::span(text).first(text.size() - 1));
  }
  Row after(const Ids& path) const {
    const int fork = engine_.cache().fork(slot_, policy_);
    Ids rows = {root_};
    rows.insert(rows.end(), path.begin(), path.end());
    Row row = extend(engine_, fork, rows);
    engine_.cache().release(fork);
    return row;
  }

 private:
  decode::Engine& engine_;
  int policy_, slot_ = -1;
  int32_t root_ = 0;
};

struct Node {
  Ids path = {};  // tokens from the root's child on
  double score = 0;
  int parent = -1, rank = 0;
};

/// Nodes of a round, level by level.
std::vector<std::vector<Node>> search(const Alone& draft, const Beams& beams) {
  std::vector<std::vector<Node>> levels = {{Node{}}};
  for (int level = 0; level < beams.gamma; ++level) {
    std::vector<Node> all;
    for (int i = 0; i < static_cast<int>(levels.back().size()); ++i) {
      const Node& above = levels.back()[static_cast<size_t>(i)];
      const Row row = draft.after(above.path);
      const std::vector<double> log_p = log_softmax(row);
      Ids order(row.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater<>{},
                               [&](int32_t id) { return row[static_cast<size_t>(id)]; });
      for (int rank = 0; rank < beams.width; ++rank) {
        const int32_t id = order[static_cast<size_t>(rank)];
        Node node{above.path, above.score + log_p[static_cast<size_t>(id)], i, rank};
        node.path.push_back(id);
        all.push_back(std::move(node));
      }
    }
    std::ranges::stable_sort(all, std::greater<>{}, &Node::score);
    all.resize(static_cast<size_t>(beams.width));
    std::ranges::sort(all, {}, [](const Node& n) { return std::pair(n.parent, n.rank); });
    levels.push_back(std::move(all));
  }
  return levels;
}

struct Searched {
  Ids ids;
  std::vector<int> accepted;  // by round
  std::vector<Row> roots;     // the target's logits after the text, by round
};

/// Text after a prompt, by rounds that read every path alone.
Searched search_text(Alone& target, Alone& draft, const Ids& prompt, const Beams& beams,
                     size_t n_tokens) {
  Searched s;
  Ids text = prompt;
  // The first token comes from the prompt.
  target.begin(text);
  const auto append = [&](int32_t id) {
    text.push_back(id);
    s.ids.push_back(id);
  };
  append(argmax(target.after({})));
  while (s.ids.size() < n_tokens) {
    target.begin(text);
    s.roots.push_back(target.after({}));
    draft.begin(text);
    Ids best;
    std::vector<bool> passed = {true};
    const auto levels = search(draft, beams);
    for (size_t level = 1; level < levels.size(); ++level) {
      std::vector<bool> passes;
      for (const Node& node : levels[level]) {
        const Ids before(node.path.begin(), node.path.end() - 1);
        passes.push_back(passed[static_cast<size_t>(node.parent)] &&
                         std::exp(log_softmax(target.after(
                             before))[static_cast<size_t>(node.path.back())]) >= kFloor);
        if (passes.back() && best.size() < level) best = node.path;
      }
      passed = passes;
    }
    s.accepted.push_back(static_cast<int>(best.size()));
    const int32_t next = argmax(target.after(best));
    for (const int32_t id : best) append(id);
    append(next);
  }
  s.ids.resize(n_tokens);
  return s;
}

/// The same by rounds of the library.
Searched text_by_rounds(Reader target, Reader draft, const Ids& prompt, const Beams& beams,
                        size_t n_tokens) {
  Searched s;
  const auto rounds = beam_rounds(
      target, draft, beams,
      {.on_round = [&](const RoundEvent& e) { s.accepted.push_back(e.accepted); },
       .verify = VerifyChoice::floor,
       .floor = kRule,
       .on_verified = [&](const Round&,
                          const Tensor& logits) { s.roots.push_back(row_of(logits, 0)); }});
  const std::vector<decode::Request> requests = {request(prompt)};
  s.ids =
      generate(*target.engine, requests, rules(static_cast<int>(n_tokens)), rounds.get()).ids[0];
  return s;
}

/// returns   the mean number of accepted tokens
double check_search(Reader target, Reader draft, const Ids& prompt, const Beams& beams) {
  constexpr size_t kTokens = 40;
  const Searched got = text_by_rounds(target, draft, prompt, beams, kTokens);
  Alone by_target(*target.engine, 0), by_draft(*draft.engine, draft.reading.keys);
  const Searched want = search_text(by_target, by_draft, prompt, beams, kTokens);
  CHECK(got.ids == want.ids);
  CHECK(got.accepted == want.accepted);
  REQUIRE(got.roots.size() == want.roots.size());
  // Keys of accepted paths are those of a text that is read at once.
  for (size_t i = 0; i < got.roots.size(); ++i)
    CHECK(max_difference(got.roots[i], want.roots[i]) < 1e-4);
  return std::accumulate(got.accepted.begin(), got.accepted.end(), 0.0) /
         static_cast<double>(got.accepted.size());
}

}  // namespace

TEST_SUITE("speculate/beam-rounds") {
  TEST_CASE("f32: rounds find the paths of a search that reads every path alone") {
    double by_width[2] = {};
    const Pair pair;
    const SelfPair self(6, {});
    for (const int width : {2, 4}) {
      CAPTURE(width);
      for (const char* prompt : {kPrompts[2], kPrompts[4]}) {
        const Ids ids = pair.target->tokenizer()->encode(prompt);
        by_width[width / 4] +=
            check_search(*pair.target, *pair.draft, ids, {.width = width, .gamma = 4});
        (void)check_search(*self.engine, {*self.engine, {.keys = 1}}, ids,
                           {.width = width, .gamma = 3});
      }
    }
    CHECK(by_width[0] > 0.5);
    CHECK(by_width[1] >= by_width[0]);
  }

  TEST_CASE("f32: a beam of one is a chain: text, paths and figures") {
    const SelfPair pair(6, {});
    const auto run = [&](const std::unique_ptr<Rounds>& rounds) {
      return generate(*pair.engine, pair.requests(), rules(50), rounds.get()).ids;
    };
    const Reader draft{*pair.engine, {.keys = 1}};
    for (const VerifyChoice verify : {VerifyChoice::floor, VerifyChoice::match}) {
      const auto chain =
          model_rounds(*pair.engine, draft, chain_tree(6), {.verify = verify, .floor = kRule});
      const auto beam = beam_rounds(*pair.engine, draft, {.width = 1, .gamma = 5},
                                    {.verify = verify, .floor = kRule});
      CHECK(run(beam) == run(chain));
      CHECK(beam->stats().accepted_hist == chain->stats().accepted_hist);
      CHECK(beam->stats().drafted == chain->stats().drafted);
      CHECK(beam->stats().rounds == chain->stats().rounds);
      CHECK(beam->stats().accepted > 0);
    }
  }

  TEST_CASE("f32: by match the text is the target's; wider beams hold more of it") {
    const Pair pair;
    const SelfPair self(6, {});
    const auto check = [](Reader target, Reader draft,
                          const std::vector<decode::Request>& requests) {
      const Generated plain = generate(*target.engine, requests, rules(60));
      const int pages = target.engine->cache().store().free_pages();
      double tokens = 0;
      for (const int width : {1, 4, kMaxBeams}) {
        CAPTURE(width);
        // Some 80 nodes: more than a mask word has bits.
        const auto rounds = beam_rounds(target, draft, {.width = width, .gamma = 10});
        CHECK(rounds->accept_by() == AcceptBy::match);
        const std::vector<decode::Request> one(requests.begin(), requests.begin() + 1);
        CHECK(generate(*target.engine, one, rules(60), rounds.get()).ids[0] == plain.ids[0]);
        CHECK(rounds->stats().tokens_per_round() >= tokens);
        tokens = rounds->stats().tokens_per_round();
        CHECK_FALSE(rounds->stats().lossy);
        CHECK(rounds->stats().drafted == rounds->stats().rounds * width * 10);
        CHECK(target.engine->cache().store().free_pages() == pages);
      }
      const auto few = beam_rounds(target, draft, {.width = 3, .gamma = 4});
      CHECK(generate(*target.engine, requests, rules(60), few.get()).ids == plain.ids);
      CHECK(tokens > 2);
    };
    check(*pair.target, *pair.draft, pair.requests(6));
    check(*self.engine, {*self.engine, {.keys = 1}}, self.requests());
  }

  TEST_CASE("f32: a batch of two is each of them alone") {
    const SelfPair pair(6, {});
    const auto all = pair.requests();
    const std::vector<decode::Request> both = {all[0], all[2]};
    const auto run = [&](const std::vector<decode::Request>& requests) {
      const auto rounds =
          beam_rounds(*pair.engine, {*pair.engine, {.keys = 1}}, {.width = 4, .gamma = 5},
                      {.verify = VerifyChoice::floor, .floor = kRule});
      return generate(*pair.engine, requests, rules(50), rounds.get()).ids;
    };
    const auto together = run(both);
    for (size_t b = 0; b < both.size(); ++b) CHECK(run({both[b]})[0] == together[b]);
  }

  TEST_CASE("f32: floors of 0 take whole beams, floors above 1 none") {
    const SelfPair pair(6, {});
    const auto run = [&](double floor) {
      const auto rounds =
          beam_rounds(*pair.engine, {*pair.engine, {.keys = 1}}, {.width = 4, .gamma = 5},
                      {.verify = VerifyChoice::floor, .floor = {.probability = floor}});
      const auto ids = generate(*pair.engine, pair.requests(), rules(40), rounds.get()).ids;
      CHECK(rounds->stats().accepted_hist[floor > 1 ? 0 : 5] == rounds->stats().rounds);
      return ids;
    };
    (void)run(0);
    CHECK(run(1.5) == generate(*pair.engine, pair.requests(), rules(40)).ids);
  }

  TEST_CASE("beams are refused where they would have to be drawn, or cannot be read") {
    const SelfPair pair(6, {});
    const Reader draft{*pair.engine, {.keys = 1}};
    const auto rounds = beam_rounds(*pair.engine, draft, {.width = 2, .gamma = 3});
    const std::string drawn = error_text(
        [&] { (void)generate(*pair.engine, pair.requests(), rules(4, 0.8f), rounds.get()); });
    CHECK(drawn.find("sampling.temperature: is 0.8, but beam drafts need") != std::string::npos);
    for (const VerifyChoice verify : {VerifyChoice::sequoia, VerifyChoice::traversal}) {
      const std::string weighed = error_text([&] {
        (void)beam_rounds(*pair.engine, draft, {.width = 2, .gamma = 3}, {.verify = verify});
      });
      CHECK(weighed.find("spec.verify") != std::string::npos);
    }
  }
}
