#include "speculate/plan/affine_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

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
  if (batches) c.parts.push_back(&AffineTime::call_s);
  if (contexts || points[0].context == 0) c.parts.push_back(&AffineTime::sequence_s);
  if (contexts || points[0].context > 0) c.parts.push_back(&AffineTime::key_s);
  for (size_t i = 0; i < c.parts.size(); ++i)
    for (const TimePoint& p : points)
      c.scale[i] = std::max(c.scale[i], Columns::value(c.parts[i], p));
  return c;
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
    equations.add(x, p.seconds);
  }
  const std::array<double, 3> solution = equations.solve();
  AffineTime fit;
  for (size_t i = 0; i < columns.parts.size(); ++i)
    fit.*columns.parts[i] = solution[i] / columns.scale[i];
  return fit;
}

}  // namespace tandem::speculate
