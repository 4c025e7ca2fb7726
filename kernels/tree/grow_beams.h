#pragma once
// Contract of grow_beams. No STL: included by CUDA sources and by sources compiled with per-ISA
// flags.
#include "base/types.h"
#include "kernels/sample/sample.h"

namespace tandem {

inline constexpr int kMaxBeams = 8;

/// Masks of the rows of a step, of every sequence as many, which are nodes of trees one after the
/// other (tree_mask of kernels/attention/attention.h). Null: rows of chains, which have none.
struct BeamMasks {
  uint64_t* mask = nullptr;  // [n_seqs, rows_each, words]
  int32_t words = 0, rows_each = 0;
  int32_t first_node = 0;              // of the rows
  const int32_t* tentative = nullptr;  // [n_seqs] rows of earlier steps, in which those of the
                                       // first_node nodes come last; null: first_node of them
};

/// Pointers into memory of the device that drafts. Nodes of a tree: 0 is the root, level d >= 1 has
/// those from 1 + (d - 1) width to d width.
struct GrowBeamsParams {
  int32_t* tokens;       // [n_seqs, n_nodes] out: of the level; kInvalidToken for all of them where
                         // a row of the sequence has no meaning
  int32_t* parent;       // [n_seqs, n_nodes] out: of the level's nodes
  int32_t* first_child;  // [n_seqs, n_nodes] out: of the nodes above it, not of those without any
  int32_t* n_children;   // [n_seqs, n_nodes] out: of the nodes above it; they stay without children
                         // where the first of them has none before, or a row has no meaning
  double* scores;        // [n_seqs, width] of the nodes above, not read for level 1; out: of the
                         // level's
  BeamMasks whole;       // of all nodes; out: of the level's, from those above
  BeamMasks next;        // out: the same in the step that reads the level alone; null: none does
  const float* logits;   // [n_seqs * nodes above, V] of the nodes above, 16-byte aligned
  int32_t n_seqs, n_nodes, vocab;
  int32_t width;      // 1 .. kMaxBeams, at most V
  int32_t level;      // of the new nodes, from 1
  float temperature;  // of the scores, above 0
  void* workspace;    // on a GPU grow_beams_memory_bytes, one a stream; not read on the CPU
};

/// Beam search: of the `width` likeliest tokens after each node of a level, of equals the lower
/// ids, the `width` of the highest scores become the next level, of equals those after the lower
/// node, then the likelier ones. A node's score is the sum of ln softmax(logits / temperature) over
/// its path. Nodes stand in the order of the nodes above them, siblings by likelihood, so that
/// siblings lie side by side. Logits of -inf come last, with scores of -inf; a row with NaN, +inf
/// or nothing finite has no meaning.
/// numerics tokens after a node are chosen by logits alone. Scores are doubles, from sums of whole
///          weights (weights.h): no row's bits depend on other sequences, on ISAs or on how a row
///          is divided; between CPU and GPU they differ by a logarithm's last bit
/// cost     reads the rows three times, on a GPU twice, the second time from cache
/// errors   none (preconditions checked by ops; a meaningless row is a result)
/// source   Sirius (arXiv 2409.03856), trees of constant width
using GrowBeamsFn = void(const GrowBeamsParams&, Range seqs);
GrowBeamsFn grow_beams_scalar, grow_beams_avx2, grow_beams_avx512;
void grow_beams_cuda(const GrowBeamsParams&, Stream);

/// Parts that a row is divided into on a GPU.
inline constexpr int kMostBeamParts = 32;
constexpr int beam_parts(int vocab) {
  constexpr int kPartTokens = 4096;
  const int parts = (vocab + kPartTokens - 1) / kPartTokens;
  return parts < kMostBeamParts ? parts : kMostBeamParts;
}
/// The likeliest tokens of each part and a sum.
/// n_rows   of logits, at most
constexpr size_t grow_beams_memory_bytes(int vocab, int n_rows) {
  return static_cast<size_t>(n_rows) * static_cast<size_t>(beam_parts(vocab)) * (kMaxBeams + 1) *
         sizeof(uint64_t);
}

}  // namespace tandem
