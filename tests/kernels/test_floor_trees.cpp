// Verification by floors: which nodes pass, which path is taken, and what comes after it.
#include "kernels/tree_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr AcceptBy kRules[] = {AcceptBy::floor, AcceptBy::floor_or_argmax, AcceptBy::typical};

TreeResult by_floor(const TreeCase& c, AcceptBy by, const FloorRule& floor, float temperature = 0) {
  const KeepRule rule = keep_rule({.temperature = temperature});
  return verify(cpu_table().verify_trees, c, rule, rule, by, kAllDrawn, false, floor);
}

/// A tree over four tokens whose rows have these probabilities at temperature 1.
struct Node {
  int32_t token;
  std::vector<int32_t> children;  // numbers of nodes, in a row
  std::array<double, 4> after;
};
TreeCase tree_case(const std::vector<Node>& nodes) {
  TreeCase c{.vocab = 4};
  for (const Node& node : nodes) {
    c.tokens.push_back(node.token);
    c.first_child.push_back(node.children.empty() ? -1 : node.children.front());
    c.n_children.push_back(static_cast<int32_t>(node.children.size()));
    c.target_row.push_back(static_cast<int32_t>(c.target_row.size()));
    c.draft_row.push_back(0);
    for (const double p : node.after) c.target.push_back(static_cast<float>(std::log(p)));
  }
  c.node_begin.push_back(static_cast<int32_t>(nodes.size()));
  c.seen_begin.push_back(0);
  c.sequence = {3};
  c.position = {70};
  return c;
}

using Path = std::vector<int32_t>;

/// A chain of tokens 1, 2, 3 after a root.
TreeCase chain(const std::array<std::array<double, 4>, 4>& after) {
  return tree_case({{0, {1}, after[0]}, {1, {2}, after[1]}, {2, {3}, after[2]}, {3, {}, after[3]}});
}

}  // namespace

