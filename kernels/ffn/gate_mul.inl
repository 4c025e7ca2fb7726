#include "kernels/ffn/gate_mul.h"

#include "kernels/ffn/gate_vec.h"

namespace tandem {
namespace {

using namespace simd;

template <Gate kGate, class T>
void gate_rows(const GateMulParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const T* gate = static_cast<const T*>(p.gate_up) + static_cast<int64_t>(r) * 2 * p.ffn_dim;
    const T* up = gate + p.ffn_dim;
    T* out = static_cast<T*>(p.out) + static_cast<int64_t>(r) * p.ffn_dim;
    int i = 0;
    for (; i + Vec::kLanes <= p.ffn_dim; i += Vec::kLanes)
      store(out + i, gate_value(kGate, load(gate + i)) * load(up + i));
    if (const int n = p.ffn_dim - i; n > 0)
      store_n(out + i, gate_value(kGate, load_n(gate + i, n)) * load_n(up + i, n), n);
  }
}

template <Gate kGate>
void gate_rows(const GateMulParams& p, Range rows) {
  p.act == DType::bf16 ? gate_rows<kGate, bf16>(p, rows) : gate_rows<kGate, float>(p, rows);
}

}  // namespace

void TANDEM_ISA_FN(gate_mul)(const GateMulParams& p, Range rows) {
  with_gate(p.gate, [&](auto gate) { gate_rows<decltype(gate)::value>(p, rows); });
}

}  // namespace tandem
