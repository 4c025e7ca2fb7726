#include "speculate/tree/tree_dp.h"

#include <algorithm>
#include <limits>

namespace tandem::speculate {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
// Plain loops over tiles, which the compiler turns into vectors of any width: with the search of m
// cut short, kernels of wider instruction sets would save a millisecond of a handful.
constexpr int kTile = 16;   // sizes that are worked on together
constexpr int kBlock = 16;  // subtree sizes between two looks at whether more can help

/// True if any a[i] + c exceeds best[i].
bool improves(const double* a, double c, const double* best) {
  int any = 0;
  for (int i = 0; i < kTile; ++i) any |= static_cast<int>(a[i] + c > best[i]);
  return any != 0;
}

/// best[i] = max(best[i], a[i - m] + c[m]) over m = 0 .. n - 1. Four m a pass: `best` is loaded and
/// stored once for them.
void absorb(const double* a, const double* c, int n, double* best) {
  const auto max = [](double x, double y) { return x > y ? x : y; };
  int m = 0;
  for (; m + 4 <= n; m += 4)
    for (int i = 0; i < kTile; ++i) {
      const double x = max(a[i - m] + c[m], a[i - m - 1] + c[m + 1]);
      const double y = max(a[i - m - 2] + c[m + 2], a[i - m - 3] + c[m + 3]);
      best[i] = max(best[i], max(x, y));
    }
  for (; m < n; ++m)
    for (int i = 0; i < kTile; ++i) best[i] = max(best[i], a[i - m] + c[m]);
}

/// Indices begin .. end - 1 of an array.
struct Span {
  int begin, end;
};

/// out[n] = max over m >= 1 of a[n - m] + c[m] for n in `to`. Both a and c are non-decreasing in
/// their ranges (a node more never takes tokens away), a is -inf beside its own. Hence once
/// a[n - m] plus the greatest c cannot win, no larger m can.
void max_plus(const double* a, Span from, const SizeColumn& c, double* out, Span to) {
  const int c_end = static_cast<int>(c.size());
  for (int n = to.begin; n < to.end; n += kTile) {
    double best[kTile];
    std::fill_n(best, kTile, kNone);
    const int m_end = std::min(c_end, n + kTile - from.begin);
    for (int m = std::max(1, n - (from.end - 1)); m < m_end; m += kBlock) {
      const int block_end = std::min(m + kBlock, m_end);
      if (n + kTile - m <= from.end) {
        const double* nearest = a + n - m;
        if (!improves(nearest, c[static_cast<size_t>(m_end) - 1], best)) break;
        if (!improves(nearest, c[static_cast<size_t>(block_end) - 1], best)) continue;
      }
      absorb(a + n - m, &c[static_cast<size_t>(m)], block_end - m, best);
    }
    std::copy_n(best, std::min(kTile, to.end - n), out + n);
  }
}

}  // namespace

TreeLayer::TreeLayer(const std::vector<double>& row, const SizeColumn& below, int max_size)
    : max_branch_(static_cast<int>(std::min(row.size(), static_cast<size_t>(max_size) - 1))),
      stride_(static_cast<size_t>(max_size) + 1 + 2 * kPadding),
      values_(std::make_unique_for_overwrite<double[]>((static_cast<size_t>(max_branch_) + 1) *
                                                       stride_)) {
  static_assert(kPadding >= kTile);
  // With b children of 1 .. h nodes each a tree has b + 1 .. 1 + b h nodes.
  const auto h = static_cast<int64_t>(below.size()) - 1;
  const auto sizes = [&](int b) {
    return Span{b + 1, static_cast<int>(std::min<int64_t>(max_size, 1 + b * h)) + 1};
  };
  std::fill_n(values_.get(), stride_, kNone);
  values(0)[1] = 1;
  best_.assign(static_cast<size_t>(sizes(max_branch_).end), kNone);
  best_[1] = 1;
  SizeColumn weighted(below.size());
  for (int b = 1; b <= max_branch_; ++b) {
    const double p = row[static_cast<size_t>(b) - 1];
    std::ranges::transform(below, weighted.begin(), [p](double value) { return p * value; });
    const Span to = sizes(b);
    double* out = values(b);
    std::fill(out - kPadding, out + to.begin, kNone);
    max_plus(values(b - 1), sizes(b - 1), weighted, out, to);
    std::fill(out + to.end, out - kPadding + stride_, kNone);
    for (int n = to.begin; n < to.end; ++n)
      best_[static_cast<size_t>(n)] = std::max(best_[static_cast<size_t>(n)], out[n]);
  }
}

