// Whole rounds of drafting and verification on a toy pair of models whose logits depend on the last
// token: the text must follow the target's distribution, over round borders too.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "kernels/append_case.h"
#include "kernels/sample/kept_ref.h"
#include "ops/verification.h"

using namespace tandem;

namespace {

constexpr int kVocab = 4, kTextTokens = 3;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Text = std::vector<int32_t>;  // the first token is given

/// Row t: logits of the token after t.
std::vector<float> table(uint32_t seed, float spread) {
  PhiloxStream stream(seed);
  std::vector<float> x(kVocab * kVocab);
  for (float& v : x) v = static_cast<float>(spread * (2 * stream.uniform() - 1));
  return x;
}

Tensor rows_of(std::vector<float>& x) {
  return {x.data(), DType::f32, {static_cast<int64_t>(x.size()) / kVocab, kVocab}};
}

/// 0 -> 1 2;  1 -> 3 4;  2 -> 5;  3 -> 6
const std::vector<int32_t> kChildren = {2, 2, 1, 1, 0, 0, 0}, kFirst = {1, 3, 5, 6, 0, 0, 0},
                           kParent = {-1, 0, 0, 1, 1, 2, 3};
constexpr int kLevelBegin[] = {0, 1, 3, 6, 7};

struct Run {
  ops::VerifyRule rule;
  ops::SampleRule drawn_by = {.temperature = 1};  // really
  bool fresh = true;  // false: every round is named as the first, a fault
  uint32_t seed = 1;
};

class ToyRounds {
 public:
  ToyRounds(const Run& run, int n_seqs)
      : run_(run),
        texts(static_cast<size_t>(n_seqs), Text{0}),
        rows_(texts.size(), std::vector<int32_t>(kChildren.size())) {}

  /// Rounds until every text has its tokens.
  void finish() {
    for (bool open = true; open;) {
      open = false;
      draft();
      const std::vector<ops::DraftTree> trees = this->trees();
      const auto verified = ops::verify_trees(rows_of(target_), rows_of(draft_), run_.rule, trees);
      for (size_t s = 0; s < texts.size(); ++s) {
        for (const int32_t node : verified[s].path)
          texts[s].push_back(rows_[s][static_cast<size_t>(node)]);
        texts[s].push_back(verified[s].bonus);
        open = open || texts[s].size() <= kTextTokens;
      }
    }
    for (Text& t : texts) t.resize(kTextTokens + 1);
  }

 private:
  ops::RoundName name(size_t s) const {
    return {.seed = run_.seed,
            .sequence = static_cast<int>(s),
            .position = run_.fresh ? static_cast<int>(texts[s].size()) : 1};
  }
  void draft() {
    for (size_t s = 0; s < texts.size(); ++s) rows_[s][0] = texts[s].back();
    for (int level = 0; level < 3; ++level) {
      std::vector<float> logits;
      std::vector<ops::ParentNode> parents;
      std::vector<Text> histories;
      for (size_t s = 0; s < texts.size(); ++s)
        for (int node = kLevelBegin[level]; node < kLevelBegin[level + 1]; ++node) {
          const auto at = draft_.begin() + rows_[s][static_cast<size_t>(node)] * kVocab;
          logits.insert(logits.end(), at, at + kVocab);
          parents.push_back({name(s), node, kChildren[static_cast<size_t>(node)]});
          histories.push_back(texts[s]);
          for (auto i = static_cast<size_t>(node); i > 0; i = static_cast<size_t>(kParent[i]))
            histories.back().push_back(rows_[s][i]);
        }
      const std::vector<std::span<const int32_t>> seen(histories.begin(), histories.end());
      const auto tokens = ops::draw_children(rows_of(logits), run_.drawn_by, parents, seen);
      size_t next = 0;
      for (auto& row : rows_)
        for (int node = kLevelBegin[level + 1]; node < kLevelBegin[level + 2]; ++node)
          row[static_cast<size_t>(node)] = tokens[next++];
    }
  }
  std::vector<ops::DraftTree> trees() const {
    std::vector<ops::DraftTree> trees;
    const bool by_residual = run_.rule.accept_by == AcceptBy::sequoia;
    for (size_t s = 0; s < texts.size(); ++s)  // the row of a node is its token
      trees.push_back({.round = name(s),
                       .tokens = rows_[s],
                       .first_child = kFirst,
                       .n_children = kChildren,
                       .target_row = rows_[s],
                       .draft_row = by_residual ? std::span<const int32_t>(rows_[s])
                                                : std::span<const int32_t>(),
                       .seen = texts[s]});
    return trees;
  }

