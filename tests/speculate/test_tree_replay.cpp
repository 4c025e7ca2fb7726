#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <utility>

#include "error_text.h"
#include "kernels/tree/ref_distributions.h"
#include "kernels/tree_case.h"
#include "speculate/tree/shape_search.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::speculate;
using namespace tandem::test;

namespace {

constexpr int kVocab = 5;

Distribution<double> random_row(PhiloxStream& stream, bool has_zero) {
  Distribution<double> row(kVocab);
  double sum = 0;
  for (double& p : row) sum += p = std::pow(stream.uniform(), 3);
  if (has_zero) sum -= std::exchange(row[stream.below(kVocab)], 0);
  for (double& p : row) p /= sum;
  return row;
}

/// A drawn tree with its distributions, as rules_ref.h reads it; decide() goes through all coins.
class DrawnTree {
 public:
  DrawnTree(const TokenTree& tree, uint32_t seed) : tree_(tree), shape_(tree.n_children) {
    PhiloxStream stream(seed);
    token_.resize(tree.parent.size());
    for (int v = 0; v < tree.size(); ++v) {
      target_.push_back(random_row(stream, seed % 2 == 1));
      draft_.push_back(random_row(stream, false));
      for (int i = 0; i < tree.n_children[static_cast<size_t>(v)]; ++i)
        token_[static_cast<size_t>(child(v, i))] = drawn(proposal(v, i), stream.uniform());
    }
  }

  int n_children(int node) const { return shape_[static_cast<size_t>(node)]; }
  int child(int node, int i) const { return tree_.first_child[static_cast<size_t>(node)] + i; }
  int token(int node) const { return token_[static_cast<size_t>(node)]; }
  bool is_nothing(double x) const { return x < 1e-12; }
  Distribution<double> target(int node) const { return target_[static_cast<size_t>(node)]; }
  Distribution<double> proposal(int node, int i) const {
    Distribution<double> d = draft_[static_cast<size_t>(node)];
    for (int j = 0; j < i; ++j) d[static_cast<size_t>(token(child(node, j)))] = 0;
    double sum = 0;
    for (const double p : d) sum += p;
    for (double& p : d) p /= sum;
    return d;
  }
  bool decide(int, double p) {
    if (p <= 0 || p >= 1) return p >= 1;
    if (n_decided_ == script_.size()) script_.push_back(true);
    const bool accepts = script_[n_decided_++];
    chance_ *= accepts ? p : 1 - p;
    return accepts;
  }

  /// Expected tokens of a part of the tree: over all ways that the coins may fall.
  double enumerate(const SubShape& shape, AcceptBy rule) {
    shape_ = shape;
    script_.clear();
    double tokens = 0;
    for (;;) {
      n_decided_ = 0;
      chance_ = 1;
      const Ending<double> end = rule == AcceptBy::sequoia ? verify_by_nodes<double>(*this)
                                                           : verify_by_sequences<double>(*this);
      tokens += chance_ * (1 + static_cast<double>(end.path.size()));
      while (!script_.empty() && !script_.back()) script_.pop_back();
      if (script_.empty()) break;
      script_.back() = false;
    }
    shape_ = tree_.n_children;
    return tokens;
  }

 private:
  static int drawn(const Distribution<double>& d, double uniform) {
    int token = -1;
    for (size_t x = 0; x < d.size(); ++x) {
      if (d[x] <= 0) continue;
      token = static_cast<int>(x);
      if ((uniform -= d[x]) < 0) break;
    }
    return token;
  }

