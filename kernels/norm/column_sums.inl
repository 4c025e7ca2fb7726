#include "kernels/norm/column_sums.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

/// Row by row over columns that stay in the first-level cache.
template <class Dy, class X>
void add_columns(const ColumnSumsParams& p, Range columns) {
  for (int r = 0; r < p.n_rows; ++r) {
    const Dy* dy = static_cast<const Dy*>(p.dy) + static_cast<int64_t>(r) * p.dim;
    const int64_t row = p.rows == nullptr ? r : p.rows[r];
    const X* x = p.x == nullptr ? nullptr : static_cast<const X*>(p.x) + row * p.dim;
    const Vec scale = set1(x == nullptr ? 1.0f : p.scale[r]);
    for (int c = columns.begin; c < columns.end; c += Vec::kLanes) {
      const int n = columns.end - c < Vec::kLanes ? columns.end - c : Vec::kLanes;
      const Vec factor = x == nullptr ? scale : load_n(x + c, n) * scale;
      store_n(p.sums + c, fma(load_n(dy + c, n), factor, load_n(p.sums + c, n)), n);
    }
  }
}

}  // namespace

void TANDEM_ISA_FN(column_sums)(const ColumnSumsParams& p, Range columns) {
  if (p.dy_type == DType::bf16)
    p.x_type == DType::bf16 ? add_columns<bf16, bf16>(p, columns)
                            : add_columns<bf16, float>(p, columns);
  else
    p.x_type == DType::bf16 ? add_columns<float, bf16>(p, columns)
                            : add_columns<float, float>(p, columns);
}

}  // namespace tandem
