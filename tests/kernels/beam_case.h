#pragma once
// Levels of beams over random logits, for the tests of CPU and GPU.
#include "kernels/sample_case.h"
#include "kernels/tree/grow_beams.h"

namespace tandem::test {

/// Trees of some sequences as their levels grow, with the masks of a forward over all nodes and of
/// one over the level, where `shift` rows of a chain come before the root.
struct BeamCase {
  int vocab = 0, width = 1, gamma = 1, n_seqs = 1;
  float temperature = 0.6f;
  std::vector<int32_t> shift = {};  // [n_seqs]
  std::vector<int32_t> tokens = {}, parent = {}, first_child = {}, n_children = {};
  std::vector<double> scores = {};
  std::vector<uint64_t> whole = {}, next = {};
  std::vector<int32_t> tentative = {};  // of the level's forward

  BeamCase(int n_tokens, int w, int g, int seqs)
      : vocab(n_tokens), width(w), gamma(g), n_seqs(seqs) {
    const auto nodes = static_cast<size_t>(n_seqs * n_nodes());
    for (int b = 0; b < n_seqs; ++b) shift.push_back(b % 3);
    tokens.assign(nodes, -7);
    parent.assign(nodes, -7);
    first_child.assign(nodes, -7);
    n_children.assign(nodes, 1);
    scores.assign(static_cast<size_t>(n_seqs * width), -7);
    whole.assign(nodes * static_cast<size_t>(words()), 0);
    for (int b = 0; b < n_seqs; ++b) whole[static_cast<size_t>(b * n_nodes() * words())] = 1;
    next.assign(static_cast<size_t>(n_seqs * width * next_words()), 0);
  }

  int n_nodes() const { return 1 + width * gamma; }
  int words() const { return (n_nodes() + 63) / 64; }
  int next_words() const { return (n_nodes() + 2 + 63) / 64; }
  int first_of(int level) const { return level == 0 ? 0 : 1 + (level - 1) * width; }
  int n_above(int level) const { return level == 1 ? 1 : width; }
  size_t at(int b, int node) const { return static_cast<size_t>(b * n_nodes() + node); }

  /// Rows of the nodes above a level, of one nature each.
  std::vector<float> logits(int level, uint32_t seed) const {
    std::vector<float> rows;
    for (int b = 0; b < n_seqs; ++b)
      for (int i = 0; i < n_above(level); ++i) {
        const auto row = static_cast<uint32_t>((b * gamma + level) * width + i);
        const std::vector<float> x =
            random_logits(kNatures[(row + seed) % std::size(kNatures)], vocab, seed * 1000 + row);
        rows.insert(rows.end(), x.begin(), x.end());
      }
    return rows;
  }

  /// Before a level grows.
  void prepare(int level) {
    tentative.clear();
    for (const int32_t s : shift) tentative.push_back(s + first_of(level));
  }
  GrowBeamsParams params(int level, const float* rows) {
    return {.tokens = tokens.data(),
            .parent = parent.data(),
            .first_child = first_child.data(),
            .n_children = n_children.data(),
            .scores = scores.data(),
            .whole = {.mask = whole.data(), .words = words(), .rows_each = n_nodes()},
            .next = {.mask = next.data(),
                     .words = next_words(),
                     .rows_each = width,
                     .first_node = first_of(level),
                     .tentative = tentative.data()},
            .logits = rows,
            .n_seqs = n_seqs,
            .n_nodes = n_nodes(),
            .vocab = vocab,
            .width = width,
            .level = level,
            .temperature = temperature,
            .workspace = nullptr};
  }
  void grow(GrowBeamsFn* fn, int level, const std::vector<float>& rows) {
    prepare(level);
    fn(params(level, rows.data()), {0, n_seqs});
  }
};

}  // namespace tandem::test
