#include "kernels/norm/column_sums.h"
#include "kernels/reference.h"

namespace tandem {

void column_sums_ref(const ColumnSumsParams& p, Range columns) {
  for (int64_t c = columns.begin; c < columns.end; ++c) {
    double sum = p.sums[c];
    for (int64_t r = 0; r < p.n_rows; ++r) {
      double term = element(p.dy, p.dy_type, r * p.dim + c);
      if (p.x != nullptr) {
        const int64_t row = p.rows == nullptr ? r : p.rows[r];
        term *= element(p.x, p.x_type, row * p.dim + c) * p.scale[r];
      }
      sum += term;
    }
    p.sums[c] = static_cast<float>(sum);
  }
}

}  // namespace tandem