TEST_SUITE("kernels/floor_trees") {
  TEST_CASE("equal to the reference, and on every ISA bit for bit") {
    int n_accepted = 0, n_trees = 0;
    for (const Nature nature : kNatures)
      for (const int vocab : {2, 7, 65, 1009})
        for (const Settings& s : kSettings)
          for (const AcceptBy by : kRules)
            for (const FloorRule& floor :
                 {FloorRule{},
                  FloorRule{.probability = 0.003, .temperature = 1.3f, .delta = 0.05}}) {
              PhiloxStream stream(11);
              TreeCase c{.vocab = vocab};
              for (int b = 0; b < 3; ++b)
                add_tree(c, stream, nature, keep_rule({.temperature = 0.8f}));
              const auto run = [&](VerifyTreesFn* fn) {
                return verify(fn, c, keep_rule(s), keep_rule(s), by, kAllDrawn, false, floor);
              };
              const TreeResult want = run(verify_trees_ref),
                               scalar = run(cpu_table(Isa::scalar).verify_trees);
              CAPTURE(static_cast<int>(nature));
              CAPTURE(vocab);
              CAPTURE(&s - kSettings);
              CAPTURE(static_cast<int>(by));
              REQUIRE(scalar.path == want.path);
              REQUIRE(scalar.bonus == want.bonus);
              require_close_logprobs(scalar, want);
              for (const Isa isa : usable_isas())
                REQUIRE(run(cpu_table(isa).verify_trees) == scalar);
              n_trees += c.n_seqs();
              for (const auto& path : want.path) n_accepted += static_cast<int>(path.size());
            }
    CHECK(n_accepted > n_trees / 2);
  }

  TEST_CASE("a chain is taken up to the first token below the floor; the next is its row's") {
    const std::array<double, 4> sure[] = {{.1, .7, .1, .1}, {.1, .1, .7, .1}, {.1, .1, .1, .7}};
    const std::array<double, 4> last = {.05, .15, .7, .1}, other = {.6, .2, .1, .1};
    const FloorRule floor{.probability = 0.5, .temperature = 1};
    // All of it: what is likeliest after the last node.
    TreeResult r = by_floor(chain({sure[0], sure[1], sure[2], last}), AcceptBy::floor, floor);
    CHECK(r.path[0] == Path{1, 2, 3});
    CHECK(r.bonus[0] == 2);
    // Part of it: the row of the node where it ends, not of that after it.
    r = by_floor(chain({sure[0], other, sure[2], last}), AcceptBy::floor, floor);
    CHECK(r.path[0] == Path{1});
    CHECK(r.bonus[0] == 0);
    // Nothing: the root's.
    r = by_floor(chain({other, sure[1], sure[2], last}), AcceptBy::floor, floor);
    CHECK(r.path[0] == Path{});
    CHECK(r.bonus[0] == 0);
  }

  TEST_CASE("the longest path wins, of equals the first, and others are left") {
    const std::array<double, 4> even = {.4, .4, .1, .1}, none = {.05, .05, .05, .85};
    const FloorRule floor{.probability = 0.3, .temperature = 1};
    // 1 and 2 pass; below 1 nothing does, below 2 token 0.
    TreeCase c = tree_case(
        {{0, {1, 2}, even}, {0, {3}, none}, {1, {4}, even}, {1, {}, even}, {0, {}, none}});
    TreeResult r = by_floor(c, AcceptBy::floor, floor);
    CHECK(r.path[0] == Path{2, 4});
    CHECK(r.bonus[0] == 3);
    // Both as long.
    c = tree_case(
        {{0, {1, 2}, even}, {0, {3}, even}, {1, {4}, even}, {1, {}, even}, {0, {}, none}});
    CHECK(by_floor(c, AcceptBy::floor, floor).path[0] == Path{1, 3});
  }

  TEST_CASE("the likeliest token passes by floor_or_argmax however unlikely; ties by the lowest") {
    const std::array<double, 4> flat = {.24, .26, .25, .25}, tied = {.2, .3, .3, .2};
    const FloorRule floor{.probability = 0.5, .temperature = 1};
    const auto length = [&](const std::array<double, 4>& row, int32_t token, AcceptBy by) {
      const TreeCase c = tree_case({{0, {1}, row}, {token, {}, flat}});
      return by_floor(c, by, floor).path[0].size();
    };
    CHECK(length(flat, 1, AcceptBy::floor) == 0);
    CHECK(length(flat, 1, AcceptBy::floor_or_argmax) == 1);
    CHECK(length(flat, 2, AcceptBy::floor_or_argmax) == 0);
    CHECK(length(tied, 1, AcceptBy::floor_or_argmax) == 1);
    CHECK(length(tied, 2, AcceptBy::floor_or_argmax) == 0);
  }

  TEST_CASE("typical lowers the floor where the row is flat, and only there") {
    const std::array<double, 4> flat = {.25, .25, .25, .25};  // e^-H = 1/4
    const std::array<double, 4> sharp = {.9, .05, .03, .02};  // e^-H = .65
    const auto passes = [&](const std::array<double, 4>& row, int32_t token, double probability,
                            double delta) {
      const TreeCase c = tree_case({{0, {1}, row}, {token, {}, flat}});
      const FloorRule floor{.probability = probability, .temperature = 1, .delta = delta};
      return by_floor(c, AcceptBy::typical, floor).path[0].size() == 1;
    };
    CHECK(passes(flat, 2, 0.5, 0.9));
    CHECK_FALSE(passes(flat, 2, 0.5, 1.1));
    CHECK_FALSE(passes(sharp, 1, 0.1, 0.3));
    CHECK(passes(sharp, 1, 0.04, 0.3));  // probability is the smaller
  }

  TEST_CASE("floors of 0 take the deepest node, floors above 1 none; higher ones never more") {
    PhiloxStream stream(4);
    TreeCase c{.vocab = 300};
    for (int b = 0; b < 40; ++b) add_tree(c, stream, Nature::normal, keep_rule({}));
    size_t before = 0;
    for (const double probability : {2.0, 0.5, 0.1, 0.02, 1e-4, 0.0}) {
      CAPTURE(probability);
      const TreeResult r = by_floor(c, AcceptBy::floor, {.probability = probability}, 0.7f);
      size_t n = 0;
      for (const Path& path : r.path) n += path.size();
      CHECK(n >= before);
      if (probability > 1) CHECK(n == 0);
      before = n;
    }
    size_t deepest = 0;
    for (int b = 0; b < 40; ++b) {
      const int begin = c.node_begin[static_cast<size_t>(b)];
      std::vector<size_t> depth(1);
      for (size_t i = 0; i < depth.size(); ++i)
        for (int k = 0; k < c.n_children[static_cast<size_t>(begin) + i]; ++k)
          depth.push_back(depth[i] + 1);
      deepest += *std::max_element(depth.begin(), depth.end());
    }
    CHECK(before == deepest);
  }

  TEST_CASE("a row without meaning passes nothing, and gives no token") {
    const std::array<double, 4> sure = {.1, .7, .1, .1};
    const FloorRule none{.probability = 0, .temperature = 1};
    for (const AcceptBy by : kRules)
      for (const float bad : {NAN, INFINITY}) {
        TreeCase c = chain({sure, sure, sure, sure});
        c.target[5] = bad;  // of node 1
        const TreeResult r = by_floor(c, by, none);
        CHECK(r.path[0] == Path{1});
        CHECK(r.bonus[0] == kInvalidToken);
      }
  }
}
