#include "kernels/adapter/add_columns.h"

#include "base/convert.h"

namespace tandem {
namespace {

template <class T>
void add(const AddColumnsParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    T* const y = static_cast<T*>(p.y) + r * p.stride;
    const float* const in = p.in + r * p.n;
    for (int c = 0; c < p.n; ++c) {
      T& to = y[p.index[c]];
      if constexpr (sizeof(T) == sizeof(float))
        to += in[c];
      else
        to = to_bf16(to_float(to) + in[c]);
    }
  }
}

}  // namespace

void add_columns_cpu(const AddColumnsParams& p, Range rows) {
  p.type == DType::bf16 ? add<bf16>(p, rows) : add<float>(p, rows);
}

}  // namespace tandem
