#include "model/adapters/low_rank_factors.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/adapters/adapter_features.h"

namespace tandem::model {
namespace {

/// Puts columns [first, first + n) of a matrix [rows, cols] in the place of those of `from`.
void put_columns(std::span<float> to, int64_t cols, int64_t first, std::span<const float> from,
                 int64_t n, float by) {
  for (size_t i = 0; i < from.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / n, column = static_cast<int64_t>(i) % n;
    to[static_cast<size_t>(row * cols + first + column)] = by * from[i];
  }
}

}  // namespace

bool is_finite(const Factors& factors) {
  const auto finite = [](float x) { return std::isfinite(x); };
  return std::ranges::all_of(factors.a, finite) && std::ranges::all_of(factors.b, finite);
}

std::vector<LowRankDelta> factor_views(std::span<const Factors> factors) {
  std::vector<LowRankDelta> views;
  for (const Factors& f : factors)
    views.push_back({.id = f.id, .rank = f.rank, .a = f.a, .b = f.b});
  return views;
}

Factors exact_factors(const WeightSource& base, const WeightSource& sliced,
                      std::span<const WeightedAdapter> adapters, MatrixId id,
                      const ModelConfig& config) {
  const io::Shape shape = shape_of(id.role, config);
  const std::vector<int32_t> index = sliced_features(adapters, id);
  const auto n = static_cast<int64_t>(index.size());
  std::vector<const WeightedAdapter*> products;
  Factors f{.id = id, .rank = n};
  for (const WeightedAdapter& given : adapters)
    if (const auto* low = std::get_if<LowRankAdapter>(&given.adapter);
        low != nullptr && given.weight != 0 && low->holds(id)) {
      TANDEM_CHECK(!low->scales_rows(), "the change of a DoRA adapter has no factors");
      products.push_back(&given);
      f.rank += low->rank(id);
    }
  if (f.rank == 0) return f;
  f.a.resize(static_cast<size_t>(f.rank * shape[1]));
  f.b.resize(static_cast<size_t>(f.rank * shape[0]));
  if (n > 0) {
    const std::vector<float> before = feature_values(base, id, index, config);
    std::vector<float> change = feature_values(sliced, id, index, config);
    for (size_t i = 0; i < change.size(); ++i) change[i] -= before[i];
    const bool columns = ends_in_stream(id.role);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = index[static_cast<size_t>(i)];
      if (columns)
        f.a[static_cast<size_t>(i * shape[1] + at)] = 1;
      else
        f.b[static_cast<size_t>(at * f.rank + i)] = 1;
    }
    if (columns)
      put_columns(f.b, f.rank, 0, change, n, 1);
    else
      std::ranges::copy(change, f.a.begin());
  }
  int64_t first = n;
  for (const WeightedAdapter* given : products) {
    const auto& low = std::get<LowRankAdapter>(given->adapter);
    std::ranges::copy(low.first_factor(id), f.a.begin() + first * shape[1]);
    put_columns(f.b, f.rank, first, low.second_factor(id), low.rank(id),
                given->weight * low.gamma(id));
    first += low.rank(id);
  }
  return f;
}

}  // namespace tandem::model
