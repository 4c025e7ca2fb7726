#include "speculate/plan/measured_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"

namespace tandem::speculate {
namespace {

/// Normal equations of a linear fit of up to three unknowns.
class NormalEquations {
 public:
  explicit NormalEquations(size_t n) : n_(n) {}

  void add(const std::array<double, 3>& x, double y) {
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = 0; j < n_; ++j) rows_[i][j] += x[i] * x[j];
      rows_[i][n_] += x[i] * y;
    }
  }

  /// By elimination with pivots.
  /// errors   kind numeric: no single solution
  std::array<double, 3> solve() {
    for (size_t i = 0; i < n_; ++i) {
      size_t pivot = i;
      for (size_t r = i; r < n_; ++r)
        if (std::abs(rows_[r][i]) > std::abs(rows_[pivot][i])) pivot = r;
      std::swap(rows_[i], rows_[pivot]);
      // Columns are scaled to at most 1: a dependent one has only rounding left.
      if (std::abs(rows_[i][i]) < 1e-9)
        throw Error(ErrorKind::numeric, "fit of times",
                    "the measured batches and contexts are too few or too similar for a fit")
            .hint("measure at least three points, with two batches and two contexts");
      for (size_t r = 0; r < n_; ++r)
        if (r != i) eliminate(r, i);
    }
    std::array<double, 3> solution{};
    for (size_t i = 0; i < n_; ++i) solution[i] = rows_[i][n_] / rows_[i][i];
    return solution;
  }

 private:
  void eliminate(size_t row, size_t by) {
    const double factor = rows_[row][by] / rows_[by][by];
    for (size_t j = by; j <= n_; ++j) rows_[row][j] -= factor * rows_[by][j];
  }

  size_t n_;
  std::array<std::array<double, 4>, 3> rows_{};
};

/// The unknowns of a fit: the parts that the points can separate, and each column's scale.
struct Columns {
  std::vector<double AffineTime::*> parts;
  std::array<double, 3> scale{};

  static double value(double AffineTime::*part, const TimePoint& p) {
    AffineTime one;
    one.*part = 1;
    return one.at(p.batch, p.context);
  }
};

Columns columns_of(std::span<const TimePoint> points) {
  const auto differ = [&](auto of) {
    return std::ranges::any_of(points, [&](const TimePoint& p) { return of(p) != of(points[0]); });
  };
  const bool batches = differ([](const TimePoint& p) { return double(p.batch); });
  const bool contexts = differ([](const TimePoint& p) { return p.context; });
  Columns c;
  if (batches) c.parts.push_back(&AffineTime::call_ms);
  if (contexts || points[0].context == 0) c.parts.push_back(&AffineTime::sequence_ms);
  if (contexts || points[0].context > 0) c.parts.push_back(&AffineTime::key_ms);
  for (size_t i = 0; i < c.parts.size(); ++i)
    for (const TimePoint& p : points)
      c.scale[i] = std::max(c.scale[i], Columns::value(c.parts[i], p));
  return c;
}

using Curve = std::map<double, double>;  // y by x

/// Interpolates between the two points around x; none outside of them.
std::optional<double> interpolate(const Curve& curve, double x) {
  const auto above = curve.lower_bound(x);
  if (above == curve.end()) return std::nullopt;
  if (above->first == x) return above->second;
  if (above == curve.begin()) return std::nullopt;
  const auto below = std::prev(above);
  const double share = (x - below->first) / (above->first - below->first);
  return below->second + share * (above->second - below->second);
}

/// Interpolates by context within each batch, then by batch.
std::optional<double> interpolate(std::span<const TimePoint> points, const Workload& work) {
  std::map<int, Curve> by_batch;
  for (const TimePoint& p : points) by_batch[p.batch][p.context] = p.ms;
  Curve at_context;
  for (const auto& [batch, curve] : by_batch)
    if (const auto s = interpolate(curve, work.context)) at_context[batch] = *s;
  return interpolate(at_context, work.batch);
}

}  // namespace

AffineTime fit_affine(std::span<const TimePoint> points) {
  if (points.empty())
    throw Error(ErrorKind::numeric, "fit of times", "found no times, expected at least three");
  const Columns columns = columns_of(points);
  NormalEquations equations(columns.parts.size());
  for (const TimePoint& p : points) {
    std::array<double, 3> x{};
    for (size_t i = 0; i < columns.parts.size(); ++i)
      x[i] = Columns::value(columns.parts[i], p) / columns.scale[i];
    equations.add(x, p.ms);
  }
  const std::array<double, 3> solution = equations.solve();
  AffineTime fit;
  for (size_t i = 0; i < columns.parts.size(); ++i)
    fit.*columns.parts[i] = solution[i] / columns.scale[i];
  return fit;
}

MeasuredCosts::MeasuredCosts(TimingTable table, std::string where)
    : table_(std::move(table)), where_(std::move(where)) {
  check_timing(table_, where_);
  for (size_t i = 0; i < table_.buckets.size(); ++i)
    if (table_.buckets[i].context == 0)
      throw input_error(
          where_, "buckets[{}] has no context, expected the number of tokens at which it was timed",
          i);
}

double MeasuredCosts::ms(const Workload& work, TimeCurve StepCost::*curve, int n) const {
  std::vector<TimePoint> points;
  for (const StepCost& b : table_.buckets)
    points.push_back({b.batch, static_cast<double>(b.context), (b.*curve).at(n)});
  if (const auto inside = interpolate(points, work)) return *inside;
  try {
    // A fit to noise may fall below 0 far from the points.
    return std::max(0.0, fit_affine(points).at(work.batch, work.context));
  } catch (const Error&) {
    throw input_error(where_,
                      "has no times at batch {} and {:.0f} tokens, and too few others for a fit",
                      work.batch, work.context)
        .hint("measure at least three points, with two batches and two contexts");
  }
}

bool MeasuredCosts::is_fitted(const Workload& work) const {
  std::vector<TimePoint> points;
  for (const StepCost& b : table_.buckets)
    points.push_back({b.batch, static_cast<double>(b.context), 0});
  return !interpolate(points, work);
}

StepCost MeasuredCosts::at(const Workload& work, std::optional<int> most_gamma) const {
  StepCost cost = table_.buckets.front();
  cost.batch = work.batch;
  cost.context = static_cast<int>(work.context);
  if (most_gamma) {
    cost.target.tokens.resize(static_cast<size_t>(*most_gamma) + 1);
    std::iota(cost.target.tokens.begin(), cost.target.tokens.end(), 1);
    cost.draft.tokens = {1};
    cost.skip_deepest = true;  // chains' engines do
  }
  for (TimeCurve StepCost::*curve : {&StepCost::target, &StepCost::draft}) {
    (cost.*curve).ms.clear();
    for (const int n : (cost.*curve).tokens) (cost.*curve).ms.push_back(ms(work, curve, n));
  }
  return cost;
}

}  // namespace tandem::speculate
