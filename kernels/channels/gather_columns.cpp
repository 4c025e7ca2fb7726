#include "kernels/channels/gather_columns.h"

namespace tandem {
namespace {

template <class T>
void gather(const GatherColumnsParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* in = static_cast<const T*>(p.in) + r * p.width;
    T* out = static_cast<T*>(p.out) + r * p.n_columns;
    for (int c = 0; c < p.n_columns; ++c) out[c] = in[p.columns[c]];
  }
}

}  // namespace

void gather_columns_cpu(const GatherColumnsParams& p, Range rows) {
  p.act == DType::bf16 ? gather<bf16>(p, rows) : gather<float>(p, rows);
}

}  // namespace tandem
