#include "kernels/sample/slot_ids.h"

namespace tandem {

void load_slot_ids_cpu(const SlotIdsParams& p, Range ids) {
  for (int i = ids.begin; i < ids.end; ++i) {
    const int32_t id = p.slot[i] < 0 ? 0 : p.last[p.slot[i]];
    p.ids[i] = p.limit > 0 && id >= p.limit ? 0 : id;
  }
}

void store_slot_ids_cpu(const SlotIdsParams& p, Range ids) {
  for (int i = ids.begin; i < ids.end; ++i)
    if (p.slot[i] >= 0) p.last[p.slot[i]] = p.ids[i];
}

}  // namespace tandem
