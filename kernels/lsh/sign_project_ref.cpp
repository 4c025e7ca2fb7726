#include "kernels/lsh/sign_project.h"

namespace tandem {

void sign_project_ref(const SignProjectParams& p, Range rows) {
  const int words = (p.n_bits + 63) / 64;
  for (int r = rows.begin; r < rows.end; ++r) {
    uint64_t* bits = p.bits + static_cast<int64_t>(r) * words;
    for (int w = 0; w < words; ++w) bits[w] = 0;
    for (int j = 0; j < p.n_bits; ++j) {
      double sum = 0;
      for (int i = 0; i < p.d; ++i)
        sum += double{p.x[static_cast<int64_t>(r) * p.d + i]} * p.w[i * p.w_stride + j];
      if (sum > 0) bits[j / 64] |= uint64_t{1} << (j % 64);
    }
  }
}

}  // namespace tandem
