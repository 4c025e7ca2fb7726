#pragma once
#include "base/types.h"

namespace tandem {

/// Tokens last drawn, by sequence: they stay on the GPU between the steps that draw and read them.
struct SlotIdsParams {
  int32_t* last;        // [slots]
  const int32_t* slot;  // [n], no slot twice
  int32_t* ids;         // [n]
  int n;
};
/// ids[i] = last[slot[i]].
void load_slot_ids_cuda(const SlotIdsParams&, Stream);
/// last[slot[i]] = ids[i].
void store_slot_ids_cuda(const SlotIdsParams&, Stream);

}  // namespace tandem
