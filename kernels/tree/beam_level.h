#pragma once
// How a level of beams comes from the likeliest tokens after the nodes above it. Unnamed: included
// by sources with per-ISA flags and by CUDA's.
#include "kernels/tree/grow_beams.h"

namespace tandem {
namespace {

/// The likeliest tokens after a node, likeliest first.
struct BeamTops {
  double score[kMaxBeams];  // of their paths
  int32_t token[kMaxBeams];
  bool has_meaning;
};

constexpr int nodes_above(const GrowBeamsParams& p) { return p.level == 1 ? 1 : p.width; }
constexpr int first_above(const GrowBeamsParams& p) {
  return p.level == 1 ? 0 : 1 + (p.level - 2) * p.width;
}
constexpr int first_of_level(const GrowBeamsParams& p) { return 1 + (p.level - 1) * p.width; }

/// Score of the path to a node above the level.
constexpr double score_above(const GrowBeamsParams& p, int seq, int i) {
  return p.level == 1 ? 0 : p.scores[int64_t{seq} * p.width + i];
}

/// Writes all but the masks.
/// tops     [nodes_above]
constexpr void write_level(const GrowBeamsParams& p, int seq, const BeamTops* tops) {
  const int n_above = nodes_above(p), above = first_above(p), begin = first_of_level(p);
  const int64_t tree = int64_t{seq} * p.n_nodes;
  bool has_meaning = true;
  for (int i = 0; i < n_above; ++i) has_meaning = has_meaning && tops[i].has_meaning;
  int n_kept[kMaxBeams] = {};
  for (int n = 0; n < p.width; ++n) {
    int best = -1;
    for (int i = 0; i < n_above; ++i)
      if (n_kept[i] < p.width && has_meaning &&
          (best < 0 || tops[i].score[n_kept[i]] > tops[best].score[n_kept[best]]))
        best = i;
    // Without meaning a node after each, in turn.
    ++n_kept[best >= 0 ? best : n % n_above];
  }
  const bool is_open = has_meaning && p.n_children[tree + above] > 0;
  int node = begin;
  for (int i = 0; i < n_above; ++i) {
    p.first_child[tree + above + i] = node;
    p.n_children[tree + above + i] = is_open ? n_kept[i] : 0;
    for (int rank = 0; rank < n_kept[i]; ++rank, ++node) {
      p.tokens[tree + node] = has_meaning ? tops[i].token[rank] : kInvalidToken;
      p.parent[tree + node] = above + i;
      p.scores[int64_t{seq} * p.width + node - begin] = has_meaning ? tops[i].score[rank] : 0;
    }
  }
}

/// Writes a word of the masks of a node whose parent is written.
constexpr void write_mask(const GrowBeamsParams& p, int seq, int node, int word) {
  const BeamMasks& whole = p.whole;
  uint64_t* const tree = whole.mask + int64_t{seq} * whole.rows_each * whole.words;
  const int parent = p.parent[int64_t{seq} * p.n_nodes + node];
  const uint64_t own = node / 64 == word ? uint64_t{1} << (node % 64) : 0;
  tree[int64_t{node} * whole.words + word] = tree[int64_t{parent} * whole.words + word] | own;
}

/// The same in the step that reads the level alone, whose rows come after `shift` more.
constexpr void write_next_mask(const GrowBeamsParams& p, int seq, int node, int word) {
  const BeamMasks &whole = p.whole, &next = p.next;
  const int shift = next.tentative != nullptr ? next.tentative[seq] - next.first_node : 0;
  const uint64_t* const path = whole.mask + (int64_t{seq} * whole.rows_each + node) * whole.words;
  uint64_t bits = word < whole.words ? path[word] << shift : 0;
  if (shift > 0 && word > 0) bits |= path[word - 1] >> (64 - shift);
  if (word == 0) bits |= (uint64_t{1} << shift) - 1;
  next.mask[(int64_t{seq} * next.rows_each + node - next.first_node) * next.words + word] = bits;
}

}  // namespace
}  // namespace tandem