std::vector<int> TreeLayer::child_sizes(int size, const std::vector<double>& row,
                                        const SizeColumn& below) const {
  int b = 0;
  for (int i = 1; i <= max_branch_; ++i)
    if (values(i)[size] > values(b)[size]) b = i;
  std::vector<int> list(static_cast<size_t>(b));
  for (; b > 0; --b) {
    const double p = row[static_cast<size_t>(b) - 1];
    const int m_end = std::min(static_cast<int>(below.size()), size - b + 1);
    int best_m = 0;
    double best = kNone;
    for (int m = 1; m < m_end; ++m)
      if (const double value = values(b - 1)[size - m] + p * below[static_cast<size_t>(m)];
          value > best) {
        best = value;
        best_m = m;
      }
    list[static_cast<size_t>(b) - 1] = best_m;
    size -= best_m;
  }
  return list;
}

TreeProgram::TreeProgram(AcceptanceVector acceptance, int max_size, int max_levels,
                         const Interrupted& interrupted)
    : acceptance_(std::move(acceptance)), max_size_(max_size), leaf_{0, 1} {
  max_levels = std::min(max_levels, max_size);
  const int n_upper = static_cast<int>(acceptance_.rows.size()) - 1;
  const auto& last_row = acceptance_.rows.back();
  bool settled = false;
  for (int l = 1; l <= max_levels; ++l) {
    poll(interrupted);
    // The last row's trees hang below n_upper levels.
    if (const int remaining = l - n_upper; remaining >= 2 && !settled) {
      layers_.emplace_back(last_row, stationary(remaining - 1), max_size);
      if (layers_.back().best() == stationary(remaining - 1)) {
        layers_.pop_back();
        settled = true;
      }
    }
    if (settled) return;
    const auto upper = upper_layers(l);
    columns_.push_back(upper.empty() ? stationary(l) : upper.back().best());
  }
}

const SizeColumn& TreeProgram::stationary(int remaining) const {
  const size_t i = std::min(static_cast<size_t>(remaining), layers_.size() + 1);
  return i < 2 ? leaf_ : layers_[i - 2].best();
}

std::vector<TreeLayer> TreeProgram::upper_layers(int levels) const {
  std::vector<TreeLayer> upper;
  const int n_upper = std::min(static_cast<int>(acceptance_.rows.size()), levels) - 1;
  upper.reserve(static_cast<size_t>(n_upper));
  for (int d = n_upper - 1; d >= 0; --d)
    upper.emplace_back(acceptance_.row(d),
                       upper.empty() ? stationary(levels - n_upper) : upper.back().best(),
                       max_size_);
  return upper;
}

TokenTree TreeProgram::tree(int size, int levels) const {
  const auto upper = upper_layers(levels);
  const int n_upper = static_cast<int>(upper.size());
  // The layer of a subtree's root at a depth, and the column of those below it.
  const auto column_at = [&](int depth) -> const SizeColumn& {
    return depth < n_upper ? upper[static_cast<size_t>(n_upper - 1 - depth)].best()
                           : stationary(levels - depth);
  };
  const auto layer_at = [&](int depth) -> const TreeLayer& {
    if (depth < n_upper) return upper[static_cast<size_t>(n_upper - 1 - depth)];
    return layers_[std::min(static_cast<size_t>(levels - depth) - 2, layers_.size() - 1)];
  };
  struct Subtree {
    int root, size, depth;
  };
  std::vector<Subtree> open = {{0, size, 0}};
  std::vector<int> parents = {-1};
  while (!open.empty()) {
    const Subtree subtree = open.back();
    open.pop_back();
    if (subtree.size == 1) continue;
    for (const int child : layer_at(subtree.depth)
                               .child_sizes(subtree.size, acceptance_.row(subtree.depth),
                                            column_at(subtree.depth + 1))) {
      open.push_back({static_cast<int>(parents.size()), child, subtree.depth + 1});
      parents.push_back(subtree.root);
    }
  }
  return tree_of_parents(parents);
}

}  // namespace tandem::speculate
