#include "speculate/plan/draft_keys.h"

#include <algorithm>

namespace tandem::speculate {

double keys_read(const KeyChoice& choice, double context) {
  return choice.keys == DraftKeys::full ? context : std::min(choice.budget, context);
}

double select_bytes(const KeyChoice& choice, const ModelCosts& costs, double context) {
  const double all_keys = costs.kv_bytes * context / 2;  // K without V
  switch (choice.keys) {
    case DraftKeys::quest:  // two bounds a page
      return 2 * all_keys / choice.page;
    case DraftKeys::topk:
      return all_keys;
    default:
      return 0;
  }
}

double round_bytes(const KeyChoice& choice, const ModelCosts& costs, double context) {
  if (choice.keys != DraftKeys::verified) return 0;
  constexpr int kScoreBytes = 2;  // f16, a key and KV head; written, then read to choose
  return 2.0 * kScoreBytes * costs.n_layers * costs.n_kv_heads * context;
}

double refresh_bytes(const KeyChoice& choice, const ModelCosts& costs, double context) {
  switch (choice.keys) {
    case DraftKeys::snapkv:  // all keys, and the chosen ones read and written
      return costs.kv_bytes * (context / 2 + 2 * keys_read(choice, context));
    case DraftKeys::retrieval:  // the means, which are kept
      return costs.kv_bytes * context / 2 / choice.page;
    default:
      return 0;
  }
}

}  // namespace tandem::speculate
