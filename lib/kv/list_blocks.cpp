#include "kv/list_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::kv {
namespace {

// Some 20 us of one core's share of the DRAM: what the others may have to wait for at the end. A
// block's first rows are waited for, which takes about a hundredth of that.
constexpr int kBlockKeys = 384;
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

}  // namespace

int n_list_blocks(int n) {
  return std::clamp((n + kBlockKeys - 1) / kBlockKeys, 1, kMostListBlocks);
}

void cut_block(std::span<const KeySegment> list, int n_blocks, int i,
               std::vector<KeySegment>& block) {
  int64_t n = 0;
  for (const KeySegment& s : list) n += s.n;
  // Whole groups of a kernel's rows.
  constexpr int64_t kGroup = 16;
  const int64_t step = (n + kGroup * n_blocks - 1) / (kGroup * n_blocks) * kGroup;
  const auto begin = static_cast<int>(std::min(n, step * i)),
             end = static_cast<int>(std::min(n, step * (i + 1)));
  block.clear();
  int first = 0;  // of the segment, in the list
  for (const KeySegment& s : list) {
    const int from = std::max(begin - first, 0), to = std::min(end - first, s.n);
    if (from < to)
      block.push_back({s.ids + from, to - from, s.bias == nullptr ? nullptr : s.bias + from,
                       s.norms});  // by token
    first += s.n;
  }
}

void join_states(float* o, float* lse, const float* part_o, const float* part_lse, int n, int d) {
  const float most = *std::max_element(part_lse, part_lse + n);
  std::fill(o, o + d, 0.0f);
  *lse = most;
  if (most == kEmpty) return;
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += std::exp(static_cast<double>(part_lse[i]) - most);
  for (int i = 0; i < n; ++i) {
    if (part_lse[i] == kEmpty) continue;
    const auto weight = static_cast<float>(std::exp(static_cast<double>(part_lse[i]) - most) / sum);
    const float* row = part_o + static_cast<int64_t>(i) * d;
    for (int c = 0; c < d; ++c) o[c] += weight * row[c];
  }
  *lse = static_cast<float>(most + std::log(sum));
}

}  // namespace tandem::kv
