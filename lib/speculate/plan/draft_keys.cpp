#include "speculate/plan/draft_keys.h"

#include <algorithm>

namespace tandem::speculate {

using recipe::CacheKind;

std::optional<KeyChoice> key_choice(const recipe::Cache& cache, double context) {
  const auto choice = [&](double budget, int page = 16, double refresh = 0) {
    return KeyChoice{cache.kind, budget, page, refresh};
  };
  switch (cache.kind) {
    case CacheKind::full:
      return choice(context);
    case CacheKind::streaming:
      return choice(static_cast<double>(cache.sinks.value + cache.recent.value));
    case CacheKind::quest:
      return choice(cache.quest.ratio.value * context, cache.quest.page);
    case CacheKind::topk:
      return choice(cache.topk.ratio.value * context);
    case CacheKind::snapkv:
      return choice(static_cast<double>(cache.snapkv.budget.value), 16,
                    cache.snapkv.refresh.tokens);
    case CacheKind::verified:
      return choice(static_cast<double>(cache.verified.budget.value));
    case CacheKind::retrieval:
      return choice(static_cast<double>(cache.retrieval.budget.value), cache.retrieval.chunk,
                    cache.retrieval.rebuild.tokens);
    default:
      return {};
  }
}

double keys_read(const KeyChoice& choice, double context) {
  return choice.keys == CacheKind::full ? context : std::min(choice.budget, context);
}

double select_bytes(const KeyChoice& choice, const ModelCosts& costs, double context) {
  const double all_keys = costs.kv_bytes * context / 2;  // K without V
  switch (choice.keys) {
    case CacheKind::quest:  // two bounds a page
      return 2 * all_keys / choice.page;
    case CacheKind::topk:
      return all_keys;
    default:
      return 0;
  }
}

double round_bytes(const KeyChoice& choice, const ModelCosts& costs, double context) {
  if (choice.keys != CacheKind::verified) return 0;
  constexpr int kScoreBytes = 2;  // f16, a key and KV head; written, then read to choose
  return 2.0 * kScoreBytes * costs.n_layers * costs.n_kv_heads * context;
}

double refresh_bytes(const KeyChoice& choice, const ModelCosts& costs, double context) {
  switch (choice.keys) {
    case CacheKind::snapkv:  // all keys, and the chosen ones read and written
      return costs.kv_bytes * (context / 2 + 2 * keys_read(choice, context));
    case CacheKind::retrieval:  // the means, which are kept
      return costs.kv_bytes * context / 2 / choice.page;
    default:
      return 0;
  }
}

}  // namespace tandem::speculate
