#include "kernels/cpu_table.h"

#include <array>

namespace tandem {
namespace {

CpuTable make_table(Isa isa) {
  CpuTable t{};
  t.isa = isa;
  return t;
}

}  // namespace

const CpuTable& cpu_table(Isa isa) {
  static const std::array tables = {make_table(Isa::scalar), make_table(Isa::avx2),
                                    make_table(Isa::avx512), make_table(Isa::avx512_bf16),
                                    make_table(Isa::amx)};
  return tables[static_cast<size_t>(isa)];
}

}  // namespace tandem
