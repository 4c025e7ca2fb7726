#pragma once
// Contracts of verify_trees and accept_chances. No STL: included by sources compiled with per-ISA
// flags.
#include "kernels/sample/sample.h"
#include "kernels/tree/round_numbers.h"

namespace tandem {

/// Which nodes of a tree are accepted. By the first four texts follow the target's distribution; at
/// temperature 0 of the target they all take the child that is the argmax. By the last three they
/// do not: a node passes whose token is likely enough after its parent, and the longest path of
/// such nodes is taken, of equals the first.
enum class AcceptBy : uint8_t {
  match,      // the target's token is drawn, the child equal to it accepted; any children
  sequoia,    // node by node: coins against residual / proposal
  block,      // traversal's rule, of chains
  traversal,  // by sequences: a node is tried after all below it, with the part of the probability
              // that these leave
  floor,      // a probability of FloorRule::probability at least
  floor_or_argmax,  // or the likeliest token, of equals the lowest
  typical,          // a floor of min(probability, delta e^-H), H the entropy in nats
};

/// Whether the rule needs to know how children were drawn (n_drawn below).
constexpr bool weighs_draws(AcceptBy rule) {
  return rule == AcceptBy::sequoia || rule == AcceptBy::block || rule == AcceptBy::traversal;
}
/// Whether a node is tried after all below it.
constexpr bool goes_by_sequences(AcceptBy rule) {
  return rule == AcceptBy::block || rule == AcceptBy::traversal;
}
/// Whether texts follow another distribution than the target's.
constexpr bool is_lossy(AcceptBy rule) { return rule >= AcceptBy::floor; }

/// What tokens must reach, in the softmax of the logits as they are over a temperature.
struct FloorRule {
  double probability = 0.1;  // >= 0; above 1 nothing passes by floor
  float temperature = 0.6f;  // > 0
  double delta = 0.3;        // > 0; of typical
};

inline constexpr int kAllDrawn = 0x7fffffff;

/// Pointers into memory of the device that verifies.
struct VerifyTreesParams {
  // Results. Sequence b has room for its n nodes from node_begin[b] in `path` and `logprobs`.
  int32_t* path;        // [N] accepted nodes from the root's child on
  int32_t* n_accepted;  // [B]
  int32_t* bonus;       // [B] the token after the path; kInvalidToken if a row read has no meaning
  float* logprobs;      // [N] of the tokens of the path and the bonus, natural log of the target's
                        // untempered softmax; null: not wanted
  int32_t* n_rounded;   // [B] nodes accepted because rounding alone stood against them

  // Trees, breadth first: nodes of sequence b are node_begin[b] .. node_begin[b + 1] - 1 below, and
  // 0, 1, ... in first_child and in `path`; node 0 is the root.
  const int32_t* node_begin;   // [B + 1]
  const int32_t* tokens;       // [N]; that of the root is not read. Siblings are distinct
  const int32_t* first_child;  // [N], not read for a leaf
  const int32_t* n_children;   // [N]
  const int32_t* target_row;   // [N] row of target_logits; read for nodes visited
  const int32_t* draft_row;  // [N] row of draft_logits that the children were drawn from; read for
                             // nodes visited with drawn children, null by match
  const float* target_logits;  // [*, V]
  const float* draft_logits;   // [*, V]; null by match
  int n_drawn = kAllDrawn;     // children of a node that were drawn; those after them are fixed, in
                               // any way that does not look at the round's random numbers
  // Tokens to penalise: those of the sequence, to which a node's own path adds.
  const int32_t* seen;        // may be null without penalties
  const int32_t* seen_begin;  // [B + 1]

  RoundNumbers numbers;  // by sequence

