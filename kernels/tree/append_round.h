#pragma once
// Rounds within a round: what one of them keeps lengthens a chain that a round around it is to
// verify, sequence by sequence at its own pace. No STL: included by CUDA sources.
#include "base/types.h"
#include "kernels/page/catch_up.h"

namespace tandem {

/// Pointers into memory of the device that computes.
struct AppendRoundParams {
  // The chains: node 0 of each is the root, the last token of its text.
  int32_t* chain_tokens;      // [n_seqs, n_chain]
  int32_t* chain_children;    // [n_seqs, n_chain] 1, of the last node 0
  int32_t* chain_length;      // [n_seqs] tokens after the root; not read for the first round
  float* chain_logits;        // [*, vocab] what each token was drawn from
  const int32_t* chain_row;   // [n_seqs, n_chain] row of chain_logits, of a node's child
  const int32_t* enough;      // [n_seqs] tokens with which a chain is left as it is
  const int32_t* most;        // [n_seqs] tokens of a chain at most, below n_chain
  int32_t* forced;            // [n_seqs] simulated accepted tokens, cut to the chain; or null
  int32_t* seen;              // null, or with room after each text for n_chain - 1 tokens
  const int32_t* seen_begin;  // [n_seqs + 1] of texts with their rooms
  // The round that was verified. Trees of n_nodes:
  const int32_t* tokens;      // [n_seqs, n_nodes]
  const int32_t* path;        // [n_seqs, n_nodes] accepted nodes, the root left out
  const int32_t* n_accepted;  // [n_seqs] of them
  const int32_t* bonus;       // [n_seqs] the token after the path
  const int32_t* newest;      // [n_seqs, kNewestTokens] as the round began, its root last
  const float* logits;        // [n_seqs * n_nodes, vocab] of the verifier, by nodes
  RoundEnds ends;             // out, for the round that follows
  int32_t* taken;             // [n_seqs] accepted tokens; -1: the chain is left as it is
  int32_t n_seqs, n_nodes, n_chain, vocab;
  int32_t max_kept;  // tokens of a round at most: levels of its trees
  bool is_first;
};

/// Puts the accepted tokens and the one after them at the end of the chains that are still too
/// short, and copies what each was drawn from. A bonus without meaning (< 0) counts as token 0: the
/// row that it is said to be drawn from has none either, as the round around this one will find.
/// errors   none (preconditions checked by the caller)
using AppendRoundFn = void(const AppendRoundParams&, Range seqs);
AppendRoundFn append_round_cpu;
void append_round_cuda(const AppendRoundParams&, Stream);

namespace {

/// How a round lengthens a chain.
struct Growth {
  int before;  // tokens after the root
  int n;       // new ones
  bool takes_part;
};

constexpr Growth growth_of(const AppendRoundParams& p, int seq) {
  const int before = p.is_first ? 0 : p.chain_length[seq];
  if (before >= p.enough[seq]) return {before, 0, false};
  const int kept = p.n_accepted[seq] + 1, room = p.most[seq] - before;
  return {before, kept < room ? kept : room, true};
}

/// The node whose logits the i-th new token was drawn from, or whose child it is.
constexpr int source_node(const AppendRoundParams& p, int seq, int i) {
  return i == 0 ? 0 : p.path[int64_t{seq} * p.n_nodes + i - 1];
}

/// All but the rows of logits.
constexpr void append_tokens(const AppendRoundParams& p, int seq, const Growth& g) {
  const int64_t tree = int64_t{seq} * p.n_nodes, chain = int64_t{seq} * p.n_chain;
  const int n_accepted = p.n_accepted[seq];
  for (int i = 0; i < g.n; ++i) {
    const int bonus = p.bonus[seq] > 0 ? p.bonus[seq] : 0;
    const int32_t id = i < n_accepted ? p.tokens[tree + p.path[tree + i]] : bonus;
    p.chain_tokens[chain + g.before + 1 + i] = id;
    p.chain_children[chain + g.before + i] = 1;
    if (p.seen != nullptr) p.seen[p.seen_begin[seq + 1] - p.n_chain + g.before + 1 + i] = id;
  }
  const int length = g.before + g.n;
  p.chain_length[seq] = length;
  if (p.forced != nullptr && p.forced[seq] > length) p.forced[seq] = length;
  p.chain_children[chain + g.before + g.n] = 0;
  p.ends.kept[seq] = g.n;
  // Of the text and its chain, from the newest tokens before and the new ones.
  for (int i = 0; i < kNewestTokens; ++i) {
    const int at = g.n + i;
    p.ends.newest[seq * kNewestTokens + i] =
        at < kNewestTokens ? p.newest[seq * kNewestTokens + at]
                           : p.chain_tokens[chain + g.before + 1 + at - kNewestTokens];
  }
  p.taken[seq] = g.takes_part ? n_accepted : -1;
}

}  // namespace
}  // namespace tandem
