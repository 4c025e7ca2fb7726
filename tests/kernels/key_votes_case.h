#pragma once
#include <cmath>
#include <span>
#include <vector>

#include "kernels/gather/key_votes.h"
#include "kernels/variants.h"

namespace tandem::test {

/// A window of queries at the end of a sequence in scattered pages. Keys beyond the sequence and of
/// other KV heads are NaN, so that a read of one shows.
struct VoteCase {
  static constexpr int kHeads = 3, kHead = 1, kSpare = 41;
  int n_tokens, n_positions, n_heads, d;
  DType dtype;
  ActBuffer keys;
  Buffer<float> q;
  std::vector<int32_t> pages;
  float scale;

  VoteCase(DType type, int tokens, int positions, int heads, int dim, float sharpness = 1)
      : n_tokens(tokens),
        n_positions(positions),
        n_heads(heads),
        d(dim),
        dtype(type),
        keys(type, static_cast<size_t>(kSpare * kHeads * kPageTokens * dim), 1),
        q(static_cast<size_t>(positions * heads * dim), 1),
        scale(sharpness / std::sqrt(static_cast<float>(dim))) {
    PhiloxStream stream(11, static_cast<uint32_t>(tokens));
    for (size_t i = 0; i < keys.size(); ++i) keys.set(i, NAN);
    for (int i = 0; i * kPageTokens < n_tokens; ++i) pages.push_back((7 * i + 3) % kSpare);
    for (int t = 0; t < n_tokens; ++t)
      for (int c = 0; c < d; ++c) keys.set(at(t, c), random_float(stream, 1.5f));
    fill(q, stream, 2.0f);
    if (dtype == DType::bf16)  // where a GPU holds them so
      for (size_t i = 0; i < q.size(); ++i) q[i] = to_float(to_bf16(q[i]));
  }
  size_t at(int token, int c) const {
    const int page = pages[static_cast<size_t>(token / kPageTokens)];
    return static_cast<size_t>(((page * kHeads + kHead) * kPageTokens + token % kPageTokens) * d +
                               c);
  }
  int n_queries() const { return n_positions * n_heads; }
  /// lse      [n_positions, n_heads] out; empty: not wanted
  std::vector<float> run(KeyVotesFn* fn, std::span<float> lse = {}) {
    Buffer<float> votes(static_cast<size_t>(n_tokens), 1);
    Buffer<float> scratch(static_cast<size_t>(key_votes_scratch(d, n_positions * n_heads)), 1);
    fn({.votes = votes.data(),
        .q = q.data(),
        .k_pool = keys.data(),
        .pages = pages.data(),
        .first_position = n_tokens - n_positions,
        .n_positions = n_positions,
        .n_heads = n_heads,
        .n_kv_heads = kHeads,
        .kv_head = kHead,
        .d = d,
        .dtype = dtype,
        .scale = scale,
        .scratch = scratch.data(),
        .lse = lse.empty() ? nullptr : lse.data()});
    return {votes.data(), votes.data() + n_tokens};
  }
};

}  // namespace tandem::test
