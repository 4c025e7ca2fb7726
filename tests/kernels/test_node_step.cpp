// The rule of acceptance at one node, by exact enumeration against golden cases.
#include <algorithm>
#include <cmath>

#include "io/file.h"
#include "io/json.h"
#include "kernels/tree/node_step.h"
#include "kernels/tree_case.h"
#include "kernels/without_replacement.h"
#include "source_dir.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;

namespace {

using Probabilities = std::vector<double>;
using Tokens = std::vector<int32_t>;

constexpr double kLastCoin = 1 - 0x1p-53;

/// Weights of a target and a draft distribution, fresh for each use.
class Node {
 public:
  Node(const Probabilities& p, const Probabilities& q)
      : weight_(p.size()), next_(p.size()), draft_(p.size()) {
    for (size_t i = 0; i < p.size(); ++i) {
      // Golden probabilities are whole multiples of 10^-6, so that these weights are exact.
      weight_[i] = static_cast<uint64_t>(std::llround(p[i] * 1e6));
      draft_[i] = static_cast<double>(std::llround(q[i] * 1e6));
      total_ += weight_[i];
      left_ += static_cast<uint64_t>(draft_[i]);
    }
    for (double& d : draft_) {
      if (d != 0) continue;
      d = -1;  // of the rest
      ++rest_;
    }
    residual = {weight_.data(), next_.data(), nullptr, static_cast<int>(p.size()), total_, total_};
    proposal = {draft_.data(), left_, rest_};
  }
  int step(const Tokens& children, const std::vector<double>& coins) {
    return try_children(
        residual, proposal, children.data(), static_cast<int>(children.size()),
        [](int) { return ChildKind::drawn; }, [&](int i) { return coins[static_cast<size_t>(i)]; },
        &n_rounded);
  }
  Probabilities distribution() const {
    Probabilities ps;
    for (int i = 0; i < residual.n; ++i)
      ps.push_back(static_cast<double>(residual.weight[i]) / static_cast<double>(residual.total));
    return ps;
  }

  Residual residual;
  Proposal proposal;
  int32_t n_rounded = 0;

 private:
  std::vector<uint64_t> weight_, next_;
  std::vector<double> draft_;
  uint64_t total_ = 0, left_ = 0, rest_ = 0;
};

struct Outcome {
  Probabilities accept;   // that child i is the one accepted
  Probabilities emitted;  // of every token
};

/// Probability that child i is accepted once those before it are rejected: the number of coins that
/// accept it, which come before those that do not.
double chance_after(const Probabilities& p, const Probabilities& q, const Tokens& children,
                    size_t i) {
  std::vector<double> coins(children.size(), kLastCoin);
  const auto accepts = [&](uint64_t coin) {
    coins[i] = static_cast<double>(coin) * 0x1p-53;
    return Node(p, q).step(children, coins) == static_cast<int>(i);
  };
  uint64_t low = 0, high = uint64_t{1} << 53;  // below low all accept, from high on none
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (accepts(middle))
      low = middle + 1;
    else
      high = middle;
  }
  return static_cast<double>(low) * 0x1p-53;
}

/// Everything that can happen with these children.
Outcome enumerate(const Probabilities& p, const Probabilities& q, const Tokens& children) {
  Outcome o{Probabilities(children.size()), Probabilities(p.size())};
  double reach = 1;
  for (size_t i = 0; i < children.size() && reach > 0; ++i) {
    const double chance = chance_after(p, q, children, i);
    o.accept[i] = reach * chance;
    o.emitted[static_cast<size_t>(children[i])] += o.accept[i];
    reach *= 1 - chance;
  }
  if (reach == 0) return o;
  Node node(p, q);
  REQUIRE(node.step(children, std::vector<double>(children.size(), kLastCoin)) ==
          static_cast<int>(children.size()));
  const Probabilities rest = node.distribution();
  for (size_t x = 0; x < rest.size(); ++x) o.emitted[x] += reach * rest[x];
  return o;
}

