#include "kernels/code/code.h"
#include "kernels/code/rotation.h"

namespace tandem {

void TANDEM_ISA_FN(rotate_rows)(const RotateRowsParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) rotate_row(p.rows + r * p.dims, p.signs, p.dims);
}

void TANDEM_ISA_FN(rotate_rows_back)(const RotateRowsParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r)
    rotate_row_back(p.rows + r * p.dims, p.signs, p.dims);
}

}  // namespace tandem