  const TokenTree& tree_;
  std::vector<int> shape_, token_;
  std::vector<Distribution<double>> target_, draft_;
  std::vector<bool> script_;
  size_t n_decided_ = 0;
  double chance_ = 1;
};

TokenTree uneven_tree() {
  return tree_of_children(std::vector{3, 2, 1, 0, 1, 1, 1, 0, 0, 0}, "test");
}

RecordedRun some_run() {
  RecordedRun run{.target = "big",
                  .draft = "small",
                  .target_fingerprint = "a1",
                  .draft_fingerprint = "b2",
                  .verify = "sequoia",
                  .sampling = {},
                  .seed = 3};
  run.sampling.temperature = 0.6f;
  run.sampling.top_p = 0.9;
  return run;
}

TreeRounds random_rounds(const TokenTree& tree, int n) {
  TreeRounds rounds = empty_rounds(tree, some_run());
  for (int r = 0; r < n; ++r) {
    const DrawnTree drawn(tree, static_cast<uint32_t>(r));
    rounds.add(r / 4, node_chances(drawn, tree.size()));
  }
  return rounds;
}

/// Calls visit with each part of the tree.
void for_each_part(const TokenTree& tree, const std::function<void(const SubShape&)>& visit,
                   SubShape shape = {}, int node = 0) {
  shape.resize(tree.parent.size());
  if (node == tree.size()) return visit(shape);
  const auto v = static_cast<size_t>(node);
  const bool is_in = node == 0 || shape[static_cast<size_t>(tree.parent[v])] > tree.child_index[v];
  for (int n = 0; n <= (is_in ? tree.n_children[v] : 0); ++n) {
    shape[v] = n;
    for_each_part(tree, visit, shape, node + 1);
  }
}

}  // namespace

