#include "kernels/cpu_table.h"

#include <array>

namespace tandem {

const CpuTable& cpu_table(Isa isa) {
  static const std::array tables = {CpuTable{Isa::scalar}, CpuTable{Isa::avx2},
                                    CpuTable{Isa::avx512}, CpuTable{Isa::avx512_bf16},
                                    CpuTable{Isa::amx}};
  return tables[static_cast<size_t>(isa)];
}

}  // namespace tandem
