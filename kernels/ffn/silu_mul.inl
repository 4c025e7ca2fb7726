#include "kernels/ffn/silu_mul.h"

#include "kernels/ffn/silu.h"

namespace tandem {
namespace {

using namespace simd;

template <class T>
void gate_rows(const SiluMulParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const T* gate = static_cast<const T*>(p.gate_up) + static_cast<int64_t>(r) * 2 * p.ffn_dim;
    const T* up = gate + p.ffn_dim;
    T* out = static_cast<T*>(p.out) + static_cast<int64_t>(r) * p.ffn_dim;
    int i = 0;
    for (; i + Vec::kLanes <= p.ffn_dim; i += Vec::kLanes)
      store(out + i, silu(load(gate + i)) * load(up + i));
    if (const int n = p.ffn_dim - i; n > 0)
      store_n(out + i, silu(load_n(gate + i, n)) * load_n(up + i, n), n);
  }
}

}  // namespace

void TANDEM_ISA_FN(silu_mul)(const SiluMulParams& p, Range rows) {
  if (p.act == DType::bf16)
    gate_rows<bf16>(p, rows);
  else
    gate_rows<float>(p, rows);
}

}  // namespace tandem
