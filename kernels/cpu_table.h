#pragma once
#include "base/cpu_features.h"

namespace tandem {

/// The CPU variant of every operation, chosen for one ISA. An entry without a variant for that ISA
/// holds the one of the next weaker.
struct CpuTable {
  Isa isa;
};

/// Table of one ISA; `isa` must not exceed isa_detected().
const CpuTable& cpu_table(Isa isa);
/// Table of the ISA in use.
inline const CpuTable& cpu_table() { return cpu_table(isa_in_use()); }

}  // namespace tandem