  int n_seqs, vocab;
  KeepRule target, draft;
  AcceptBy accept_by;
  FloorRule floor = {};  // of the rules that have one
  void* workspace;  // on the CPU verify_workspace_bytes(V, most nodes of a tree), 64-byte aligned,
                    // one per concurrent call; on a GPU verify_memory_bytes of traverse_trees.h,
                    // one per stream, null where 0
  // On the CPU: what draw_children noted of the draft's rows; null: they are summed up here.
  const RowSum* draft_sums = nullptr;  // [*] by row of draft_logits
};

/// Finds the path of each tree that is accepted, and one more token: drawn from what rejections
/// left, or at a leaf from the target itself, by `sample` with the node's uniform.
/// By match every token is so drawn, so the text is the one that plain sampling with these uniforms
/// gives. By the other rules the text follows the target's distribution, kept set and penalties of
/// the node's own path included, if drawn children come from draw_children by the rule `draft`.
/// At depth 1 traversal takes sequoia's decisions; block is traversal where no node has siblings.
/// By floors the last token is drawn from the target's row at the path's end, as by match.
/// numerics decisions are exact in integers made from the weights of sample.h (node_step.h here):
///          equal on every ISA and thread count; probabilities good to 2^-40
/// cost     a target row per node visited, each read up to six times from cache; but by match also a
///          draft row a node with drawn children, and a pass over the kept tokens a rejection. With
///          one child and rules that cut nothing a row takes a pass for its maximum and one for its
///          sum (the draft's none with draft_sums), and a rejection one more for each of both.
///          match and sequoia visit the nodes of the result. traversal visits those before the
///          accepted one too, depth first; of these, leaves need no row. floors read the rows of
///          all nodes with children that pass
/// errors   none (preconditions checked by ops; a meaningless row is a result)
/// source   Sequoia, algorithm 2; matching: SpecInfer's naive sampling; "Traversal Verification"
///          (arXiv 2505.12398), here for children drawn without replacement and for fixed ones;
///          block: "Block Verification" (arXiv 2403.10444); floors: Sirius (arXiv 2409.03856);
///          typical: Medusa (arXiv 2401.10774)
using VerifyTreesFn = void(const VerifyTreesParams&, Range seqs);
VerifyTreesFn verify_trees_ref, verify_trees_scalar, verify_trees_avx2, verify_trees_avx512;

/// The largest vocabulary for verification by residuals on Hopper: 16 blocks of a cluster keep
/// three words a token in shared memory.
inline constexpr int kMaxVerifyVocabCuda = 16 * 512 * 33;

/// The same on a GPU: the very path, bonus and n_rounded of the CPU; logprobs as sample_cuda.
/// layout   rows contiguous; those that are multiples of 16 bytes are read faster
/// cost     a group of blocks a sequence reads the rows of the nodes it visits once; by block and
///          traversal a group a node reads, once, the rows of each node with children, but of those
///          that are known too late not to be reached, or to come after the path's end, for nothing
/// errors   kind internal without a workspace where one is needed, above kMaxVocabCuda, and on Hopper
///          by residual above kMaxVerifyVocabCuda
using VerifyTreesCudaFn = void(const VerifyTreesParams&, Stream);
namespace portable {
VerifyTreesCudaFn verify_trees_cuda;
}
namespace hopper {
VerifyTreesCudaFn verify_trees_cuda;
}

struct AcceptChancesParams {
  double* chances;             // [child_begin[n_rows]], NaN for a row without meaning
  const int32_t* child_begin;  // [n_rows + 1]
  const int32_t* children;     // [child_begin[n_rows]] in the order in which they are tried
  const float* target_logits;  // [n_rows, V]
  const float* draft_logits;   // [n_rows, V]; null by match
  const int32_t* seen;         // may be null without penalties
  const int32_t* seen_begin;   // [n_rows + 1]
  int n_rows, vocab;
  KeepRule target, draft;
  AcceptBy accept_by;
  void* workspace;  // verify_workspace_bytes(V, 0), 64-byte aligned, one per concurrent call
};

/// Probability that each child of a node is the one accepted by match or by sequoia, which the
/// other rules are counted as: over the coins, and by sequoia also
/// over what child i itself is, given the children before it (Rao-Blackwell). The mean over nodes
/// estimates the acceptance vector without bias, and with less variance than counting acceptances.
/// numerics as verify_trees; probabilities good to 1e-12
/// errors   none (preconditions checked by ops; a meaningless row is a result)
using AcceptChancesFn = void(const AcceptChancesParams&, Range rows);
AcceptChancesFn accept_chances_scalar, accept_chances_avx2, accept_chances_avx512;

/// Of the largest tree.
constexpr int most_nodes(const int32_t* node_begin, int n_seqs) {
  int most = 0;
  for (int b = 0; b < n_seqs; ++b) {
    const int n = node_begin[b + 1] - node_begin[b];
    most = n > most ? n : most;
  }
  return most;
}

/// nodes    most_nodes; 0 for accept_chances
size_t verify_workspace_bytes(int vocab, int nodes);

}  // namespace tandem
