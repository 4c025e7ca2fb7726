// Beams: which tokens after which nodes go on, in which order, and what their rows see.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "kernels/beam_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Of a row in doubles: its tokens, likeliest first, and ln softmax.
struct WantedRow {
  std::vector<int32_t> order;
  std::vector<double> log_p;

  WantedRow(const float* x, int vocab, double temperature)
      : order(static_cast<size_t>(vocab)), log_p(static_cast<size_t>(vocab)) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
    const double max = x[order[0]];
    double sum = 0;
    for (int i = 0; i < vocab; ++i) sum += std::exp((x[i] - max) / temperature);
    for (int i = 0; i < vocab; ++i)
      log_p[static_cast<size_t>(i)] = (x[i] - max) / temperature - std::log(sum);
  }
};

/// A level of one sequence against the reference: those that are kept are the best.
/// before   scores of the nodes above
void check_level(const BeamCase& c, int b, int level, const std::vector<float>& rows,
                 const std::vector<double>& before) {
  constexpr double kNear = 2e-5;  // the integers of weights, to 2e-7 each, and floats of logits
  const int n_above = c.n_above(level), above = c.first_of(level - 1), begin = c.first_of(level);
  double worst_kept = kInf, best_left = -kInf;
  int node = begin;
  for (int i = 0; i < n_above; ++i) {
    const WantedRow row(
        rows.data() + static_cast<size_t>(b * n_above + i) * static_cast<size_t>(c.vocab), c.vocab,
        c.temperature);
    const double start = level == 1 ? 0 : before[static_cast<size_t>(b * c.width + i)];
    const int n = c.n_children[c.at(b, above + i)];
    if (n > 0) REQUIRE(c.first_child[c.at(b, above + i)] == node);
    for (int rank = 0; rank < c.width; ++rank) {
      const int32_t token = row.order[static_cast<size_t>(rank)];
      const double score = start + row.log_p[static_cast<size_t>(token)];
      if (rank >= n) {
        best_left = std::max(best_left, score);
        continue;
      }
      REQUIRE(c.tokens[c.at(b, node)] == token);
      REQUIRE(c.parent[c.at(b, node)] == above + i);
      const double got = c.scores[static_cast<size_t>(b * c.width + node - begin)];
      if (score == -kInf)
        REQUIRE(got == -kInf);
      else
        REQUIRE(got == doctest::Approx(score).epsilon(kNear));
      worst_kept = std::min(worst_kept, score);
      ++node;
    }
  }
  REQUIRE(node == begin + c.width);
  if (best_left > -kInf) REQUIRE(worst_kept >= best_left - kNear * (1 + std::abs(best_left)));
}

/// The masks of a level say what its nodes' parents do.
void check_masks(const BeamCase& c, int b, int level) {
  const auto words = static_cast<size_t>(c.words()), wide = static_cast<size_t>(c.next_words());
  for (int node = c.first_of(level); node < c.first_of(level) + c.width; ++node) {
    std::vector<uint64_t> path(words), shifted(wide);
    const int shift = c.shift[static_cast<size_t>(b)];
    for (int i = 0; i < shift; ++i) shifted[0] |= uint64_t{1} << i;
    for (int v = node; v >= 0; v = v == 0 ? -1 : c.parent[c.at(b, v)]) {
      path[static_cast<size_t>(v / 64)] |= uint64_t{1} << (v % 64);
      shifted[static_cast<size_t>((v + shift) / 64)] |= uint64_t{1} << ((v + shift) % 64);
    }
    const uint64_t* const got = &c.whole[c.at(b, node) * words];
    REQUIRE(std::equal(path.begin(), path.end(), got));
    const size_t row = static_cast<size_t>(b * c.width + node - c.first_of(level));
    REQUIRE(std::equal(shifted.begin(), shifted.end(), &c.next[row * wide]));
  }
}

GrowBeamsFn* body() { return cpu_table().grow_beams; }

/// One level after two nodes of scores 0, of a sequence of two beams over four tokens.
BeamCase second_level(const std::vector<float>& rows, std::vector<double> scores = {0, 0}) {
  BeamCase c(4, 2, 2, 1);
  c.temperature = 1;
  c.grow(body(), 1, {3, 2, 1, 0});
  c.scores = std::move(scores);
  c.grow(body(), 2, rows);
  return c;
}
std::vector<int32_t> last_tokens(const BeamCase& c) { return {c.tokens[3], c.tokens[4]}; }
std::vector<int32_t> last_parents(const BeamCase& c) { return {c.parent[3], c.parent[4]}; }

using Two = std::vector<int32_t>;

}  // namespace

