#pragma once
#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/weights/weights.h"

namespace tandem::model {

/// Called with the weights that have been read since the last call; false ends the work.
using WeightProgress = std::function<bool(int64_t n)>;

/// errors   kind interrupted, if the progress says so
inline void add_read(const WeightProgress& progress, int64_t n) {
  if (progress && !progress(n)) throw Error(ErrorKind::interrupted, "", "interrupted");
}

/// Weights that are read at a time.
inline constexpr int64_t kWeightPiece = int64_t{1} << 20;

/// Reads a matrix from two sources, whole rows of some kWeightPiece weights at a time, in f32.
/// visit    called with the first row and the values of these rows in `a` and in `b`
template <class Visit>
void each_piece(const WeightSource& a, const WeightSource& b, MatrixId id, const io::Shape& shape,
                const WeightProgress& progress, const Visit& visit) {
  const int64_t rows = shape[0], cols = shape[1], each = std::max<int64_t>(1, kWeightPiece / cols);
  std::vector<float> of_a, of_b;
  for (int64_t begin = 0; begin < rows; begin += each) {
    const int64_t end = std::min(rows, begin + each), n = (end - begin) * cols;
    for (std::vector<float>* piece : {&of_a, &of_b}) piece->resize(static_cast<size_t>(n));
    a.rows(id, begin, end, DType::f32, of_a.data());
    b.rows(id, begin, end, DType::f32, of_b.data());
    visit(begin, std::span<const float>(of_a), std::span<const float>(of_b));
    add_read(progress, n);
  }
}

}  // namespace tandem::model
