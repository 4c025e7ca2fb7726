#include "kv/step.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "base/check.h"

namespace tandem::kv {

void Step::point_to_host() {
  arrays = {.n_seqs = n_seqs,
            .n_rows = n_rows,
            .mask_words = mask_words,
            .drafted = drafted,
            .slot = slot.data(),
            .row_begin = row_begin.data(),
            .base = base.data(),
            .tentative = tentative.empty() ? nullptr : tentative.data(),
            .pos = pos.data(),
            .row_page = row_page.data(),
            .row_in_page = row_in_page.data(),
            .tree_mask = tree_mask.empty() ? nullptr : tree_mask.data()};
  for (int b = 0; b < n_seqs; ++b)
    arrays.max_rows_a_seq = std::max(arrays.max_rows_a_seq, rows_of(b));
  for (GroupRows& g : groups) {
    g.arrays = arrays;
    g.arrays.row_page = g.row_page.data();
  }
  near = arrays;
  near.row_page = near_page.data();
  near_lo = near_begin.data();
}

int places_for(int n, int rows_each, int most) {
  // Up to here products take as long as their weights take to read.
  constexpr int kFewRows = 512;
  const auto power = static_cast<int>(std::bit_ceil(static_cast<unsigned>(n)));
  if (power * rows_each <= kFewRows) return std::min(power, most);
  const int unit = std::max(power / 8, 1);
  return std::min((n + unit - 1) / unit * unit, most);
}

void add_tree(Step& step, int first_row, const Tree& tree) {
  const auto words = static_cast<size_t>(step.mask_words);
  const int n = step.n_rows - first_row;
  TANDEM_CHECK(static_cast<int>(tree.parent.size()) == n, "found {} tree nodes for {} rows",
               tree.parent.size(), n);
  step.tree_mask.resize(static_cast<size_t>(step.n_rows) * words);
  const int base = step.base.back();
  for (int i = 0; i < n; ++i) {
    const int parent = tree.parent[static_cast<size_t>(i)];
    TANDEM_CHECK(parent >= -1 && parent < i, "tree node {} has parent {}, expected an earlier node",
                 i, parent);
    uint64_t* mask = &step.tree_mask[static_cast<size_t>(first_row + i) * words];
    int32_t& pos = step.pos[static_cast<size_t>(first_row + i)];
    pos = base;
    if (parent >= 0) {
      pos = step.pos[static_cast<size_t>(first_row + parent)] + 1;
      std::copy_n(&step.tree_mask[static_cast<size_t>(first_row + parent) * words], words, mask);
    }
    mask[i / 64] |= uint64_t{1} << (i % 64);
  }
}

void move_rows(Step& step, int b, int slot, int base, std::span<const int32_t> pages,
               std::span<const std::span<const int32_t>> further, const NearRows& near) {
  const auto i = static_cast<size_t>(b);
  const int32_t shift = base - step.base[i];
  step.slot[i] = slot;
  step.base[i] = base;
  int token = base + step.tentative_of(b);
  for (auto r = static_cast<size_t>(step.row_begin[i]);
       r < static_cast<size_t>(step.row_begin[i + 1]); ++r, ++token) {
    step.pos[r] += shift;
    const auto page = static_cast<size_t>(token / kPageTokens);
    step.row_page[r] = pages[page];
    step.row_in_page[r] = token % kPageTokens;
    for (size_t g = 0; g < step.groups.size(); ++g) step.groups[g].row_page[r] = further[g][page];
    if (!step.near_page.empty()) step.near_page[r] = near.pages[page];
  }
  if (!step.near_begin.empty()) step.near_begin[i] = near.begin;
}

StepRows rows_of(const Step& step) {
  const ops::StepArrays& a = step.arrays;
  // Kernels of the forward only read them; they lie in memory of the step or of an outbox.
  const auto moved = [](const int32_t* array) { return const_cast<int32_t*>(array); };
  StepRows rows{.base = moved(a.base),
                .pos = moved(a.pos),
                .row_page = moved(a.row_page),
                .row_in_page = moved(a.row_in_page),
                .tentative = a.tentative,
                .slot = a.slot,
                .page_table = a.page_table,
                .rows_each = a.n_rows / a.n_seqs,
                .max_pages = a.max_pages};
  static_assert(std::size(StepRows{}.others) == kMaxPageGroups);  // further groups, and near
  size_t n = 0;
  for (const Step::GroupRows& g : step.groups)
    rows.others[n++] = {moved(g.arrays.row_page), g.arrays.page_table};
  if (!step.near_page.empty()) rows.others[n] = {moved(step.near.row_page), step.near.page_table};
  return rows;
}

std::vector<Step> split_levels(const Step& whole, std::span<const std::vector<int>> level_ends) {
  TANDEM_CHECK(level_ends.size() == static_cast<size_t>(whole.n_seqs) && whole.n_seqs > 0,
               "found levels of {} sequences, expected {}", level_ends.size(), whole.n_seqs);
  std::vector<Step> levels(level_ends[0].size());
  const auto words = static_cast<size_t>(whole.mask_words);
  const auto append = [](auto& to, const auto& from, size_t begin, size_t end) {
    to.insert(to.end(), from.begin() + static_cast<ptrdiff_t>(begin),
              from.begin() + static_cast<ptrdiff_t>(end));
  };
  for (size_t l = 0; l < levels.size(); ++l) {
    Step& level = levels[l];
    level.phase = whole.phase;
    level.reading = whole.reading;
    level.drafted = whole.drafted;
    level.n_seqs = whole.n_seqs;
    level.places = whole.places;
    level.ahead = whole.ahead;
    level.slot = whole.slot;
    level.base = whole.base;
    level.last_chunk = whole.last_chunk;
    level.near_begin = whole.near_begin;
    level.groups.resize(whole.groups.size());
    level.mask_words = whole.mask_words;
    level.row_begin = {0};
    for (size_t b = 0; b < level_ends.size(); ++b) {
      const std::vector<int>& ends = level_ends[b];
      TANDEM_CHECK(
          ends.size() == levels.size() && ends.back() == whole.rows_of(static_cast<int>(b)),
          "{} levels do not cover {} rows", ends.size(), whole.rows_of(static_cast<int>(b)));
      const int before = l == 0 ? 0 : ends[l - 1];
      TANDEM_CHECK(ends[l] > before, "level {} ends at row {}, but the previous level at {}", l,
                   ends[l], before);
      if (l > 0) level.tentative.push_back(before);
      const auto begin = static_cast<size_t>(whole.row_begin[b] + before),
                 end = static_cast<size_t>(whole.row_begin[b] + ends[l]);
      append(level.pos, whole.pos, begin, end);
      append(level.row_page, whole.row_page, begin, end);
      append(level.row_in_page, whole.row_in_page, begin, end);
      for (size_t g = 0; g < whole.groups.size(); ++g)
        append(level.groups[g].row_page, whole.groups[g].row_page, begin, end);
      if (!whole.near_page.empty()) append(level.near_page, whole.near_page, begin, end);
      append(level.tree_mask, whole.tree_mask, begin * words, end * words);
      level.n_rows += ends[l] - before;
      level.row_begin.push_back(level.n_rows);
    }
  }
  return levels;
}

}  // namespace tandem::kv
