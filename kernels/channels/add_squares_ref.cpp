#include <algorithm>

#include "kernels/channels/add_squares.h"
#include "kernels/reference.h"

namespace tandem {

namespace {

double inverse(double sum) { return sum >= 0x1p-126 ? 1 / sum : 0; }

}  // namespace

void square_scales_ref(const SquareScalesParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    double sum = 0;
    for (int64_t j = 0; j < p.n_channels; ++j) {
      const double x = element(p.x, p.x_type, r * p.row_stride + j);
      sum += x * x;
    }
    p.scale[r] = static_cast<float>(p.sums ? sum : inverse(sum));
  }
}

void add_squares_ref(const AddSquaresParams& p, Range channels) {
  for (int b = 0; b < p.n_seqs; ++b) {
    const int begin = p.row_begin[b], end = p.row_begin[b + 1];
    const int first = std::max(begin, p.first_row), last = std::min(end, p.last_row);
    if (first >= last) continue;
    float* const sums = p.to.sums + p.slot[b] * p.to.slot_stride;
    float& rows = p.to.rows[p.slot[b] * p.to.rows_stride];
    const double blend = p.blend, weight = blend > 0 ? blend * rows / (end - begin) : 1;
    for (int64_t j = channels.begin; j < channels.end; ++j) {
      double sum = sums[j];
      if (first == begin) sum *= 1 - blend;
      for (int64_t r = first; r < last; ++r) {
        const double x = element(p.x, p.x_type, r * p.row_stride + j);
        const double of_row = p.scale != nullptr ? double{p.scale[r - p.first_row]} : 1;
        sum += x * x * weight * (p.sums ? inverse(of_row) : of_row);
      }
      sums[j] = static_cast<float>(sum);
    }
    if (p.blend == 0 && channels.begin == 0) rows += static_cast<float>(last - first);
  }
}

}  // namespace tandem
