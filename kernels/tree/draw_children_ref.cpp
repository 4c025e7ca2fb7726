// Straightforward and independent of the bodies: every token's number, library functions,
// std::sort.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "kernels/sample/kept_ref.h"
#include "kernels/tree/children_workspace.h"
#include "kernels/tree/draw_children.h"

namespace tandem {
namespace {

struct Runner {
  bool is_rest;  // not kept: after all others
  double key;
  int32_t id;
  bool operator<(const Runner& other) const {
    return std::tie(is_rest, key, id) < std::tie(other.is_rest, other.key, other.id);
  }
};

double exponential(const DrawChildrenParams& p, int r, int id) {
  const auto x = static_cast<uint32_t>(id);
  const uint32_t block = x / 64 * 16 + x % 16, word = x % 64 / 16;
  const RoundNames names = names_of(p.numbers, p.parents[r].seq);
  const auto bits = [&](uint32_t first) {
    return uint64_t{philox4x32(
        {first, names.sequence, names.position,
         static_cast<uint32_t>(DrawPurpose::children) << 24 | names.stage << 16 |
             static_cast<uint32_t>(p.parents[r].node)},
        {static_cast<uint32_t>(names.seed), static_cast<uint32_t>(names.seed >> 32)})[word]};
  };
  const uint64_t digits = (bits(block) << 32 | bits(block | 1u << 31)) >> 12;
  return -std::log1p(-(static_cast<double>(digits) + 0.5) * 0x1p-52);
}

std::vector<int32_t> penalized_tokens(const DrawChildrenParams& p, int r) {
  std::vector<int32_t> tokens;
  const ParentRow& at = p.parents[r];
  if (p.rule.repetition_penalty == 1) return tokens;
  if (p.seen != nullptr)
    tokens.assign(p.seen + p.seen_begin[at.seq], p.seen + p.seen_begin[at.seq + 1]);
  if (p.parent == nullptr) return tokens;
  const int32_t* parent = p.parent + p.node_begin[at.seq];
  for (int node = at.node; parent[node] >= 0; node = parent[node])
    tokens.push_back(p.tokens[p.node_begin[at.seq] + node]);
  std::erase(tokens, kInvalidToken);
  return tokens;
}

/// Empty for a row without meaning.
std::vector<Runner> runners_of(const DrawChildrenParams& p, int r) {
  const float* x = p.logits + static_cast<int64_t>(r) * p.vocab;
  const std::vector<int32_t> seen = penalized_tokens(p, r);
  KeepRule whole = p.rule;
  whole.top_k = 0;
  whole.top_p = 1;
  whole.min_p = 0;
  std::vector<float> logit(x, x + p.vocab);
  for (const int32_t id : seen)
    logit[static_cast<size_t>(id)] =
        x[id] < 0 ? x[id] * p.rule.repetition_penalty : x[id] / p.rule.repetition_penalty;
  const std::vector<double> share = kept_weights_ref(p.rule, x, p.vocab, seen),
                            share_of_all = kept_weights_ref(whole, x, p.vocab, seen);
  std::vector<Runner> runners;
  for (int id = 0; id < static_cast<int>(share.size()); ++id) {
    const auto i = static_cast<size_t>(id);
    if (p.rule.temperature == 0) {
      runners.push_back({false, -double{logit[i]}, id});
      continue;
    }
    const double kept = std::floor(0x1p40 * share[i]), all = std::floor(0x1p40 * share_of_all[i]);
    runners.push_back({kept == 0, exponential(p, r, id) / std::max(1.0, all), id});
  }
  std::sort(runners.begin(), runners.end());
  return runners;
}

}  // namespace

size_t draw_children_workspace_bytes(int vocab) { return lay_out_children(nullptr, vocab).bytes; }

void draw_children_ref(const DrawChildrenParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const std::vector<Runner> runners = runners_of(p, r);
    for (int i = 0; i < p.parents[r].n_children; ++i)
      p.tokens[p.parents[r].first_child + i] =
          runners.empty() ? kInvalidToken : runners[static_cast<size_t>(i)].id;
  }
}

}  // namespace tandem