/// The mean over all lists of k children drawn without replacement from q.
Outcome enumerate_drawn(const Probabilities& p, const Probabilities& q, int k,
                        Probabilities& mean_chances) {
  Outcome mean{Probabilities(static_cast<size_t>(k)), Probabilities(p.size())};
  mean_chances.assign(static_cast<size_t>(k), 0);
  for (const Tokens& children : ordered_lists(static_cast<int>(p.size()), k)) {
    const double weight = chance_of(q, children);
    if (weight == 0) continue;
    const Outcome one = enumerate(p, q, children);
    Probabilities chances(children.size());
    Node node(p, q);
    residual_chances(chances.data(), node.residual, node.proposal, children.data(), k);
    for (size_t i = 0; i < chances.size(); ++i) {
      mean.accept[i] += weight * one.accept[i];
      mean_chances[i] += weight * chances[i];
    }
    for (size_t x = 0; x < p.size(); ++x) mean.emitted[x] += weight * one.emitted[x];
  }
  return mean;
}

double total_variation(const Probabilities& a, const Probabilities& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum / 2;
}

Tokens largest(const Probabilities& q, int k) {
  Tokens ids(q.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return q[static_cast<size_t>(a)] > q[static_cast<size_t>(b)];
  });
  ids.resize(static_cast<size_t>(k));
  return ids;
}

const io::Json& golden() {
  static const io::Json file = [] {
    const auto path = source_dir() / "tests/data/golden/sequoia/verify.json";
    return io::parse_json(io::read_file(path), path.string());
  }();
  return file;
}

std::vector<float> logs_of(const Probabilities& ps) {
  std::vector<float> x;
  for (const double p : ps) x.push_back(static_cast<float>(std::log(p)));
  return x;
}

/// accept_chances of one row, from logits.
Probabilities chances_from_logits(const Probabilities& p, const Probabilities& q,
                                  const Tokens& children, AcceptBy by, float temperature,
                                  AcceptChancesFn* fn) {
  const auto vocab = static_cast<int>(p.size());
  const auto workspace = aligned_bytes(verify_workspace_bytes(vocab, 0));
  const std::vector<float> target = logs_of(p), draft = logs_of(q);
  const int32_t child_begin[2] = {0, static_cast<int32_t>(children.size())};
  Probabilities chances(children.size());
  fn({.chances = chances.data(),
      .child_begin = child_begin,
      .children = children.data(),
      .target_logits = target.data(),
      .draft_logits = draft.data(),
      .seen = nullptr,
      .seen_begin = nullptr,
      .n_rows = 1,
      .vocab = vocab,
      .target = keep_rule({.temperature = temperature}),
      .draft = keep_rule({}),
      .accept_by = by,
      .workspace = workspace.get()},
     {0, 1});
  return chances;
}

}  // namespace

