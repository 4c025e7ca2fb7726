#include <algorithm>

#include "base/check.h"
#include "kv/policies/policies.h"

namespace tandem::kv {

void drop_behind_window(PagedStore& store, int slot, int sinks, int window) {
  store.drop(slot, sinks, std::max(sinks, store.length(slot) - window));
}

std::unique_ptr<Policy> make_policy(const recipe::Cache& cache, const Bounds& bounds) {
  switch (cache.kind) {
    case recipe::CacheKind::full:
      return make_full(bounds);
    case recipe::CacheKind::streaming:
      return make_streaming(cache, bounds);
    case recipe::CacheKind::topk:
    case recipe::CacheKind::oracle_sampling:
      return make_oracle(cache, bounds);
    case recipe::CacheKind::quest:
      return make_quest(cache, bounds);
    case recipe::CacheKind::lsh:
      return make_lsh(cache, bounds);
    case recipe::CacheKind::hybrid:
      return make_hybrid(cache, bounds);
  }
  TANDEM_CHECK(false, "cache kind {}", static_cast<int>(cache.kind));
  return nullptr;
}

}  // namespace tandem::kv
