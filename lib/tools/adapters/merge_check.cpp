#include "tools/adapters/merge_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/convert.h"

namespace tandem::tools {
namespace {

using model::Weight;

/// A weight's bits, and what it is as a number.
template <class T>
Error differs(Weight weight, int layer, int64_t row, int64_t col, T found, T wanted,
              const char* whose) {
  return Error::make(ErrorKind::numeric, model::checkpoint_name(weight, std::max(layer, 0)),
                     "[{}, {}] of the merged model is {}, {} is {}", row, col, to_float(found),
                     whose, to_float(wanted))
      .hint("a file has changed since it was read, or is damaged: merge again from its sources");
}

template <class T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

float rounded(float x, float) { return x; }
bf16 rounded(float x, bf16) { return to_bf16(x); }

/// One matrix, a few rows at a time.
template <class T>
class MatrixCheck {
 public:
  MatrixCheck(Weight weight, int layer, const io::Shape& shape, const model::Adapter& adapter)
      : weight_(weight),
        layer_(layer),
        rows_(shape[0]),
        cols_(shape[1]),
        columns_(model::takes_columns(weight)),
        holds_(layer >= 0 && adapter.holds(weight, layer)) {
    if (!holds_) return;
    const std::span<const int32_t> index = adapter.index(weight, layer);
    place_.assign(static_cast<size_t>(columns_ ? cols_ : rows_), -1);
    for (size_t i = 0; i < index.size(); ++i)
      place_[static_cast<size_t>(index[i])] = static_cast<int64_t>(i);
    n_ = static_cast<int64_t>(index.size());
    values_ = adapter.values(weight, layer);
  }

  void run(const model::WeightSource& base, const model::WeightSource& merged, DType dtype,
           MergeCheck& found, const WeightProgress& progress) {
    const int64_t each = std::max<int64_t>(1, kWeightPiece / cols_);
    std::vector<T> before, after;
    for (int64_t begin = 0; begin < rows_; begin += each) {
      const int64_t end = std::min(rows_, begin + each);
      for (std::vector<T>* piece : {&before, &after})
        piece->resize(static_cast<size_t>((end - begin) * cols_));
      base.rows(weight_, layer_, begin, end, dtype, before.data());
      merged.rows(weight_, layer_, begin, end, dtype, after.data());
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c < cols_; ++c) {
          const auto i = static_cast<size_t>((r - begin) * cols_ + c);
          check(r, c, before[i], after[i], found);
        }
      add_read(progress, (end - begin) * cols_);
    }
  }

 private:
  void check(int64_t r, int64_t c, T before, T after, MergeCheck& found) const {
    if (holds_ && n_ == 0) {
      if (!std::isfinite(to_float(after)))
        throw differs(weight_, layer_, r, c, after, before, "the base's, a finite one,");
      ++found.whole;
      return;
    }
    const int64_t place = holds_ ? place_[static_cast<size_t>(columns_ ? c : r)] : -1;
    if (place < 0) {
      if (!same(after, before))
        throw differs(weight_, layer_, r, c, after, before, "the base's, outside the adapter,");
      ++found.outside;
      return;
    }
    const T wanted =
        rounded(values_[static_cast<size_t>(columns_ ? r * n_ + place : place * cols_ + c)], T{});
    if (!same(after, wanted))
      throw differs(weight_, layer_, r, c, after, wanted, "the adapter's value");
    ++found.inside;
  }

  Weight weight_;
  int layer_;
  int64_t rows_, cols_, n_ = 0;
  bool columns_, holds_;
  std::vector<int64_t> place_;  // of a row or column among the adapter's, -1 = not there
  std::vector<float> values_;
};

}  // namespace

MergeCheck check_merged(const model::WeightSource& base, const model::WeightSource& merged,
                        const model::Adapter& adapter, const model::ModelConfig& config,
                        DType dtype, const WeightProgress& progress) {
  MergeCheck found;
  const auto check = [&](Weight weight, int layer) {
    const io::Shape shape = model::weight_shape(weight, config);
    if (shape.size() == 1) {
      const std::vector<float> before = base.vector(weight, layer),
                               after = merged.vector(weight, layer);
      for (size_t i = 0; i < before.size(); ++i)
        if (!same(before[i], after[i]))
          throw differs(weight, layer, 0, static_cast<int64_t>(i), after[i], before[i],
                        "the base's");
      found.outside += shape[0];
      add_read(progress, shape[0]);
    } else if (dtype == DType::f32) {
      MatrixCheck<float>(weight, layer, shape, adapter).run(base, merged, dtype, found, progress);
    } else {
      MatrixCheck<bf16>(weight, layer, shape, adapter).run(base, merged, dtype, found, progress);
    }
  };
  for (const Weight w : model::global_weights(config)) check(w, -1);
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Weight w : model::layer_weights(config)) check(w, layer);
  return found;
}

}  // namespace tandem::tools
