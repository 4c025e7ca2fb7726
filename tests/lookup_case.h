#pragma once
#include <vector>

#include "base/rng.h"
#include "kernels/tree/propose_lookup.h"
#include "speculate/draft/lookup_index.h"

namespace tandem::test {

/// Random texts of a batch with tentative tokens after them, and what LookupIndex finds for each:
/// texts of every length up to the longest, one of a token, and a place without a sequence.
struct LookupCase {
  int n_nodes, n_room, longest;
  std::vector<int32_t> seen, seen_begin{0}, length;
  // As before a round, and after it:
  std::vector<int32_t> tokens, tokens_want, children, children_want, proposed, proposed_want;

  /// vocab    of the texts: few tokens agree often
  /// tentative  tokens after the texts at most; there is room for as many
  LookupCase(PhiloxStream& draw, int vocab, int agree, int nodes, int tentative, int longest_text)
      : n_nodes(nodes), n_room(tentative), longest(agree) {
    const auto below = [&](int n) { return static_cast<int>(draw.uniform() * n); };
    for (const int n : {1 + below(longest_text), longest_text, 1, 2, 1 + below(longest_text), 0}) {
      const int more = n > 0 ? below(tentative + 1) : 0;
      std::vector<int32_t> text;
      for (int i = 0; i < n + more; ++i) text.push_back(static_cast<int32_t>(below(vocab)));
      add(text, n, more);
    }
  }

  int n_seqs() const { return static_cast<int>(length.size()); }
  /// All but the pointers.
  ProposeLookupParams params() const {
    ProposeLookupParams p{};
    p.n_seqs = n_seqs();
    p.n_nodes = n_nodes;
    p.n_room = n_room;
    p.longest = longest;
    return p;
  }

 private:
  /// text     with `more` tentative tokens after the first n; none: no sequence
  void add(const std::vector<int32_t>& text, int n, int more) {
    speculate::LookupIndex index;
    index.extend(text);
    const std::span<const int32_t> found = index.find(text, longest, n_nodes - 1);
    const int32_t root = text.empty() ? 0 : text.back();
    seen.insert(seen.end(), text.begin(), text.end());
    // Beyond the tentative tokens, what would agree if it were read.
    if (n > 0) seen.insert(seen.end(), static_cast<size_t>(n_room - more), root);
    seen_begin.push_back(static_cast<int32_t>(seen.size()));
    length.push_back(more);
    proposed.push_back(-1);
    proposed_want.push_back(static_cast<int32_t>(found.size()));
    for (int node = 0; node < n_nodes; ++node) {
      const auto i = static_cast<size_t>(node);
      tokens.push_back(node == 0 ? root : 99);
      tokens_want.push_back(node == 0 ? root : i <= found.size() ? found[i - 1] : 0);
      children.push_back(1);
      children_want.push_back(i < found.size() ? 1 : 0);
    }
  }
};

}  // namespace tandem::test
