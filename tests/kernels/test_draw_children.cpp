#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "kernels/sample/kept_ref.h"
#include "kernels/sample_case.h"
#include "kernels/without_replacement.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Rows of logits and how many children each has; each of a sequence of its own, whose tree is a
/// chain down to the node.
struct Nodes {
  int vocab;
  uint32_t stage = 0;
  uint64_t seed = 77;
  std::vector<float> logits = {};
  std::vector<ParentRow> parents = {};
  std::vector<int32_t> sequence = {}, position = {};
  std::vector<int32_t> tokens = {};  // of all trees, their nodes' and then the children's
  std::vector<int32_t> node_begin = {}, parent = {}, seen = {}, seen_begin = {0};

  int n_tokens() const {
    return parents.empty() ? 0 : parents.back().first_child + parents.back().n_children;
  }
  void add(const std::vector<float>& row, int n_children, int seq = 0, int pos = 0, int id = 0) {
    add_path(row, n_children, std::vector<int32_t>(static_cast<size_t>(id) + 1), {});
    sequence.back() = seq;
    position.back() = pos;
  }
  /// path     tokens of the tree's nodes, the root's first
  void add_path(const std::vector<float>& row, int n_children, const std::vector<int32_t>& path,
                const std::vector<int32_t>& of_sequence) {
    const auto n = static_cast<int32_t>(path.size());
    logits.insert(logits.end(), row.begin(), row.end());
    node_begin.push_back(n_tokens());
    for (int32_t node = 0; node < n; ++node) parent.push_back(node - 1);
    parent.resize(parent.size() + static_cast<size_t>(n_children), n - 1);
    tokens.insert(tokens.end(), path.begin(), path.end());
    tokens.resize(tokens.size() + static_cast<size_t>(n_children), -2);
    seen.insert(seen.end(), of_sequence.begin(), of_sequence.end());
    seen_begin.push_back(static_cast<int32_t>(seen.size()));
    parents.push_back(
        {static_cast<int32_t>(sequence.size()), n - 1, node_begin.back() + n, n_children});
    sequence.push_back(0);
    position.push_back(0);
  }
  DrawChildrenParams params(const KeepRule& rule) const {
    return {.tokens = nullptr,
            .logits = logits.data(),
            .parents = parents.data(),
            .numbers = {&seed, sequence.data(), position.data(), stage},
            .n_rows = static_cast<int>(parents.size()),
            .vocab = vocab,
            .rule = rule,
            .seen = seen.data(),
            .seen_begin = seen_begin.data(),
            .parent = parent.data(),
            .node_begin = node_begin.data(),
            .workspace = nullptr};
  }
};

using Tokens = std::vector<int32_t>;

/// The children of every row in turn.
Tokens draw(DrawChildrenFn* fn, const Nodes& nodes, const Settings& settings) {
  const auto workspace = aligned_bytes(draw_children_workspace_bytes(nodes.vocab));
  Tokens tokens = nodes.tokens;
  DrawChildrenParams p = nodes.params(keep_rule(settings));
  p.tokens = tokens.data();
  p.workspace = workspace.get();
  fn(p, {0, p.n_rows});
  Tokens children;
  for (const ParentRow& parent : nodes.parents) {
    const auto first = tokens.begin() + parent.first_child;
    children.insert(children.end(), first, first + parent.n_children);
    std::fill_n(first, parent.n_children, -2);
  }
  REQUIRE(tokens == nodes.tokens);
  return children;
}
Tokens draw(DrawChildrenFn* fn, const Nodes& nodes, float temperature) {
  return draw(fn, nodes, {.temperature = temperature});
}

std::vector<float> logs_of(const std::vector<double>& probability) {
  std::vector<float> x;
  for (const double p : probability) x.push_back(static_cast<float>(std::log(p)));
  return x;
}

std::vector<double> normalized(std::vector<double> q) {
  const double sum = std::accumulate(q.begin(), q.end(), 0.0);
  for (double& p : q) p /= sum;
  return q;
}

