#include "ops/transfers.h"

#include <chrono>
#include <cstddef>
#include <cstring>

#include "ops/operation.h"

namespace tandem::ops {

void load_slot_ids(const SlotIdsParams& p, Stream stream) {
  TANDEM_OPERATION(load_slot_ids).run(p, p.n, sizeof(int32_t), stream);
}

void store_slot_ids(const SlotIdsParams& p, Stream stream) {
  TANDEM_OPERATION(store_slot_ids).run(p, p.n, sizeof(int32_t), stream);
}

void host_copy(const HostCopyParams& p, Stream stream) {
  if (stream.handle == nullptr) {
    const ptrdiff_t turn = p.turn == nullptr ? 0 : *p.turn;
    if (p.bytes > 0)
      std::memmove(static_cast<std::byte*>(p.to) + turn * p.to_step,
                   static_cast<const std::byte*>(p.from) + turn * p.from_step, p.bytes);
    return;
  }
  launch(TANDEM_KERNEL(host_copy), p, stream);
}

void read_clock(uint64_t* ns, Stream stream) {
  if (stream.handle == nullptr) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    *ns = static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
    return;
  }
  launch(TANDEM_KERNEL(read_clock), ns, stream);
}

}  // namespace tandem::ops
