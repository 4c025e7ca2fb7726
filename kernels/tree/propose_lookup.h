#pragma once
// Prompt lookup where the target computes: what followed the last tokens of a text where they stood
// before is proposed again, sequence by sequence. No STL: included by CUDA sources.
#include "base/types.h"

namespace tandem {

/// Pointers into memory of the device that computes.
struct ProposeLookupParams {
  // The chains: node 0 of each is the root, the last token of its text.
  int32_t* tokens;      // [n_seqs, n_nodes] out, but for the roots; 0 beyond a proposal
  int32_t* n_children;  // [n_seqs, n_nodes] out: 1, from the last node of a proposal on 0
  int32_t* n_proposed;  // [n_seqs] out: tokens after the root
  // The texts, the tentative tokens of each after it:
  const int32_t* seen;
  const int32_t* seen_begin;    // [n_seqs + 1] of texts with their rooms; no tokens: no sequence
  const int32_t* chain_length;  // [n_seqs] tentative tokens; null: there are none
  int32_t n_seqs, n_nodes;
  int32_t n_room;   // tokens for which there is room after each text
  int32_t longest;  // tokens that must agree, at most
};

/// Of the earlier places at which the most tokens before and at them, `longest` at most, agree with
/// the last ones, the latest: what follows there is proposed, n_nodes - 1 tokens at most. Nothing
/// where not even the last token stood before.
/// errors   none (preconditions checked by the caller)
/// source   prompt lookup decoding (Saxena, 2023)
using ProposeLookupFn = void(const ProposeLookupParams&, Range seqs);
ProposeLookupFn propose_lookup_cpu;
void propose_lookup_cuda(const ProposeLookupParams&, Stream);

namespace {

/// A text as it is now.
struct SeenText {
  const int32_t* tokens;
  int length;
};

constexpr SeenText text_of(const ProposeLookupParams& p, int seq) {
  const int begin = p.seen_begin[seq], known = p.seen_begin[seq + 1] - begin - p.n_room;
  const int tentative = p.chain_length != nullptr ? p.chain_length[seq] : 0;
  return {p.seen + begin, known > 0 ? known + tentative : 0};
}

/// Where a text agrees with its end. Packed, a better one is the greater number; 0: none.
struct Agreement {
  int n;      // tokens
  int place;  // of the last of them
};

constexpr uint64_t packed(const Agreement& a) {
  return static_cast<uint64_t>(a.n) << 32 | static_cast<uint64_t>(a.place);
}
constexpr Agreement unpacked(uint64_t bits) {
  return {static_cast<int>(bits >> 32), static_cast<int>(bits & 0xffffffffu)};
}

/// Tokens that agree before and at a place, whose own token does.
constexpr int agreeing(const SeenText& text, int place, int longest) {
  const int most = longest < place + 1 ? longest : place + 1;
  int n = 1;
  while (n < most && text.tokens[place - n] == text.tokens[text.length - 1 - n]) ++n;
  return n;
}

constexpr int n_following(const ProposeLookupParams& p, const SeenText& text, const Agreement& a) {
  const int there = a.n > 0 ? text.length - 1 - a.place : 0;
  return there < p.n_nodes - 1 ? there : p.n_nodes - 1;
}

/// A node of a chain that proposes n tokens.
constexpr void write_node(const ProposeLookupParams& p, int seq, int node, const SeenText& text,
                          const Agreement& a, int n) {
  const int64_t at = int64_t{seq} * p.n_nodes + node;
  if (node > 0) p.tokens[at] = node <= n ? text.tokens[a.place + node] : 0;
  p.n_children[at] = node < n ? 1 : 0;
  if (node == 0) p.n_proposed[seq] = n;
}

}  // namespace
}  // namespace tandem
