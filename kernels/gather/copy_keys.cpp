#include <cstring>

#include "kernels/gather/copy_keys.h"

namespace tandem {

void copy_keys_cpu(const CopyKeysParams& p, Range kv_heads) {
  const auto bytes = static_cast<size_t>(p.row_bytes);
  const auto row_at = [&](const int32_t* pages, int token, int head) {
    const int64_t first = (int64_t{pages[token / kPageTokens]} * p.n_kv_heads + head) * kPageTokens;
    return (first + token % kPageTokens) * p.row_bytes;
  };
  for (int head = kv_heads.begin; head < kv_heads.end; ++head)
    for (int i = 0; i < p.n; ++i) {
      const int token = p.ids[head * p.id_stride + i / p.run] * p.run + i % p.run;
      const int64_t to = row_at(p.to_pages, i, head), from = row_at(p.from_pages, token, head);
      std::memcpy(static_cast<char*>(p.k_to) + to, static_cast<const char*>(p.k_from) + from,
                  bytes);
      std::memcpy(static_cast<char*>(p.v_to) + to, static_cast<const char*>(p.v_from) + from,
                  bytes);
    }
}

}  // namespace tandem