TEST_SUITE("speculate/tree_replay") {
  TEST_CASE("a part's tokens are those of all coins, by both rules") {
    const TokenTree tree = uneven_tree();
    int n_parts = 0;
    for (int seed = 0; seed < 4; ++seed) {
      DrawnTree drawn(tree, static_cast<uint32_t>(seed));
      TreeRounds rounds = empty_rounds(tree, some_run());
      rounds.add(0, node_chances(drawn, tree.size()));
      for (const AcceptBy rule : {AcceptBy::sequoia, AcceptBy::traversal}) {
        const TreeReplay replay(rounds, rule);
        for_each_part(tree, [&](const SubShape& shape) {
          REQUIRE(replay.tokens(shape) ==
                  doctest::Approx(drawn.enumerate(shape, rule)).epsilon(1e-9));
          ++n_parts;
        });
      }
    }
    CHECK(n_parts == 2 * 4 * 50);
  }

  TEST_CASE("rules agree at depth 1, and block is traversal") {
    const TokenTree tree = uneven_tree();
    const TreeRounds rounds = random_rounds(tree, 400);
    const TreeReplay nodes(rounds, AcceptBy::sequoia), sequences(rounds, AcceptBy::traversal),
        block(rounds, AcceptBy::block);
    SubShape star(tree.parent.size());
    for (star[0] = 0; star[0] <= 3; ++star[0])
      CHECK(nodes.tokens(star) == doctest::Approx(sequences.tokens(star)).epsilon(1e-12));
    const auto chain = shape_in(tree, chain_tree(4));
    REQUIRE(chain);
    CHECK(block.tokens(*chain) == sequences.tokens(*chain));
    CHECK(sequences.tokens(*chain) > nodes.tokens(*chain));
  }

  TEST_CASE("the mean of verifications with fresh coins") {
    constexpr int kRuns = 4000;
    const KeepRule target{1.1f, 0.8f, 0, 0.95, 0}, draft{1.1f, 0.8f, 0, 0.95, 0};
    PhiloxStream stream(5);
    TreeCase one{.vocab = 37};
    add_tree(one, stream, kNatures[0], draft, {3, 2, 1, 1, 1, 1, 0, 0, 0, 0});
    TreeCase many = one;
    many.node_begin = {0};
    many.seen_begin = {0};
    many.tokens.clear(), many.first_child.clear(), many.n_children.clear();
    many.target_row.clear(), many.draft_row.clear(), many.seen.clear();
    many.sequence.clear(), many.position.clear();
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (int i = 0; i < kRuns; ++i) {
      append(many.tokens, one.tokens), append(many.first_child, one.first_child);
      append(many.n_children, one.n_children), append(many.target_row, one.target_row);
      append(many.draft_row, one.draft_row), append(many.seen, one.seen);
      many.node_begin.push_back(static_cast<int32_t>(many.tokens.size()));
      many.seen_begin.push_back(static_cast<int32_t>(many.seen.size()));
      many.sequence.push_back(i);
      many.position.push_back(7);
    }
    const VerifyTreesParams params{.path = nullptr,
                                   .n_accepted = nullptr,
                                   .bonus = nullptr,
                                   .logprobs = nullptr,
                                   .n_rounded = nullptr,
                                   .node_begin = one.node_begin.data(),
                                   .tokens = one.tokens.data(),
                                   .first_child = one.first_child.data(),
                                   .n_children = one.n_children.data(),
                                   .target_row = one.target_row.data(),
                                   .draft_row = one.draft_row.data(),
                                   .target_logits = one.target.data(),
                                   .draft_logits = one.draft.data(),
                                   .seen = one.seen.data(),
                                   .seen_begin = one.seen_begin.data(),
                                   .numbers = one.numbers(),
                                   .n_seqs = 1,
                                   .vocab = one.vocab,
                                   .target = target,
                                   .draft = draft,
                                   .accept_by = AcceptBy::traversal,
                                   .workspace = nullptr};
    const RefDistributions drawn(params, 0);
    const TokenTree tree =
        tree_of_children(std::vector<int>(one.n_children.begin(), one.n_children.end()), "test");
    TreeRounds rounds = empty_rounds(tree, some_run());
    rounds.add(0, node_chances(drawn, tree.size()));
    for (const AcceptBy rule : {AcceptBy::sequoia, AcceptBy::traversal}) {
      const TreeResult result = verify(cpu_table().verify_trees, many, target, draft, rule);
      double sum = 0, squares = 0;
      for (const auto& path : result.path) {
        const double tokens = 1 + static_cast<double>(path.size());
        sum += tokens, squares += tokens * tokens;
      }
      const double mean = sum / kRuns,
                   error = std::sqrt((squares / kRuns - mean * mean) / (kRuns - 1));
      CAPTURE(static_cast<int>(rule));
      const double replayed = TreeReplay(rounds, rule).tokens(tree.n_children);
      CHECK(std::abs(mean - replayed) <= 4 * error);
      CHECK(error < 0.05);
      CHECK(replayed > 1);
    }
  }

  TEST_CASE("shapes and parts of a tree are each other's") {
    const TokenTree tree = uneven_tree();
    for_each_part(tree, [&](const SubShape& shape) {
      const TokenTree part = tree_of(shape, tree);
      REQUIRE(part.size() == size_of(shape));
      REQUIRE(shape_in(tree, part) == shape);
    });
    CHECK_FALSE(shape_in(tree, chain_tree(5)));
  }

  TEST_CASE("climbing never lowers the tokens, and finds the best part of a small tree") {
    const TokenTree tree = uneven_tree();
    const TreeRounds rounds = random_rounds(tree, 48);
    // All texts alike, so that texts held out agree with those searched.
    TreeRounds same = empty_rounds(tree, some_run());
    for (int text = 0; text < 3; ++text)
      for (size_t r = 0; r < rounds.size(); ++r) {
        std::vector<NodeChances> chances;
        for (size_t v = 0; v < tree.parent.size(); ++v)
          chances.push_back(
              {rounds.reach[v][r], rounds.rest[v][r], rounds.take[v][r], rounds.draft[v][r]});
        same.add(text, chances);
      }
    for (const AcceptBy rule : {AcceptBy::sequoia, AcceptBy::traversal}) {
      const ShapeSearch search(same, rule, "test");
      std::map<int, double> best;
      for_each_part(tree, [&](const SubShape& shape) {
        double& most = best[size_of(shape)];
        most = std::max(most, search.all().tokens(shape));
        if (size_of(shape) < 2) return;
        const SubShape climbed = search.climb(shape, {});
        REQUIRE(size_of(climbed) == size_of(shape));
        REQUIRE(search.all().tokens(climbed) >= search.all().tokens(shape) - 1e-12);
      });
      for (int size = 2; size <= tree.size(); ++size) {
        CAPTURE(size);
        const FoundShape found = search.find(size, {});
        CHECK(search.all().tokens(found.best) == doctest::Approx(best[size]).epsilon(1e-12));
        CHECK(found.best_tokens.mean >= found.start_tokens.mean);
      }
    }
  }

  TEST_CASE("bounds of levels and branches") {
    const TokenTree tree = uneven_tree();
    const ShapeSearch search(random_rounds(tree, 24), AcceptBy::traversal, "test");
    CHECK(search.largest({}) == 10);
    CHECK(search.largest({.max_levels = 2}) == 4);
    CHECK(search.largest({.max_branch = 1}) == 4);
    const FoundShape found = search.find(5, {.max_levels = 3, .max_branch = 2});
    const TokenTree best = tree_of(found.best, tree);
    CHECK(best.size() == 5);
    CHECK(best.levels() <= 3);
    CHECK(std::ranges::max(best.n_children) <= 2);
  }

  TEST_CASE("a file gives back the record, and damage shows") {
    const TemporaryFolder folder;
    const TokenTree tree = uneven_tree();
    const TreeRounds rounds = random_rounds(tree, 12);
    write_tree_rounds(folder / "r", rounds);
    const TreeRounds read = read_tree_rounds(folder / "r");
    CHECK(read.tree.n_children == tree.n_children);
    CHECK(read.text == rounds.text);
    CHECK(read.run.sampling == rounds.run.sampling);
    CHECK(read.run.draft_fingerprint == "b2");
    CHECK(read.run.seed == 3);
    for (size_t v = 0; v < tree.parent.size(); ++v)
      for (size_t r = 0; r < rounds.size(); ++r) {
        REQUIRE(read.reach[v][r] == static_cast<float>(rounds.reach[v][r]));
        REQUIRE(read.rest[v][r] == static_cast<float>(rounds.rest[v][r]));
        REQUIRE(read.take[v][r] == static_cast<float>(rounds.take[v][r]));
        REQUIRE(read.draft[v][r] == static_cast<float>(rounds.draft[v][r]));
      }

    const std::string bytes = io::read_file(folder / "r");
    const auto text_of = [&](const std::string& damaged) {
      std::ofstream(folder / "d", std::ios::binary) << damaged;
      return input_error_text([&] { read_tree_rounds(folder / "d"); });
    };
    CHECK(text_of(bytes.substr(0, bytes.size() / 2)).find("d") != std::string::npos);
    std::string nan = bytes;
    std::fill(nan.end() - 4, nan.end(), '\xff');
    CHECK(text_of(nan).find("expected 0 to 1") != std::string::npos);
    TreeRounds none = empty_rounds(tree, some_run());
    write_tree_rounds(folder / "n", none);
    CHECK_THROWS_AS(read_tree_rounds(folder / "n"), Error);
  }

  TEST_CASE("another run is refused") {
    const RecordedRun recorded = some_run();
    CHECK_NOTHROW(check_same_run(recorded, recorded, "file"));
    RecordedRun run = recorded;
    run.draft = "other";
    run.draft_fingerprint = "c3";
    CHECK(input_error_text([&] {
            check_same_run(recorded, run, "file");
          }).find("was recorded with the draft") != std::string::npos);
    run = recorded;
    run.draft_fingerprint.clear();
    run.sampling.temperature = 1;
    CHECK(input_error_text([&] {
            check_same_run(recorded, run, "file");
          }).find("was recorded at temperature 0.6, this run samples at 1") != std::string::npos);
  }
}
