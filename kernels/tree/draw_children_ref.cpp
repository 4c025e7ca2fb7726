// Straightforward and independent of the bodies: every token's number, library functions,
// std::sort.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "kernels/tree/children_workspace.h"
#include "kernels/tree/draw_children.h"

namespace tandem {
namespace {

struct Runner {
  bool is_rest;  // weight 0: after all others
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

std::vector<Runner> runners_of(const DrawChildrenParams& p, int r) {
  const float* x = p.logits + static_cast<int64_t>(r) * p.vocab;
  const double max = *std::max_element(x, x + p.vocab);
  std::vector<Runner> runners;
  for (int id = 0; id < p.vocab; ++id) {
    if (p.temperature == 0) {
      runners.push_back({false, -double{x[id]}, id});
      continue;
    }
    const double weight = std::floor(0x1p40 * std::exp((x[id] - max) / p.temperature));
    runners.push_back({weight == 0, exponential(p, r, id) / std::max(1.0, weight), id});
  }
  std::sort(runners.begin(), runners.end());
  return runners;
}

}  // namespace

size_t draw_children_workspace_bytes(int vocab) { return lay_out_children(nullptr, vocab).bytes; }

void draw_children_ref(const DrawChildrenParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* x = p.logits + static_cast<int64_t>(r) * p.vocab;
    const bool is_valid =
        std::none_of(x, x + p.vocab, [](float v) { return std::isnan(v) || v == HUGE_VALF; }) &&
        std::any_of(x, x + p.vocab, [](float v) { return std::isfinite(v); });
    const std::vector<Runner> runners = is_valid ? runners_of(p, r) : std::vector<Runner>{};
    for (int i = 0; i < p.parents[r].n_children; ++i)
      p.tokens[p.parents[r].first_child + i] =
          is_valid ? runners[static_cast<size_t>(i)].id : kInvalidToken;
  }
}

}  // namespace tandem
