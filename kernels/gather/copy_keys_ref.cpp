#include <cstring>

#include "kernels/gather/copy_keys.h"

namespace tandem {

void copy_keys_ref(const CopyKeysParams& p) {
  const auto bytes = static_cast<size_t>(p.row_bytes);
  const auto row_at = [&](const int32_t* pages, int token, int head) {
    const int64_t first = (int64_t{pages[token / kPageTokens]} * p.n_kv_heads + head) * kPageTokens;
    return (first + token % kPageTokens) * p.row_bytes;
  };
  for (int head = 0; head < p.n_kv_heads; ++head)
    for (int i = 0; i < p.n; ++i) {
      const int64_t to = row_at(p.to_pages, i, head),
                    from = row_at(p.from_pages, p.ids[head * p.id_stride + i], head);
      std::memcpy(static_cast<char*>(p.k_to) + to, static_cast<const char*>(p.k_from) + from,
                  bytes);
      std::memcpy(static_cast<char*>(p.v_to) + to, static_cast<const char*>(p.v_from) + from,
                  bytes);
    }
}

}  // namespace tandem
