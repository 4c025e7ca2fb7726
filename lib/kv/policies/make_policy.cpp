#include <fmt/ranges.h>

#include <vector>

#include "base/check.h"
#include "kv/policies/code_frames.h"
#include "kv/policies/policies.h"

namespace tandem::kv {

std::unique_ptr<Policy> make_policy(const recipe::Cache& cache, const Bounds& bounds) {
  switch (cache.kind) {
    case recipe::CacheKind::full:
      return make_full(cache, bounds);
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
    case recipe::CacheKind::snapkv:
      return make_snapkv(cache, bounds);
    case recipe::CacheKind::verified:
      return make_verified(cache, bounds);
    case recipe::CacheKind::retrieval:
      return make_retrieval(cache, bounds);
  }
  TANDEM_CHECK(false, "unknown cache kind {}", static_cast<int>(cache.kind));
  return nullptr;
}

Needs needs_of(const recipe::Cache& cache) {
  switch (cache.kind) {
    case recipe::CacheKind::full:
      return {.sources = cache.cpu_attends() ? 2 : 1};  // near keys, and those in host memory
    case recipe::CacheKind::streaming: {
      const bool turns_q = cache.reposition && cache.sinks > 0;
      return {.reads_prompts = cache.prefill == recipe::Prefill::windowed,
              .turns_q = turns_q,
              .sources = turns_q ? 2 : 1};
    }
    case recipe::CacheKind::topk:
    case recipe::CacheKind::oracle_sampling:  // score every key, for rows of chains alone
      return {.reads_trees = false};
    case recipe::CacheKind::quest:
    case recipe::CacheKind::lsh:
      return {.lists = true, .sources = 2};
    case recipe::CacheKind::hybrid:
      return {
          .lists = true, .sources = 2, .queries = CodeFrames::kAxisQueries, .needs_queries = false};
    case recipe::CacheKind::snapkv:
      return {.lists = true, .sources = 2, .queries = cache.snapkv.window};
    case recipe::CacheKind::verified:
      return {.lists = true, .sources = 2, .queries = cache.verified.window, .scores = true};
    case recipe::CacheKind::retrieval:
      // One more, for a text whose last token runs again.
      return {.lists = true,
              .sources = 2,
              .queries = cache.retrieval.n_queries() + 1,
              .rounds = cache.retrieval.rebuild.by_acceptance()};
  }
  TANDEM_CHECK(false, "unknown cache kind {}", static_cast<int>(cache.kind));
  return {};
}

std::string kinds_where(const std::function<bool(const Needs&)>& suits) {
  std::vector<std::string_view> names;
  const auto all = enum_names(recipe::CacheKind{});
  for (size_t i = 0; i < all.size(); ++i) {
    recipe::Cache cache;
    cache.kind = static_cast<recipe::CacheKind>(i);
    if (suits(needs_of(cache))) names.push_back(all[i]);
  }
  const std::string_view last = names.back();
  names.pop_back();
  return names.empty() ? std::string(last) : fmt::format("{} or {}", fmt::join(names, ", "), last);
}

}  // namespace tandem::kv
