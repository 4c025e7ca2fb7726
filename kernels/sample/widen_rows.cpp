#include "kernels/sample/widen_rows.h"

#include <limits>

namespace tandem {

void widen_rows_cpu(const WidenRowsParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* in = p.in + int64_t{r} * p.from;
    float* out = p.out + int64_t{r} * p.to;
    for (int i = 0; i < p.to; ++i)
      out[i] = i < p.from ? in[i] : -std::numeric_limits<float>::infinity();
  }
}

}  // namespace tandem
