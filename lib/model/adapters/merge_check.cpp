#include "model/adapters/merge_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "base/convert.h"

namespace tandem::model {
namespace {

/// A weight's bits, and what it is as a number.
template <class T>
Error differs(MatrixId id, int64_t row, int64_t col, T found, T wanted, const char* whose) {
  return make_error(ErrorKind::numeric, canonical_name(id),
                    "[{}, {}] of the merged model is {}, but {} is {}", row, col, to_float(found),
                    whose, to_float(wanted))
      .hint("a file was changed after it was read, or is damaged: merge again from its sources");
}

template <class T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

float rounded(float x, float) { return x; }
bf16 rounded(float x, bf16) { return to_bf16(x); }

/// The rounding of a sum, in units of the largest of its terms.
constexpr double rounding(float) { return 0x1p-21; }
constexpr double rounding(bf16) { return 0x1p-7; }

/// Slices of one adapter in a matrix.
struct Slices {
  float weight;
  int64_t n;                   // features
  std::vector<int64_t> place;  // of a row or column among them, -1 = not there
  std::vector<float> values;
};

/// One matrix, a few rows at a time.
template <class T>
class MatrixCheck {
 public:
  MatrixCheck(MatrixId id, const io::Shape& shape, std::span<const WeightedAdapter> adapters)
      : id_(id), rows_(shape[0]), cols_(shape[1]), columns_(ends_in_stream(id.role)) {
    for (const WeightedAdapter& given : adapters) {
      if (given.weight == 0 || !holds(given.adapter, id)) continue;
      const auto* adapter = std::get_if<Adapter>(&given.adapter);
      if (adapter == nullptr) {
        factors_ = true;
        continue;
      }
      const std::span<const int32_t> index = adapter->index(id);
      Slices& s = slices_.emplace_back(Slices{given.weight, std::ssize(index), {}, {}});
      s.place.assign(static_cast<size_t>(columns_ ? cols_ : rows_), -1);
      for (size_t i = 0; i < index.size(); ++i)
        s.place[static_cast<size_t>(index[i])] = static_cast<int64_t>(i);
      s.values = adapter->values(id);
    }
  }

  void run(const WeightSource& base, const WeightSource& merged, const WeightSource& again,
           DType dtype, MergeCheck& found, const WeightProgress& progress) {
    const int64_t each = std::max<int64_t>(1, kWeightPiece / cols_);
    std::vector<T> before, after;
    std::vector<float> exact;
    for (int64_t begin = 0; begin < rows_; begin += each) {
      const int64_t end = std::min(rows_, begin + each);
      const auto n = static_cast<size_t>((end - begin) * cols_);
      before.resize(n);
      after.resize(n);
      exact.resize(n);
      base.rows(id_, begin, end, dtype, before.data());
      base.rows(id_, begin, end, DType::f32, exact.data());
      merged.rows(id_, begin, end, dtype, after.data());
      if (factors_) again.rows(id_, begin, end, dtype, before.data());
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c < cols_; ++c) {
          const auto i = static_cast<size_t>((r - begin) * cols_ + c);
          check(r, c, before[i], exact[i], after[i], found);
        }
      add_read(progress, (end - begin) * cols_);
    }
  }

 private:
  /// before   the base's; of a matrix that factors change what another merge makes of it
  void check(int64_t r, int64_t c, T before, float exact, T after, MergeCheck& found) const {
    if (factors_) {
      if (!std::isfinite(to_float(after)))
        throw differs(id_, r, c, after, before, "another merge's finite value");
      if (!same(after, before)) throw differs(id_, r, c, after, before, "another merge's value");
      ++found.whole;
      return;
    }
    double sum = exact, size = std::abs(exact);
    float value = 0;
    int n = 0;
    bool replaced = true;
    for (const Slices& s : slices_) {
      const int64_t place = s.place[static_cast<size_t>(columns_ ? c : r)];
      if (place < 0) continue;
      value = s.values[static_cast<size_t>(columns_ ? r * s.n + place : place * cols_ + c)];
      const double change = double{s.weight} * (double{value} - exact);
      sum += change;
      size += std::abs(change) + std::abs(value);
      replaced = replaced && s.weight == 1;
      ++n;
    }
    if (n == 0) {
      if (!same(after, before))
        throw differs(id_, r, c, after, before, "the base's value outside the adapters");
      ++found.outside;
    } else if (n == 1 && replaced) {
      if (const T wanted = rounded(value, T{}); !same(after, wanted))
        throw differs(id_, r, c, after, wanted, "the adapter's value");
      ++found.inside;
    } else {
      if (!(std::abs(to_float(after) - sum) <= rounding(T{}) * size))
        throw differs(id_, r, c, after, rounded(static_cast<float>(sum), T{}),
                      "the sum of the base and the weighted changes");
      ++found.summed;
    }
  }

  MatrixId id_;
  int64_t rows_, cols_;
  bool columns_, factors_ = false;
  std::vector<Slices> slices_;
};

}  // namespace

MergeCheck check_merged(const WeightSource& base, const WeightSource& merged,
                        const WeightSource& again, std::span<const WeightedAdapter> adapters,
                        const ModelConfig& config, DType dtype, const WeightProgress& progress) {
  MergeCheck found;
  const auto check = [&](MatrixId id) {
    const io::Shape shape = shape_of(id.role, config);
    if (shape.size() == 1) {
      const bool changed = std::ranges::any_of(adapters, [&](const WeightedAdapter& given) {
        return given.weight != 0 && holds(given.adapter, id);
      });
      const std::vector<float> before = (changed ? again : base).vector(id),
                               after = merged.vector(id);
      for (size_t i = 0; i < before.size(); ++i)
        if (!same(before[i], after[i]))
          throw differs(id, 0, static_cast<int64_t>(i), after[i], before[i],
                        changed ? "another merge's value" : "the base's value");
      (changed ? found.whole : found.outside) += shape[0];
      add_read(progress, shape[0]);
    } else if (dtype == DType::f32) {
      MatrixCheck<float>(id, shape, adapters).run(base, merged, again, dtype, found, progress);
    } else {
      MatrixCheck<bf16>(id, shape, adapters).run(base, merged, again, dtype, found, progress);
    }
  };
  for (const MatrixId& id : all_matrices(config)) check(id);
  return found;
}

}  // namespace tandem::model