TEST_SUITE("kernels/node_step") {
  TEST_CASE(
      "golden cases: what comes out is the target's distribution, and each child's part of it") {
    // Golden numbers are good to 1e-12, and so is integer arithmetic on 62 bits.
    constexpr double kTolerance = 2e-12;
    for (const io::Json& c : golden().at("cases")) {
      const Probabilities p = c.at("P"), q = c.at("Q");
      CAPTURE(c.at("name").get<std::string>());
      for (const io::Json& by_k : c.at("by_k")) {
        const int k = by_k.at("k");
        const Probabilities want = by_k.at("sequoia_accept");
        CAPTURE(k);
        Probabilities chances;
        const Outcome o = enumerate_drawn(p, q, k, chances);
        REQUIRE(total_variation(o.emitted, p) <= kTolerance);
        double worst = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          worst = worse(worst, std::abs(o.accept[i] - want[i]));
          worst = worse(worst, std::abs(chances[i] - want[i]));
        }
        REQUIRE(worst <= kTolerance);
      }
    }
  }

  TEST_CASE("golden cases: children that are not drawn make the known error") {
    for (const io::Json& c : golden().at("cases")) {
      const Probabilities p = c.at("P"), q = c.at("Q");
      CAPTURE(c.at("name").get<std::string>());
      for (const io::Json& by_k : c.at("by_k")) {
        const int k = by_k.at("k");
        CAPTURE(k);
        const Outcome o = enumerate(p, q, largest(q, k));
        const double want = by_k.at("tv_error_if_topk_is_fed_to_the_pq_rule");
        REQUIRE(std::abs(total_variation(o.emitted, p) - want) <= 2e-12);
      }
    }
  }

  TEST_CASE("golden cases: chances from logits, by match and by residual") {
    for (const io::Json& c : golden().at("cases")) {
      const Probabilities p = c.at("P"), q = c.at("Q");
      CAPTURE(c.at("name").get<std::string>());
      const auto k = static_cast<int>(p.size());
      const Probabilities by_match = c.at("by_k").back().at("topk_naive_accept");
      const Tokens children = largest(q, k);
      Probabilities by_residual(children.size());
      Node node(p, q);
      residual_chances(by_residual.data(), node.residual, node.proposal, children.data(), k);
      const auto best = std::max_element(p.begin(), p.end()) - p.begin();
      for (const Isa isa : usable_isas()) {
        CAPTURE(isa_name(isa));
        AcceptChancesFn* fn = cpu_table(isa).accept_chances;
        const Probabilities match = chances_from_logits(p, q, children, AcceptBy::match, 1, fn);
        const Probabilities residual =
            chances_from_logits(p, q, children, AcceptBy::sequoia, 1, fn);
        const Probabilities greedy = chances_from_logits(p, q, children, AcceptBy::sequoia, 0, fn);
        for (size_t i = 0; i < children.size(); ++i) {
          // Logarithms were rounded to f32: 2^-24 of at most 4, and weights are good to 2e-7.
          CHECK(std::abs(match[i] - by_match[i]) <= 1e-6);
          CHECK(std::abs(residual[i] - by_residual[i]) <= 4e-6);
          CHECK(greedy[i] == (children[i] == best ? 1 : 0));
        }
      }
    }
  }

  TEST_CASE(
      "equal distributions accept the first child whatever the coin, however they are scaled") {
    const Probabilities p = {0.3, 0.2, 0.2, 0.15, 0.1, 0.05};
    for (const double scale : {1.0, 3.0, 7.0, 999.0}) {
      Probabilities q = p;
      for (double& x : q) x *= scale;
      for (int32_t token = 0; token < 6; ++token) {
        Node node(p, q);
        CHECK(node.step({token}, {kLastCoin}) == 0);
      }
    }
  }

  TEST_CASE("rounding alone does not reject, and is counted") {
    // The draft has one unit in 2^40 more than the target on token 0: the last coin rejects it, yet
    // less than 2^-40 of the distribution is left.
    const uint64_t big = uint64_t{1} << 40;
    std::vector<uint64_t> weight = {big - 1, big}, next(2);
    std::vector<double> draft = {static_cast<double>(big), static_cast<double>(big)};
    Residual r{weight.data(), next.data(), nullptr, 2, 2 * big - 1, 2 * big - 1};
    Proposal p{draft.data(), 2 * big, 0};
    const int32_t child = 0;
    int32_t n_rounded = 0;
    CHECK(try_children(
              r, p, &child, 1, [](int) { return ChildKind::drawn; }, [](int) { return kLastCoin; },
              &n_rounded) == 0);
    CHECK(n_rounded == 1);
  }

  TEST_CASE("a rejected token never comes back, and all tokens as children always suffice") {
    PhiloxStream stream(12);
    for (int trial = 0; trial < 2000; ++trial) {
      const size_t vocab = 2 + stream.below(7);
      Probabilities p(vocab), q(vocab);
      for (double& x : p) x = stream.below(3) ? stream.uniform() : 0;
      for (double& x : q) x = stream.below(3) ? stream.uniform() : 0;
      p[stream.below(static_cast<uint32_t>(vocab))] += 0.5;
      q[stream.below(static_cast<uint32_t>(vocab))] += 0.5;
      // Any order the draft could draw: those of positive weight first.
      Tokens children = largest(q, static_cast<int>(vocab));
      Node all(p, q);
      const std::vector<double> coins(vocab, kLastCoin);
      REQUIRE(all.step(children, coins) < static_cast<int>(vocab));
      children.resize(1 + stream.below(static_cast<uint32_t>(vocab) - 1));
      Node some(p, q);
      if (some.step(children, coins) < static_cast<int>(children.size())) continue;
      for (const int32_t token : children)
        REQUIRE(some.residual.weight[static_cast<size_t>(token)] == 0);
    }
  }

  TEST_CASE("a target kept to few ids reads its weights by id") {
    const std::vector<int32_t> ids = {3, 8, 90};
    std::vector<uint64_t> weight = {5, 3, 2}, next(3);
    const Residual r{weight.data(), next.data(), ids.data(), 3, 10, 10};
    CHECK(weight_at(r, 3) == 5);
    CHECK(weight_at(r, 8) == 3);
    CHECK(weight_at(r, 90) == 2);
    for (const int absent : {0, 4, 89, 91}) CHECK(weight_at(r, absent) == 0);
  }
}
