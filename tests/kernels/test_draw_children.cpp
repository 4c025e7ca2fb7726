#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/sample_case.h"
#include "kernels/without_replacement.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Rows of logits and how many children each has; each of a sequence of its own.
struct Nodes {
  int vocab;
  uint32_t stage = 0;
  uint64_t seed = 77;
  std::vector<float> logits = {};
  std::vector<ParentRow> parents = {};
  std::vector<int32_t> sequence = {}, position = {};

  int n_tokens() const {
    return parents.empty() ? 0 : parents.back().first_child + parents.back().n_children;
  }
  void add(const std::vector<float>& row, int n_children, int seq = 0, int pos = 0, int id = 0) {
    logits.insert(logits.end(), row.begin(), row.end());
    parents.push_back({static_cast<int32_t>(sequence.size()), id, n_tokens(), n_children});
    sequence.push_back(seq);
    position.push_back(pos);
  }
  DrawChildrenParams params(float temperature) const {
    return {.tokens = nullptr,
            .logits = logits.data(),
            .parents = parents.data(),
            .numbers = {&seed, sequence.data(), position.data(), stage},
            .n_rows = static_cast<int>(parents.size()),
            .vocab = vocab,
            .temperature = temperature,
            .workspace = nullptr};
  }
};

using Tokens = std::vector<int32_t>;

Tokens draw(DrawChildrenFn* fn, const Nodes& nodes, float temperature) {
  const auto workspace = aligned_bytes(draw_children_workspace_bytes(nodes.vocab));
  Tokens tokens(static_cast<size_t>(nodes.n_tokens()), -2);
  DrawChildrenParams p = nodes.params(temperature);
  p.tokens = tokens.data();
  p.workspace = workspace.get();
  fn(p, {0, p.n_rows});
  return tokens;
}

std::vector<float> logs_of(const std::vector<double>& probability) {
  std::vector<float> x;
  for (const double p : probability) x.push_back(static_cast<float>(std::log(p)));
  return x;
}

}  // namespace

TEST_SUITE("kernels/draw_children") {
  TEST_CASE("equal to the reference on every ISA") {
    for (const Nature nature : kNatures)
      for (const int vocab : {1, 2, 15, 63, 64, 65, 1009, 32000})
        for (const float temperature : {0.0f, 0.05f, 0.6f, 1.0f, 30.0f}) {
          Nodes nodes{.vocab = vocab};
          PhiloxStream stream(8);
          for (const int wanted : {1, 0, 2, 5, 32, 100, 1009}) {
            const auto seed = stream.next();
            nodes.add(random_logits(nature, vocab, seed), std::min(wanted, vocab),
                      static_cast<int>(seed % 5), static_cast<int>(seed % 1000),
                      static_cast<int>(seed % 768));
          }
          const Tokens want = draw(draw_children_ref, nodes, temperature);
          for (const Isa isa : usable_isas()) {
            CAPTURE(isa_name(isa));
            CAPTURE(static_cast<int>(nature));
            CAPTURE(vocab);
            CAPTURE(temperature);
            REQUIRE(draw(cpu_table(isa).draw_children, nodes, temperature) == want);
          }
        }
  }

  TEST_CASE("ordered pairs follow the distribution of sampling without replacement") {
    struct Setting {
      std::vector<double> q;
      float temperature;
      double critical;  // chi-square at p = 0.001, cells - 1 degrees of freedom
    };
    const Setting settings[] = {
        {{0.5, 0.3, 0.2}, 1, 20.52},                      // 6 cells
        {{0.1, 0.45, 0.05, 0.3, 0.1}, 1, 43.82},          // 20
        {{0.9, 0.05, 0.03, 0.02}, 1, 31.26},              // 12
        {{0.3, 0.2, 0.2, 0.15, 0.1, 0.05}, 0.5f, 58.30},  // 30
        {{0.7, 0.3, 0, 0}, 1, 10.83},                     // 01 10 only: 2 cells
        {{1, 0, 0, 0, 0}, 1, 16.27},                      // 01 02 03 04
    };
    for (const Setting& setting : settings) {
      CAPTURE(&setting - settings);
      const auto vocab = static_cast<int>(setting.q.size());
      std::vector<double> q;
      for (const double p : setting.q) q.push_back(std::pow(p, 1 / setting.temperature));
      const double sum = std::accumulate(q.begin(), q.end(), 0.0);
      for (double& p : q) p /= sum;
      constexpr int kDraws = 200000;
      Nodes nodes{.vocab = vocab};
      const std::vector<float> row = logs_of(setting.q);
      // Fresh by sequence, position and node alike.
      for (int i = 0; i < kDraws; ++i) nodes.add(row, 2, i % 7, i / 7 % 1000, i / 7000);
      const Tokens tokens = draw(cpu_table().draw_children, nodes, setting.temperature);
      std::vector<int> count(static_cast<size_t>(vocab * vocab));
      for (size_t i = 0; i < tokens.size(); i += 2)
        ++count[static_cast<size_t>(tokens[i] * vocab + tokens[i + 1])];
      double chi2 = 0;
      for (int a = 0; a < vocab; ++a)
        for (int b = 0; b < vocab; ++b) {
          const double expected = a == b ? 0 : kDraws * chance_of(q, {a, b});
          const int seen = count[static_cast<size_t>(a * vocab + b)];
          if (expected == 0) REQUIRE(seen == 0);
          if (expected > 0) chi2 += (seen - expected) * (seen - expected) / expected;
        }
      CHECK(chi2 < setting.critical);
    }
  }

  TEST_CASE("a longer list begins with the shorter one; all children are a permutation") {
    for (const float temperature : {0.0f, 0.3f, 1.0f}) {
      const std::vector<float> row = random_logits(Nature::masked, 200, 3);
      Nodes few{.vocab = 200}, all{.vocab = 200};
      few.add(row, 7, 1, 2, 3);
      all.add(row, 200, 1, 2, 3);
      const Tokens shorter = draw(cpu_table().draw_children, few, temperature);
      Tokens longer = draw(cpu_table().draw_children, all, temperature);
      CHECK(std::equal(shorter.begin(), shorter.end(), longer.begin()));
      std::sort(longer.begin(), longer.end());
      for (int i = 0; i < 200; ++i) CHECK(longer[static_cast<size_t>(i)] == i);
    }
  }

  TEST_CASE("temperature 0 takes the largest, at ties the lower id first") {
    Nodes nodes{.vocab = 6};
    nodes.add({1.0f, 3.0f, -0.0f, 3.0f, 0.0f, 1.0f}, 6);
    CHECK(draw(cpu_table().draw_children, nodes, 0) == Tokens{1, 3, 0, 5, 2, 4});
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
      for (const float temperature : {0.0f, 1.0f}) {
        Nodes nodes{.vocab = 100};
        std::vector<float> row(100, 0.5f);
        nodes.add(row, 3);
        row[40] = bad;
        nodes.add(row, 3);
        nodes.add(std::vector<float>(100, -kInf), 1);
        const Tokens tokens = draw(cpu_table().draw_children, nodes, temperature);
        for (size_t i = 0; i < 3; ++i) CHECK(tokens[i] >= 0);
        for (size_t i = 3; i < 7; ++i) CHECK(tokens[i] == kInvalidToken);
      }
  }
}
