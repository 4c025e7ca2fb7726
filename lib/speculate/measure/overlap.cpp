#include "speculate/measure/overlap.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"

namespace tandem::speculate {
namespace {

std::span<const float> row_of(const Tensor& logits, size_t row) {
  return {logits.slice(static_cast<int64_t>(row), 1).as<float>(),
          static_cast<size_t>(logits.row_size())};
}

/// errors   kind numeric
void check_meaning(const Tensor& logits) {
  const std::span<const float> all(logits.as<float>(), static_cast<size_t>(logits.elements()));
  if (std::ranges::any_of(all, [](float x) { return std::isnan(x); }))
    throw Error(ErrorKind::numeric, "", "logits of the target or a draft hold NaN")
        .hint("check the weights, or set model.compute to f32");
}

}  // namespace

std::vector<double> distribution(std::span<const float> logits, double temperature) {
  std::vector<double> p(logits.size());
  const auto best = std::ranges::max_element(logits);
  if (temperature == 0) {
    p[static_cast<size_t>(best - logits.begin())] = 1;
    return p;
  }
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i)
    sum += p[i] = std::exp((double{logits[i]} - double{*best}) / temperature);
  for (double& x : p) x /= sum;
  return p;
}

double overlap(std::span<const double> p, std::span<const double> q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += p[i] < q[i] ? p[i] : q[i];
  return sum;
}

RowDistributions::RowDistributions(const Tensor& logits, std::span<const double> temperatures)
    : temperatures_(temperatures.begin(), temperatures.end()), rows_(temperatures.size()) {
  check_meaning(logits);
  const auto n = static_cast<size_t>(logits.rows());
  for (auto& rows : rows_) rows.resize(n);
  parallel_for(static_cast<int>(n * rows_.size()), [&](int i) {
    const size_t t = static_cast<size_t>(i) / n, row = static_cast<size_t>(i) % n;
    rows_[t][row] = distribution(row_of(logits, row), temperatures_[t]);
  });
}

std::vector<std::vector<double>> RowDistributions::overlaps(const Tensor& logits) const {
  const auto n = static_cast<size_t>(logits.rows());
  check_meaning(logits);
  std::vector<std::vector<double>> all(rows_.size(), std::vector<double>(n));
  parallel_for(static_cast<int>(n * rows_.size()), [&](int i) {
    const size_t t = static_cast<size_t>(i) / n, row = static_cast<size_t>(i) % n;
    all[t][row] = overlap(rows_[t][row], distribution(row_of(logits, row), temperatures_[t]));
  });
  return all;
}

}  // namespace tandem::speculate