/// Chi-square of how often the first tokens drawn are each ordered list of `length` tokens, over
/// its value at p = 0.001 (Wilson and Hilferty's approximation). Infinite if a list occurs that
/// cannot.
/// rest     by which tokens are drawn when those of q are used up; empty: all alike
double excess(const std::vector<float>& row, const Settings& settings, const std::vector<double>& q,
              const std::vector<double>& rest, int length) {
  constexpr int kDraws = 200000;
  const auto vocab = static_cast<int>(row.size());
  Nodes nodes{.vocab = vocab};
  // Fresh by sequence, position and node alike.
  for (int i = 0; i < kDraws; ++i) nodes.add(row, length, i % 7, i / 7 % 1000, i / 7000);
  const Tokens tokens = draw(cpu_table().draw_children, nodes, settings);
  const auto place = [&](const int32_t* list) {
    size_t at = 0;
    for (int i = 0; i < length; ++i) at = at * row.size() + static_cast<size_t>(list[i]);
    return at;
  };
  std::vector<int> count(static_cast<size_t>(std::pow(vocab, length)));
  for (int i = 0; i < kDraws; ++i) ++count[place(&tokens[static_cast<size_t>(i * length)])];
  double chi2 = 0;
  int cells = 0, found = 0;
  for (const Tokens& list : ordered_lists(vocab, length)) {
    const double expected = kDraws * chance_of(q, list, rest);
    if (expected == 0) continue;
    const int n = count[place(list.data())];
    ++cells;
    found += n;
    chi2 += (n - expected) * (n - expected) / expected;
  }
  if (found != kDraws) return HUGE_VAL;
  const double f = cells - 1;
  return f == 0 ? 0 : chi2 / (f * std::pow(1 - 2 / (9 * f) + 3.09 * std::sqrt(2 / (9 * f)), 3));
}

}  // namespace

