#include "speculate/measure/tree_meter.h"

#include <algorithm>

#include "base/check.h"
#include "kv/scoped_slots.h"
#include "speculate/measure/children_rule.h"

namespace tandem::speculate {
namespace {

/// Where a text stands in its rounds.
struct Walk {
  std::span<const int> accepted;  // of rounds to come, the one it is in first
  int root;                       // row of the round's root
  int node = 0;                   // -1 until the round ends: not known
};

}  // namespace

TreeMeter::TreeMeter(Reader target, Reader draft, const ops::VerifyRule& rule, TokenTree tree,
                     int width)
    : target_(target),
      logits_(target, {draft}, {}, draft.engine == target.engine ? 1 : kRowsAtOnce),
      rule_(rule),
      tree_(std::move(tree)),
      width_(width),
      rows_(static_cast<size_t>(tree_.levels() - 1), ChanceSums(width)) {
  TANDEM_CHECK(std::ranges::max(tree_.n_children) <= width, "a node has more than {} children",
               width);
}

void TreeMeter::add(int seq, int64_t seed, std::span<const int32_t> text, int first,
                    std::span<const int> accepted) {
  if (text.size() < static_cast<size_t>(first) + 2) return;  // no round began
  Walk walk{.accepted = accepted, .root = first};
  const bool by_match = rule_.accept_by == AcceptBy::match;
  const auto width = static_cast<size_t>(width_);
  kv::Cache& cache = target_.engine->cache();
  kv::ScopedSlots slots(cache);
  slots.create(cache.all_readers());
  const decode::SeqTokens prompt[] = {
      {slots.all()[0], text.first(static_cast<size_t>(first)), true}};
  if (first > 0) target_.engine->prefill(prompt, {});
  const ForcedText forced[] = {{text, first + 1}};
  logits_.visit(slots.all(), forced, [&](const auto& rows, const Tensor& target, auto drafts) {
    const Tensor& draft = drafts[0];
    const int first_row = first + static_cast<int>(rows.position[0]);
    std::vector<int32_t> children, depths;
    std::vector<std::span<const int32_t>> seen;
    // Rows are drawn together up to one whose children say which node comes next.
    for (int64_t begin = 0, end = 0; begin < target.rows(); begin = end) {
      std::vector<ops::ParentNode> parents;
      bool is_last = true;  // its next token is the round's last
      while (is_last && end < target.rows()) {
        const int row = first_row + static_cast<int>(end++), node = std::max(0, walk.node);
        parents.push_back(
            {.round = {seed, seq, walk.root + 1}, .node = node, .n_children = width_});
        seen.push_back(text.first(static_cast<size_t>(row) + 1));
        const auto i = static_cast<size_t>(node);
        const bool counts = walk.node >= 0 && tree_.n_children[i] > 0;
        depths.push_back(counts ? tree_.depth[i] : -1);
        TANDEM_CHECK(!walk.accepted.empty(), "the text has more tokens than its steps accepted");
        is_last = row - walk.root == walk.accepted.front();
        if (is_last) walk = {.accepted = walk.accepted.subspan(1), .root = row + 1};
      }
      const std::vector<int32_t> drawn =
          ops::draw_children(draft.slice(begin, end - begin), children_rule(rule_), parents,
                             std::span(seen).subspan(static_cast<size_t>(begin)));
      children.insert(children.end(), drawn.begin(), drawn.end());
      if (is_last || walk.node < 0) continue;
      const auto i = static_cast<size_t>(walk.node);
      const auto first_child = drawn.end() - width_, last = first_child + tree_.n_children[i];
      const auto found = std::find(first_child, last, text[seen.back().size()]);
      lost_ += found == last ? 1 : 0;
      walk.node = found == last ? -1 : tree_.first_child[i] + static_cast<int>(found - first_child);
    }
    const std::vector<double> chances =
        ops::accept_chances(target, by_match ? Tensor{} : draft, rule_, children, width_, seen);
    for (size_t r = 0; r < depths.size(); ++r)
      if (depths[r] >= 0)
        rows_[static_cast<size_t>(depths[r])].add(std::span(chances).subspan(r * width, width));
  });
}

}  // namespace tandem::speculate