  Run run_;
  std::vector<float> target_ = table(3, 2), draft_ = table(4, 2);

 public:
  std::vector<Text> texts;

 private:
  std::vector<std::vector<int32_t>> rows_;  // tokens of each sequence's tree
};

/// Probability of a text after its first token under the target alone.
double chance_of(const Text& text, const ops::SampleRule& rule) {
  const std::vector<float> target = table(3, 2);
  double chance = 1;
  for (size_t i = 1; i < text.size(); ++i) {
    const std::vector<double> weight =
        kept_weights_ref(rule.kept(), target.data() + text[i - 1] * kVocab, kVocab,
                         Text(text.begin(), text.begin() + static_cast<ptrdiff_t>(i)));
    double sum = 0;
    for (const double w : weight) sum += w;
    chance *= weight[static_cast<size_t>(text[i])] / sum;
  }
  return chance;
}

/// Chi-square of the texts' frequencies against the target's distribution, over its value at p =
/// 0.001 (Wilson and Hilferty's approximation). Infinite if a text occurs that cannot.
double excess(const std::vector<Text>& texts, const ops::SampleRule& rule) {
  std::map<Text, int> count;
  for (const Text& t : texts) ++count[t];
  double chi2 = 0;
  int cells = 0, found = 0;
  for (int i = 0; i < kVocab * kVocab * kVocab; ++i) {
    const Text text = {0, i / (kVocab * kVocab), i / kVocab % kVocab, i % kVocab};
    const double expected = chance_of(text, rule) * static_cast<double>(texts.size());
    if (expected == 0) continue;
    const int n = count[text];
    found += n;
    ++cells;
    chi2 += (n - expected) * (n - expected) / expected;
  }
  if (found != static_cast<int>(texts.size())) return HUGE_VAL;
  const double f = cells - 1;
  return chi2 / (f * std::pow(1 - 2 / (9 * f) + 3.09 * std::sqrt(2 / (9 * f)), 3));
}

std::vector<Text> texts_of(const Run& run, int n_seqs) {
  ToyRounds rounds(run, n_seqs);
  rounds.finish();
  return rounds.texts;
}

constexpr int kTexts = 20000;  // of three tokens

}  // namespace

