#pragma once
// Contracts of verify_trees and accept_chances. No STL: included by sources compiled with per-ISA
// flags.
#include "kernels/sample/sample.h"
#include "kernels/tree/round_numbers.h"

namespace tandem {

/// How a child is accepted. At temperature 0 of the target both take the child that is the argmax.
enum class AcceptBy : uint8_t {
  residual,  // coins against residual / proposal; children must be drawn as draw_children does
  match,     // the target's token is drawn, the child equal to it accepted; any children
};

/// Pointers into memory of the device that verifies.
struct VerifyTreesParams {
  // Results. Sequence b has room for its n nodes from node_begin[b] in `path` and `logprobs`.
  int32_t* path;        // [N] accepted nodes from the root's child on
  int32_t* n_accepted;  // [B]
  int32_t* bonus;       // [B] the token after the path; kInvalidToken if a row read has no meaning
  float* logprobs;      // [N] of the tokens of the path and the bonus, natural log of the target's
                        // untempered softmax; null: not wanted
  int32_t* n_rounded;   // [B] children accepted because rounding alone stood against them

  // Trees, breadth first: nodes of sequence b are node_begin[b] .. node_begin[b + 1] - 1 below, and
  // 0, 1, ... in first_child and in `path`; node 0 is the root.
  const int32_t* node_begin;   // [B + 1]
  const int32_t* tokens;       // [N]; that of the root is not read. Siblings are distinct
  const int32_t* first_child;  // [N], not read for a leaf
  const int32_t* n_children;   // [N]
  const int32_t* target_row;   // [N] row of target_logits; read for nodes on the path
  const int32_t* draft_row;  // [N] row of draft_logits that the children were drawn from; read for
                             // nodes on the path with children, null by match
  const float* target_logits;  // [*, V]
  const float* draft_logits;   // [*, V]; null by match
  // Tokens to penalise: those of the sequence, to which a node's own path adds.
  const int32_t* seen;        // may be null without penalties
  const int32_t* seen_begin;  // [B + 1]

  RoundNumbers numbers;  // by sequence

  int n_seqs, vocab;
  KeepRule target, draft;
  AcceptBy accept_by;
  void* workspace;  // on the CPU verify_workspace_bytes(V), 64-byte aligned, one per concurrent
                    // call; on a GPU row_memory_bytes(V, n_seqs, 3), one per stream, null where 0
};

/// Walks each tree from the root along accepted children, and gives one more token: drawn from what
/// the rejections left, or at a leaf from the target itself, by `sample` with the node's uniform.
/// By match every token is so drawn, so the text is the one that plain sampling with these uniforms
/// gives. By residual the text follows the target's distribution, kept set and penalties of the
/// node's own path included, if the children come from draw_children at the temperature of `draft`.
/// numerics decisions are exact in integers made from the weights of sample.h (node_step.h here):
///          equal on every ISA and thread count; probabilities good to 2^-40
/// cost     a target row per token of the result, each read up to six times from cache; by residual
///          also a draft row a node with children, and a pass over the kept tokens a rejection
/// errors   none (preconditions checked by ops; a meaningless row is a result)
/// source   Sequoia, algorithm 2; matching: SpecInfer's naive sampling
using VerifyTreesFn = void(const VerifyTreesParams&, Range seqs);
VerifyTreesFn verify_trees_ref, verify_trees_scalar, verify_trees_avx2, verify_trees_avx512;

/// The largest vocabulary for verification by residuals on Hopper: 16 blocks of a cluster keep
/// three words a token in shared memory.
inline constexpr int kMaxVerifyVocabCuda = 16 * 512 * 33;

/// The same on a GPU: the very path, bonus and n_rounded of the CPU; logprobs as sample_cuda.
/// layout   rows contiguous; those that are multiples of 16 bytes are read faster
/// cost     a group of blocks a sequence reads the rows of the nodes it visits once
/// errors   kind internal above kMaxVocabCuda, on Hopper by residual above kMaxVerifyVocabCuda
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
  void* workspace;  // verify_workspace_bytes(V), 64-byte aligned, one per concurrent call
};

/// Probability that each child of a node is the one accepted: over the coins, and by residual also
/// over what child i itself is, given the children before it (Rao-Blackwell). The mean over nodes
/// estimates the acceptance vector without bias, and with less variance than counting acceptances.
/// numerics as verify_trees; probabilities good to 1e-12
/// errors   none (preconditions checked by ops; a meaningless row is a result)
using AcceptChancesFn = void(const AcceptChancesParams&, Range rows);
AcceptChancesFn accept_chances_scalar, accept_chances_avx2, accept_chances_avx512;

size_t verify_workspace_bytes(int vocab);

}  // namespace tandem
