#pragma once
#include "base/page.h"
#include "base/types.h"

namespace tandem {

/// The key of a token of a sequence with these pages.
template <class T>
__device__ const T* key_row(const void* k_pool, const int32_t* pages, int token, int n_kv_heads,
                            int kv_head, int d) {
  const int64_t row = (int64_t{pages[token / kPageTokens]} * n_kv_heads + kv_head) * kPageTokens +
                      token % kPageTokens;
  return static_cast<const T*>(k_pool) + row * d;
}

}  // namespace tandem