TEST_SUITE("kernels/draw_children") {
  TEST_CASE("equal to the reference on every ISA") {
    std::vector<Settings> settings(std::begin(kSettings), std::end(kSettings));
    for (const float temperature : {0.05f, 0.6f, 30.0f})
      settings.push_back({.temperature = temperature});
    settings.push_back({.temperature = 0.6f, .penalty = 0.8f});
    settings.push_back({.temperature = 1.8f, .top_p = 0.99});
    settings.push_back({.temperature = 0.9f, .top_k = 40, .top_p = 0.9, .penalty = 1.2f});
    for (const Nature nature : kNatures)
      for (const int vocab : {1, 2, 15, 63, 64, 65, 1009, 32000})
        for (const Settings& s : settings) {
          Nodes nodes{.vocab = vocab};
          PhiloxStream stream(8);
          const auto random_tokens = [&](uint32_t n) {
            Tokens tokens;
            for (uint32_t i = 0; i < n; ++i)
              tokens.push_back(static_cast<int32_t>(stream.below(static_cast<uint32_t>(vocab))));
            return tokens;
          };
          for (const int wanted : {1, 0, 2, 5, 32, 100, 1009}) {
            const auto seed = stream.next();
            nodes.add_path(random_logits(nature, vocab, seed), std::min(wanted, vocab),
                           random_tokens(1 + seed % 6), random_tokens(seed % 50));
            nodes.sequence.back() = static_cast<int>(seed % 5);
            nodes.position.back() = static_cast<int>(seed % 1000);
          }
          const Tokens want = draw(draw_children_ref, nodes, s);
          for (const Isa isa : usable_isas()) {
            CAPTURE(isa_name(isa));
            CAPTURE(static_cast<int>(nature));
            CAPTURE(vocab);
            CAPTURE(&s - settings.data());
            REQUIRE(draw(cpu_table(isa).draw_children, nodes, s) == want);
          }
        }
  }

  TEST_CASE("sums of rows that the rule leaves as they are") {
    constexpr int kVocab = 1009;
    for (const Settings& s : {Settings{}, Settings{.temperature = 0.6f}, Settings{.top_k = 40},
                              Settings{.top_p = 0.9}, Settings{.penalty = 1.2f}}) {
      const KeepRule rule = keep_rule(s);
      Nodes nodes{.vocab = kVocab};
      for (const uint32_t id : {1u, 2u}) nodes.add(random_logits(Nature::normal, kVocab, id), 3);
      const bool is_as_given = s.top_k == 0 && s.top_p == 1 && s.penalty == 1;
      uint64_t first = 0;
      for (const Isa isa : usable_isas()) {
        CAPTURE(isa_name(isa));
        const auto workspace = aligned_bytes(draw_children_workspace_bytes(kVocab));
        std::vector<RowSum> sums(2, {-1, 7});
        DrawChildrenParams p = nodes.params(rule);
        p.tokens = nodes.tokens.data();
        p.workspace = workspace.get();
        p.sums = sums.data();
        cpu_table(isa).draw_children(p, {0, 2});
        for (size_t r = 0; r < 2; ++r) {
          if (!is_as_given) {
            REQUIRE(sums[r].total == 0);
            continue;
          }
          const float* x = nodes.logits.data() + r * kVocab;
          const double max = *std::max_element(x, x + kVocab);
          double want = 0;
          for (int i = 0; i < kVocab; ++i)
            want += std::floor(0x1p40 * std::exp((x[i] - max) / rule.temperature));
          REQUIRE(double{sums[r].max} == max);
          // Each weight is good to 2e-7 and to the rounding of its argument, of at most 28.
          REQUIRE(std::abs(static_cast<double>(sums[r].total) - want) <= 2e-6 * want);
        }
        if (first == 0) first = sums[0].total;
        REQUIRE(sums[0].total == first);
      }
    }
  }

  TEST_CASE("ordered pairs follow the distribution of sampling without replacement") {
    const std::pair<std::vector<double>, float> settings[] = {
        {{0.5, 0.3, 0.2}, 1.0f},         {{0.1, 0.45, 0.05, 0.3, 0.1}, 1.0f},
        {{0.9, 0.05, 0.03, 0.02}, 1.0f}, {{0.3, 0.2, 0.2, 0.15, 0.1, 0.05}, 0.5f},
        {{0.7, 0.3, 0, 0}, 1.0f},  // 01 10 only
        {{1, 0, 0, 0, 0}, 1.0f},   // 01 02 03 04
    };
    for (const auto& [given, temperature] : settings) {
      CAPTURE(given.size());
      CAPTURE(given[0]);
      std::vector<double> q;
      for (const double p : given) q.push_back(std::pow(p, 1 / temperature));
      CHECK(excess(logs_of(given), {.temperature = temperature}, normalized(q), {}, 2) < 1);
    }
  }

  TEST_CASE("ordered triples: what the cuts keep first, then the rest by its weight") {
    const std::vector<double> all = {0.1, 0.35, 0.08, 0.25, 0.2, 0.02};
    const std::vector<float> row = logs_of(all);
    const Settings settings[] = {{.top_k = 2},
                                 {.top_k = 1},
                                 {.top_k = 5},
                                 {.top_p = 0.75},
                                 {.temperature = 0.7f, .top_p = 0.5},
                                 {.min_p = 0.5},
                                 {.temperature = 1.5f, .top_k = 4, .top_p = 0.7, .min_p = 0.3},
                                 {.top_p = 0.0}};
    for (const Settings& s : settings) {
      CAPTURE(&s - settings);
      const auto weights = [&](const Settings& of) {
        return normalized(kept_weights_ref(keep_rule(of), row.data(), 6, {}));
      };
      const std::vector<double> rest = weights({.temperature = s.temperature});
      CHECK(excess(row, s, weights(s), rest, 3) < 1);
      // The test would notice the rest drawn uniformly, or no cut.
      if (s.top_k == 1 || s.top_k == 2) {
        CHECK(excess(row, s, weights(s), {}, 3) > 5);
        CHECK(excess(row, s, rest, {}, 3) > 5);
      }
    }
    // Weights that cannot be told from 0 count as the smallest that can.
    std::vector<float> masked = row;
    masked[3] = -kInf;
    masked[1] = -100;
    CHECK(excess(masked, {.top_k = 3}, normalized({0.1, 0, 0.08, 0, 0.2, 0}), {0, 0, 0, 0, 0, 1},
                 3) < 1);
  }

  TEST_CASE("the penalty bears on the tokens of the sequence and of the path, once each") {
    std::vector<float> row = {2.0f, 1.9f, -1.0f, 1.8f, 1.7f, -0.9f};
    Nodes nodes{.vocab = 6};
    nodes.add_path(row, 6, {3, 1, 2, 1}, {0, 0, 5});  // the root's token is not looked at
    nodes.add_path(row, 6, {3}, {});
    CHECK(draw(cpu_table().draw_children, nodes, {.temperature = 0, .penalty = 2.0f}) ==
          Tokens{3, 4, 0, 1, 5, 2, 0, 1, 3, 4, 5, 2});
    // A child of a row without meaning counts for nothing.
    Nodes lost{.vocab = 6};
    lost.add_path(row, 3, {0, kInvalidToken}, {0});
    CHECK(draw(cpu_table().draw_children, lost, {.temperature = 0, .penalty = 2.0f}) ==
          Tokens{1, 3, 4});
  }

  TEST_CASE("a longer list begins with the shorter one; all children are a permutation") {
    for (const Settings& s : kSettings) {
      const std::vector<float> row = random_logits(Nature::masked, 200, 3);
      Nodes few{.vocab = 200}, all{.vocab = 200};
      few.add(row, 7, 1, 2, 3);
      all.add(row, 200, 1, 2, 3);
      const Tokens shorter = draw(cpu_table().draw_children, few, s);
      Tokens longer = draw(cpu_table().draw_children, all, s);
      CHECK(std::equal(shorter.begin(), shorter.end(), longer.begin()));
      std::sort(longer.begin(), longer.end());
      for (int i = 0; i < 200; ++i) CHECK(longer[static_cast<size_t>(i)] == i);
    }
  }

  TEST_CASE("temperature 0 takes the largest, at ties the lower id first, with any cuts") {
    Nodes nodes{.vocab = 6};
    nodes.add({1.0f, 3.0f, -0.0f, 3.0f, 0.0f, 1.0f}, 6);
    CHECK(draw(cpu_table().draw_children, nodes, 0) == Tokens{1, 3, 0, 5, 2, 4});
    CHECK(draw(cpu_table().draw_children, nodes, {.temperature = 0, .top_k = 2, .min_p = 0.5}) ==
          Tokens{1, 3, 0, 5, 2, 4});
  }

  TEST_CASE("at a low temperature the best leads, and what weighs nothing follows at random") {
    Nodes nodes{.vocab = 50};
    std::vector<float> row(50, 0.0f);
    row[17] = 10.0f;
    std::set<int> second;
    for (int i = 0; i < 400; ++i) nodes.add(row, 2, 0, i);
    const Tokens tokens = draw(cpu_table().draw_children, nodes, 0.1f);
    for (size_t i = 0; i < tokens.size(); i += 2) {
      REQUIRE(tokens[i] == 17);
      second.insert(tokens[i + 1]);
    }
    CHECK(second.size() == 49);
  }

  TEST_CASE("each name of the numbers changes them") {
    const std::vector<float> row = random_logits(Nature::flat, 1000, 5);
    Nodes nodes{.vocab = 1000};
    nodes.add(row, 8, 1, 1, 1);
    nodes.add(row, 8, 2, 1, 1);
    nodes.add(row, 8, 1, 2, 1);
    nodes.add(row, 8, 1, 1, 2);
    nodes.add(row, 8, 1, 1, 1);
    const Tokens t = draw(cpu_table().draw_children, nodes, 1);
    const auto list = [&](int i) { return Tokens(t.begin() + 8 * i, t.begin() + 8 * i + 8); };
    for (int i = 1; i < 4; ++i) CHECK(list(i) != list(0));
    CHECK(list(4) == list(0));
  }

  TEST_CASE("a row without meaning gives no children, and its neighbours theirs") {
    for (const float bad : {kNan, kInf, -kNan})
      for (const Settings& s : kSettings) {
        Nodes nodes{.vocab = 100};
        std::vector<float> row(100, 0.5f);
        nodes.add(row, 3);
        row[40] = bad;
        nodes.add(row, 3);
        nodes.add(std::vector<float>(100, -kInf), 1);
        const Tokens tokens = draw(cpu_table().draw_children, nodes, s);
        for (size_t i = 0; i < 3; ++i) CHECK(tokens[i] >= 0);
        for (size_t i = 3; i < 7; ++i) CHECK(tokens[i] == kInvalidToken);
      }
  }
}