TEST_SUITE("ops/verification") {
  TEST_CASE("texts over several rounds follow the target's distribution") {
    const ops::SampleRule rules[] = {{.temperature = 1},
                                     {.temperature = 0.7f, .top_k = 3},
                                     {.temperature = 1.2f, .top_p = 0.8},
                                     {.temperature = 1, .repetition_penalty = 1.5f}};
    for (const ops::SampleRule& rule : rules)
      for (const ops::SampleRule& draft : {ops::SampleRule{.temperature = 0.8f}, rule}) {
        CAPTURE(&rule - rules);
        const Run run{.rule = {.target = rule, .draft = draft, .accept_by = AcceptBy::sequoia},
                      .drawn_by = draft};
        CHECK(excess(texts_of(run, kTexts), rule) < 1);
      }
    const ops::SampleRule rule{.temperature = 1};
    for (const float temperature : {0.0f, 0.8f}) {
      const Run run{.rule = {.target = rule, .draft = {}, .accept_by = AcceptBy::match},
                    .drawn_by = {.temperature = temperature}};
      CHECK(excess(texts_of(run, kTexts), rule) < 1);
    }
  }

  TEST_CASE("this test notices numbers used twice, and children that were not drawn") {
    const ops::SampleRule rule{.temperature = 1};
    const ops::VerifyRule residual{
        .target = rule, .draft = {.temperature = 0.8f}, .accept_by = AcceptBy::sequoia};
    CHECK(excess(texts_of({.rule = residual, .drawn_by = {.temperature = 0.8f}, .fresh = false},
                          kTexts),
                 rule) > 5);
    CHECK(excess(texts_of({.rule = residual, .drawn_by = {}}, kTexts), rule) > 5);
    CHECK(excess(texts_of({.rule = residual, .drawn_by = {.temperature = 1.2f}}, kTexts), rule) >
          5);
  }

  TEST_CASE("a round within a round draws independently: the token follows the outer target") {
    // The inner round verifies a drafted token against a middle model, the outer one its result
    // against the target; both begin at one position.
    const std::vector<float> draft = {0.0f, 1.0f, 2.0f}, middle = {1.0f, 0.0f, 1.2f},
                             target = {0.5f, 1.0f, -1.0f};
    constexpr size_t kRounds = 60000, kTokens = 3;
    const ops::VerifyRule rule{
        .target = {.temperature = 1}, .draft = {.temperature = 1}, .accept_by = AcceptBy::sequoia};
    const std::vector<int32_t> first = {1, 0}, n_children = {1, 0}, row = {0, 0};
    const auto rows = [](const std::vector<float>& x) {
      return Tensor(const_cast<float*>(x.data()), DType::f32, {1, int64_t{kTokens}});
    };
    // One round over many sequences: the tokens that it gives to the children's.
    const auto verify = [&](const std::vector<float>& by, const std::vector<float>& from,
                            const std::vector<std::vector<int32_t>>& tokens, int stage) {
      std::vector<ops::DraftTree> trees;
      for (size_t s = 0; s < tokens.size(); ++s)
        trees.push_back({.round = {5, static_cast<int>(s), 9, stage},
                         .tokens = tokens[s],
                         .first_child = first,
                         .n_children = n_children,
                         .target_row = row,
                         .draft_row = row,
                         .seen = {}});
      std::vector<std::vector<int32_t>> given;
      for (const ops::Verified& v : ops::verify_trees(rows(by), rows(from), rule, trees))
        given.push_back({0, v.path.empty() ? v.bonus : tokens[given.size()][1]});
      return given;
    };
    // Chi-square of the tokens against the target's distribution, 2 degrees of freedom.
    const auto misfit = [&](int inner_stage) {
      std::vector<std::vector<int32_t>> tokens;
      for (size_t s = 0; s < kRounds; ++s) {
        const ops::ParentNode parent{{5, static_cast<int>(s), 9, inner_stage}, 0, 1};
        tokens.push_back({0, ops::draw_children(rows(draft), {.temperature = 1}, {&parent, 1})[0]});
      }
      tokens = verify(middle, draft, tokens, inner_stage);
      tokens = verify(target, middle, tokens, 0);
      double sum = 0, chi = 0;
      for (const float x : target) sum += std::exp(x);
      for (size_t t = 0; t < kTokens; ++t) {
        const double want = std::exp(target[t]) / sum * kRounds;
        double got = 0;
        for (const auto& of : tokens) got += of[1] == static_cast<int32_t>(t) ? 1 : 0;
        chi += (got - want) * (got - want) / want;
      }
      return chi;
    };
    CHECK(misfit(1) < 13.8);  // p = .001
    CHECK(misfit(0) > 100);   // the numbers of one stage, used twice
  }

  TEST_CASE("by match the text is that of plain sampling, whatever the children") {
    for (const ops::SampleRule& rule :
         {ops::SampleRule{.temperature = 0.9f, .top_p = 0.9, .repetition_penalty = 1.2f},
          ops::SampleRule{.temperature = 0}}) {
      const Run run{.rule = {.target = rule, .draft = {}, .accept_by = AcceptBy::match}, .seed = 9};
      const std::vector<Text> texts = texts_of(run, 500);
      std::vector<float> target = table(3, 2);
      for (size_t s = 0; s < texts.size(); ++s) {
        Text plain = {0};
        while (plain.size() <= kTextTokens) {
          const auto words = draw4(9, static_cast<uint32_t>(s), static_cast<uint32_t>(plain.size()),
                                   DrawPurpose::sample);
          const double uniform = uniform53(words[0], words[1]);
          const int32_t seen_begin[] = {0, static_cast<int32_t>(plain.size())};
          int32_t token = kInvalidToken;
          ops::sample({.tokens = &token,
                       .logits = rows_of(target).slice(plain.back(), 1).as<float>(),
                       .uniform = &uniform,
                       .seen = plain.data(),
                       .seen_begin = seen_begin,
                       .n_rows = 1,
                       .vocab = static_cast<int>(rows_of(target).row_size()),
                       .rule = rule.kept(),
                       .workspace = nullptr},
                      {});
          plain.push_back(token);
        }
        REQUIRE(texts[s] == plain);
      }
    }
  }

  TEST_CASE("the same on any number of threads; logprobs are those of logit_stats") {
    const ops::SampleRule rule{.temperature = 0.8f, .top_k = 3};
    const Run run{
        .rule = {.target = rule, .draft = {.temperature = 1}, .accept_by = AcceptBy::sequoia}};
    const int before = max_threads();
    set_threads(1);
    const std::vector<Text> one = texts_of(run, 501);
    set_threads(3);
    const std::vector<Text> three = texts_of(run, 501);
    set_threads(before);
    CHECK(one == three);

    std::vector<float> target = table(3, 2);
    const std::vector<int32_t> tokens = {2}, zero = {0}, row = {2};
    const ops::DraftTree root{.round = {.seed = 1, .sequence = 0, .position = 5},
                              .tokens = tokens,
                              .first_child = zero,
                              .n_children = zero,
                              .target_row = row,
                              .draft_row = {},
                              .seen = {}};
    const ops::VerifyRule match{.target = rule, .draft = {}, .accept_by = AcceptBy::match};
    const auto verified = ops::verify_trees(rows_of(target), {}, match, {&root, 1});
    const auto stats = ops::logit_stats(rows_of(target));
    REQUIRE(verified[0].logprobs.size() == 1);
    CHECK(verified[0].logprobs[0] ==
          target[static_cast<size_t>(2 * kVocab + verified[0].bonus)] - stats.lse[2]);
    CHECK(verified[0].path.empty());
  }

  TEST_CASE("the estimator's mean is the rate at which children are accepted") {
    constexpr int kRows = 20000, kStar = 3;
    std::vector<float> target = table(3, 2), draft = table(4, 2), targets, drafts;
    std::vector<ops::ParentNode> parents;
    for (int r = 0; r < kRows; ++r) {
      targets.insert(targets.end(), target.begin(), target.begin() + kVocab);
      drafts.insert(drafts.end(), draft.begin(), draft.begin() + kVocab);
      parents.push_back({{.seed = 2, .sequence = r, .position = 1}, 0, kStar});
    }
    const ops::VerifyRule rule{
        .target = {.temperature = 1}, .draft = {.temperature = 1}, .accept_by = AcceptBy::sequoia};
    const std::vector<int32_t> children =
        ops::draw_children(rows_of(drafts), {.temperature = 1}, parents);
    const std::vector<double> chances =
        ops::accept_chances(rows_of(targets), rows_of(drafts), rule, children, kStar, {});
    const std::vector<int32_t> first = {1, 0, 0, 0}, n_children = {kStar, 0, 0, 0},
                               row = {0, 0, 0, 0};
    std::vector<std::vector<int32_t>> tokens;
    for (size_t r = 0; r < kRows; ++r)
      tokens.push_back({0, children[r * kStar], children[r * kStar + 1], children[r * kStar + 2]});
    std::vector<ops::DraftTree> trees;
    for (size_t r = 0; r < kRows; ++r)
      trees.push_back({.round = parents[r].round,
                       .tokens = tokens[r],
                       .first_child = first,
                       .n_children = n_children,
                       .target_row = row,
                       .draft_row = row,
                       .seen = {}});
    const auto verified = ops::verify_trees(rows_of(target), rows_of(draft), rule, trees);
    double total = 0;
    for (int k = 0; k < kStar; ++k) {
      double mean = 0, counted = 0;
      for (size_t r = 0; r < kRows; ++r) {
        mean += chances[r * kStar + static_cast<size_t>(k)] / kRows;
        counted += !verified[r].path.empty() && verified[r].path[0] == k + 1;
      }
      counted /= kRows;
      CAPTURE(k);
      // Four standard deviations of the count; the estimator's own is smaller.
      CHECK(std::abs(mean - counted) < 4 * std::sqrt(mean * (1 - mean) / kRows));
      total += mean;
    }
    CHECK(total > 0.5);
    CHECK(total <= 1 + 1e-9);
  }

  TEST_CASE("logits without meaning are an error of the numbers") {
    std::vector<float> bad(kVocab, 0.0f);
    bad[1] = kNan;
    const ops::ParentNode parent{{}, 0, 2};
    const auto kind_of = [](auto&& call) {
      try {
        call();
      } catch (const Error& e) {
        return e.kind();
      }
      return ErrorKind::internal;
    };
    CHECK(kind_of([&] {
            ops::draw_children(rows_of(bad), {.temperature = 1}, {&parent, 1});
          }) == ErrorKind::numeric);
    const std::vector<int32_t> zero = {0};
    const ops::DraftTree root{.round = {},
                              .tokens = zero,
                              .first_child = zero,
                              .n_children = zero,
                              .target_row = zero,
                              .draft_row = {},
                              .seen = {}};
    const ops::VerifyRule rule{.target = {.temperature = 1}, .draft = {}};
    CHECK(kind_of([&] {
            ops::verify_trees(rows_of(bad), {}, rule, {&root, 1});
          }) == ErrorKind::numeric);
    CHECK(kind_of([&] { ops::accept_chances(rows_of(bad), {}, rule, zero, 1, {}); }) ==
          ErrorKind::numeric);
  }

  TEST_CASE("a round within another lengthens chains that are too short, each at its own pace") {
    test::AppendCase c;
    std::vector<int32_t> kept(3, 99), newest(9, 99), taken(3, 99);
    AppendRoundParams p = test::AppendCase::params();
    p.chain_tokens = c.chain.data();
    p.chain_children = c.children.data();
    p.chain_length = c.length.data();
    p.chain_logits = c.chain_logits.data();
    p.chain_row = c.row.data();
    p.enough = c.enough.data();
    p.most = c.most.data();
    p.forced = c.forced.data();
    p.seen = c.seen.data();
    p.seen_begin = c.seen_begin.data();
    p.tokens = c.tokens.data();
    p.path = c.path.data();
    p.n_accepted = c.n_accepted.data();
    p.bonus = c.bonus.data();
    p.newest = c.newest.data();
    p.logits = c.logits.data();
    p.ends = {kept.data(), newest.data(), nullptr};
    p.taken = taken.data();
    ops::append_round(p, {});
    CHECK(c.chain == c.chain_want);
    CHECK(c.children == c.children_want);
    CHECK(c.length == c.length_want);
    CHECK(c.chain_logits == c.chain_logits_want);
    CHECK(c.forced == c.forced_want);
    CHECK(c.seen == c.seen_want);
    CHECK(kept == c.kept_want);
    CHECK(newest == c.newest_want);
    CHECK(taken == c.taken_want);
  }
}
