#include <fmt/ranges.h>

#include <vector>

#include "base/check.h"
#include "kv/policies/code_frames.h"
#include "kv/policies/policies.h"
#include "kv/policies/token_index.h"

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

namespace {

std::string name_of(const recipe::Cache& cache) {
  const std::string name = recipe::yaml_text(cache.kind);
  const recipe::Lsh& lsh = cache.lsh;
  const recipe::Hybrid& hybrid = cache.hybrid;
  switch (cache.kind) {
    case recipe::CacheKind::full:
      return name;
    case recipe::CacheKind::streaming:
      return name + fmt::format(" {}+{}{}", cache.sinks.value, cache.recent.value,
                                cache.reposition ? " repositioned" : "");
    case recipe::CacheKind::topk:
    case recipe::CacheKind::oracle_sampling:
      return name + " " + recipe::yaml_text(cache.topk.ratio);
    case recipe::CacheKind::quest:
      return name + fmt::format(" {} {}", cache.quest.page, recipe::yaml_text(cache.quest.ratio));
    case recipe::CacheKind::lsh:
      return name + fmt::format(" {}x{} {}", lsh.bits, lsh.tables, lsh.min_hits);
    case recipe::CacheKind::hybrid:
      return name +
             fmt::format(" {} {} {}", hybrid.bits, recipe::yaml_text(hybrid.exact),
                         recipe::yaml_text(hybrid.tail)) +
             (hybrid.tail == recipe::HybridTail::sampled
                  ? fmt::format(" {}", recipe::yaml_text(hybrid.sample))
                  : "") +
             (hybrid.group == recipe::HybridGroup::shared ? " shared" : "");
    case recipe::CacheKind::snapkv:
      return name + fmt::format(" {} of {}", cache.snapkv.budget.value, cache.snapkv.window);
    case recipe::CacheKind::verified:
      return name + fmt::format(" {}", cache.verified.budget.value);
    case recipe::CacheKind::retrieval:
      return name + fmt::format(" {} by {}", cache.retrieval.budget.value, cache.retrieval.chunk);
  }
  return name;
}

Needs needs_of_kind(const recipe::Cache& cache) {
  switch (cache.kind) {
    case recipe::CacheKind::full:
      return {.reads_all = true,
              .can_be_hosted = true,
              .sources = cache.cpu_attends() ? 2 : 1};  // near keys, and those in host memory
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
      return {.lists = true, .sources = 2};
    case recipe::CacheKind::lsh:
      return {.can_be_hosted = true, .attends_at_index = true, .lists = true, .sources = 2};
    case recipe::CacheKind::hybrid:
      return {.can_be_hosted = true,
              .lists = true,
              .sources = 2,
              .queries = CodeFrames::kAxisQueries,
              .needs_queries = false};
    case recipe::CacheKind::snapkv:
      return {.lists = true, .sources = 2, .queries = cache.snapkv.window};
    case recipe::CacheKind::verified:
      return {.lists = true, .sources = 2, .queries = cache.verified.window, .scores = true};
    case recipe::CacheKind::retrieval:
      // One more, for a text whose last token runs again.
      return {.shared_tokens = cache.retrieval.budget.value + 1,
              .lists = true,
              .sources = 2,
              .queries = cache.retrieval.n_queries() + 1,
              .rounds = cache.retrieval.rebuild.by_acceptance()};
  }
  TANDEM_CHECK(false, "unknown cache kind {}", static_cast<int>(cache.kind));
  return {};
}

}  // namespace

Needs needs_of(const recipe::Cache& cache) {
  Needs needs = needs_of_kind(cache);
  needs.kind = recipe::yaml_text(cache.kind);
  needs.name_of_settings = name_of(cache);
  if (needs.shared_tokens == 0)
    needs.shared_tokens = cache.sinks.value + cache.recent.value + TokenIndex::kRoll;
  return needs;
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