TEST_SUITE("kernels/grow_beams") {
  TEST_CASE("the best of all go on, as in doubles; masks follow; on every ISA bit for bit") {
    for (const int vocab : {8, 65, 1009, 20011})
      for (int width = 1; width <= kMaxBeams; ++width)
        for (const float temperature : {0.6f, 1.0f}) {
          CAPTURE(vocab);
          CAPTURE(width);
          BeamCase c(vocab, width, vocab > 2000 ? 3 : 10, 3);
          c.temperature = temperature;
          for (int level = 1; level <= c.gamma; ++level) {
            CAPTURE(level);
            const std::vector<float> rows = c.logits(level, static_cast<uint32_t>(vocab + width));
            const std::vector<double> before = c.scores;
            for (const Isa isa : usable_isas()) {
              BeamCase other = c;
              other.grow(cpu_table(isa).grow_beams, level, rows);
              BeamCase scalar = c;
              scalar.grow(cpu_table(Isa::scalar).grow_beams, level, rows);
              REQUIRE(other.tokens == scalar.tokens);
              REQUIRE(other.parent == scalar.parent);
              REQUIRE(other.scores == scalar.scores);
            }
            c.grow(body(), level, rows);
            for (int b = 0; b < c.n_seqs; ++b) {
              check_level(c, b, level, rows, before);
              check_masks(c, b, level);
            }
          }
        }
  }

  TEST_CASE("a sequence grows as it does alone") {
    constexpr int kGamma = 4;
    BeamCase all(300, 5, kGamma, 3);
    std::vector<BeamCase> alone(3, BeamCase(300, 5, kGamma, 1));
    for (int level = 1; level <= kGamma; ++level) {
      const std::vector<float> rows = all.logits(level, 5);
      all.grow(body(), level, rows);
      for (int b = 0; b < 3; ++b) {
        const auto n = static_cast<ptrdiff_t>(rows.size() / 3);
        alone[static_cast<size_t>(b)].grow(body(), level,
                                           {rows.begin() + b * n, rows.begin() + (b + 1) * n});
      }
    }
    for (int b = 0; b < 3; ++b) {
      const BeamCase& one = alone[static_cast<size_t>(b)];
      const auto from = all.tokens.begin() + b * all.n_nodes();
      CHECK(std::equal(one.tokens.begin(), one.tokens.end(), from));
      CHECK(std::equal(one.parent.begin() + 1, one.parent.end(),
                       all.parent.begin() + b * all.n_nodes() + 1));
      CHECK(std::equal(one.scores.begin(), one.scores.end(), all.scores.begin() + b * 5));
    }
  }

  TEST_CASE("of equal scores those after the lower node go on, then the likelier, then lower ids") {
    // Both rows alike: the first node's best and the second's.
    BeamCase c = second_level({5, 1, 0, 0, 5, 1, 0, 0});
    CHECK(last_tokens(c) == Two{0, 0});
    CHECK(last_parents(c) == Two{1, 2});
    // All tokens alike: both after the first node, the lowest ids.
    c = second_level({2, 2, 2, 2, 2, 2, 2, 2});
    CHECK(last_tokens(c) == Two{0, 1});
    CHECK(last_parents(c) == Two{1, 1});
    CHECK(c.n_children[1] == 2);
    CHECK(c.n_children[2] == 0);
    // The second node's path is so much better that both go on after it.
    c = second_level({5, 1, 0, 0, 1, 0, 5, 5}, {-20, -1});
    CHECK(last_tokens(c) == Two{2, 3});
    CHECK(last_parents(c) == Two{2, 2});
    CHECK(c.n_children[1] == 0);
    CHECK(c.first_child[2] == 3);
  }

  TEST_CASE("few finite logits: the others come after them, by the lowest ids") {
    BeamCase c = second_level({-kInf, -kInf, 1, -kInf, -kInf, 3, -kInf, -kInf}, {-1, -2});
    CHECK(last_tokens(c) == Two{2, 1});
    CHECK(last_parents(c) == Two{1, 2});
    CHECK(c.scores == std::vector<double>{-1, -2});
    BeamCase root(4, 3, 1, 1);
    root.grow(body(), 1, {-kInf, -kInf, 1, -kInf});
    CHECK(root.tokens == std::vector<int32_t>{-7, 2, 0, 1});
    CHECK(root.scores == std::vector<double>{0, -kInf, -kInf});
  }

  TEST_CASE("a row without meaning: nothing goes on in its sequence, all does in others") {
    for (const float bad : {kNan, -kNan, kInf, -kInf}) {
      BeamCase c(4, 2, 2, 2);
      c.grow(body(), 1, {3, 2, 1, 0, 0, 1, 2, 3});
      std::vector<float> rows = {1, 2, 3, 4, 4, 3, 2, 1, 1, 2, 3, 4, 4, 3, 2, 1};
      if (bad == -kInf)
        std::fill(rows.begin() + 4, rows.begin() + 8, bad);
      else
        rows[6] = bad;
      c.grow(body(), 2, rows);
      CHECK(Two{c.tokens[3], c.tokens[4]} == Two{kInvalidToken, kInvalidToken});
      CHECK(Two{c.n_children[1], c.n_children[2]} == Two{0, 0});
      CHECK(c.n_children[c.at(1, 1)] + c.n_children[c.at(1, 2)] == 2);
      CHECK(c.tokens[c.at(1, 3)] == 3);
    }
  }

  TEST_CASE("a level that is closed before it grows stays so") {
    BeamCase c(8, 3, 2, 2);
    c.n_children[c.at(1, 0)] = 0;
    c.grow(body(), 1, c.logits(1, 3));
    CHECK(c.n_children[c.at(0, 0)] == 3);
    CHECK(c.n_children[c.at(1, 0)] == 0);
    CHECK(c.tokens[c.at(1, 1)] >= 0);
  }
}
