// Projections as tensor cores take them, against the places that mma_bf16.cuh names.
#include "kernels/lsh/split_projections.h"

#include <algorithm>
#include <cmath>

#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// The number of two bf16 in a word that has a coordinate's.
float half_of(uint32_t word, int c) {
  return to_float(bf16{static_cast<uint16_t>(word >> (16 * (c % 2)))});
}

void check(int d, int n_columns) {
  CAPTURE(d);
  CAPTURE(n_columns);
  const int dims = projection_dims(d), stride = n_columns + 3;
  CHECK(dims % 16 == 0);
  CHECK(dims >= d);
  CHECK(dims < d + 16);
  PhiloxStream stream(3, static_cast<uint32_t>(d));
  std::vector<float> w(static_cast<size_t>(d * stride));
  for (float& x : w) x = random_float(stream, 3.0f);
  w[1] = 0;
  std::vector<ProjectionPart> parts(projection_parts(d, n_columns));
  std::vector<float> columns(static_cast<size_t>(n_columns * dims), NAN);
  const float longest = split_projections({.parts = parts.data(),
                                           .columns = columns.data(),
                                           .w = w.data(),
                                           .w_stride = stride,
                                           .d = d,
                                           .n_columns = n_columns});
  double most = 0;
  int wrong = 0;
  for (int j = 0; j < n_columns; ++j) {
    double square = 0;
    for (int c = 0; c < dims; ++c) {
      const float x = c < d ? w[static_cast<size_t>(c * stride + j)] : 0.0f;
      square += double{x} * x;
      wrong += columns[static_cast<size_t>(j * dims + c)] == x ? 0 : 1;
      // Lane 4 g + t: column g; b0 from coordinate 2 t on, b1 from 2 t + 8 on.
      const int tile = j / 8 * (dims / 16) + c / 16, lane = j % 8 * 4 + c % 8 / 2;
      const ProjectionPart& part = parts[static_cast<size_t>(tile * 32 + lane)];
      const float upper = half_of(part.upper[c % 16 / 8], c),
                  lower = half_of(part.lower[c % 16 / 8], c);
      wrong += upper == to_float(to_bf16(x)) ? 0 : 1;
      wrong += std::abs(double{x} - upper - lower) <= 0x1p-16 * std::abs(x) ? 0 : 1;
    }
    most = std::max(most, std::sqrt(square));
  }
  CHECK(wrong == 0);
  CHECK(longest >= most);
  CHECK(longest <= 1.00001 * most);
}

}  // namespace

TEST_SUITE("kernels/split_projections") {
  TEST_CASE("every number is in its lane, in two parts, and its column is in one piece") {
    for (const int d : {1, 16, 40, 128})
      for (const int n_columns : {8, 64, 200}) check(d, n_columns);
  }
}
