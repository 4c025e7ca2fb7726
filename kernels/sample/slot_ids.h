#pragma once
// Contracts of load_slot_ids and store_slot_ids. No STL: included by CUDA sources. The CPU's bodies
// are the reference of a GPU's, whose parameters point into device memory.
#include "base/types.h"

namespace tandem {

/// Token ids that stay on a device between the steps that draw and read them.
struct SlotIdsParams {
  int32_t* last;        // [slots]
  const int32_t* slot;  // [n], to be stored no slot twice; negative: padding, whose id is 0 and
                        // is not stored
  int32_t* ids;         // [n]
  int n;
  int32_t limit = 0;  // of load_slot_ids: 0, or ids from this one on, padding of a vocabulary that
                      // the reader lacks, become 0
};

using SlotIdsFn = void(const SlotIdsParams&, Range ids);
/// ids[i] = last[slot[i]].
/// errors   none (preconditions checked by the caller)
SlotIdsFn load_slot_ids_cpu;
void load_slot_ids_cuda(const SlotIdsParams&, Stream);
/// last[slot[i]] = ids[i].
/// errors   none (preconditions checked by the caller)
SlotIdsFn store_slot_ids_cpu;
void store_slot_ids_cuda(const SlotIdsParams&, Stream);

}  // namespace tandem
