#include <fmt/ranges.h>

#include <vector>

#include "base/check.h"
#include "kv/policies/code_frames.h"
#include "kv/policies/policies.h"
#include "kv/policies/token_index.h"
#include "tandem/policy.h"

namespace tandem::kv {

namespace {

/// errors   kind recipe: keys are to lie in host memory, but every layer has a window
void check_place(const Bounds& bounds) {
  const Geometry& g = bounds.geometry;
  if (!bounds.hosted || g.dense_retention().recent == Retention{}.recent) return;
  throw recipe_error("cache.place",
                     "is host, which is not supported: all layers of this model use a sliding "
                     "window of {} tokens",
                     g.window(0))
      .hint("set it to device: the keys of a window need little memory");
}

}  // namespace

std::unique_ptr<Policy> make_policy(const recipe::Cache& cache, const Bounds& bounds) {
  check_place(bounds);
  if (cache.policy) return make_external(cache, bounds);
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

/// Needs without names, but for the settings that distinguish a policy from others of its kind.
Needs needs_of_kind(const recipe::Cache& cache) {
  const auto text = [](const auto& value) { return recipe::yaml_text(value); };
  switch (cache.kind) {
    case recipe::CacheKind::full:
      return {.reads_all = true,
              .can_be_hosted = true,
              // Near keys, and those in host memory or in codes; the first page.
              .sources = cache.is_quantized()  ? 3
                         : cache.cpu_attends() ? 2
                                               : 1};
    case recipe::CacheKind::streaming: {
      const bool turns_q = cache.reposition && cache.sinks > 0;
      return {.name_of_settings = fmt::format(" {}+{}{}", cache.sinks.value, cache.recent.value,
                                              cache.reposition ? " repositioned" : ""),
              .reads_prompts = cache.prefill == recipe::Prefill::windowed,
              .turns_q = turns_q,
              .sources = turns_q ? 2 : 1};
    }
    case recipe::CacheKind::topk:
    case recipe::CacheKind::oracle_sampling:  // score every key, for rows of chains alone
      return {.name_of_settings = " " + text(cache.topk.ratio), .reads_trees = false};
    case recipe::CacheKind::quest:
      return {.name_of_settings = fmt::format(" {} {}", cache.quest.page, text(cache.quest.ratio)),
              .lists = true,
              .sources = 2};
    case recipe::CacheKind::lsh:
      return {.name_of_settings =
                  fmt::format(" {}x{} {}", cache.lsh.bits, cache.lsh.tables, cache.lsh.min_hits),
              .can_be_hosted = true,
              .attends_at_index = true,
              .lists = true,
              .sources = 2};
    case recipe::CacheKind::hybrid: {
      const recipe::Hybrid& h = cache.hybrid;
      const bool samples = h.tail == recipe::HybridTail::sampled;
      return {
          .name_of_settings = fmt::format(" {} {} {}{}{}", h.bits, text(h.exact), text(h.tail),
                                          samples ? " " + text(h.sample) : "",
                                          h.group == recipe::HybridGroup::shared ? " shared" : ""),
          .can_be_hosted = true,
          .lists = true,
          .sources = 2,
          .queries = CodeFrames::kAxisQueries,
          .needs_queries = false};
    }
    case recipe::CacheKind::snapkv:
      return {.name_of_settings =
                  fmt::format(" {} of {}", cache.snapkv.budget.value, cache.snapkv.window),
              .lists = true,
              .sources = 2,
              .queries = cache.snapkv.window};
    case recipe::CacheKind::verified:
      return {.name_of_settings = fmt::format(" {}", cache.verified.budget.value),
              .lists = true,
              .sources = 2,
              .queries = cache.verified.window,
              .scores = true};
    case recipe::CacheKind::retrieval:
      return {.name_of_settings =
                  fmt::format(" {} by {}", cache.retrieval.budget.value, cache.retrieval.chunk),
              .shared_tokens = cache.retrieval.budget.value + 1,
              .lists = true,
              .sources = 2,
              // One more, for a text whose last token runs again.
              .queries = cache.retrieval.n_queries() + 1,
              .rounds = cache.retrieval.rebuild.by_acceptance()};
  }
  TANDEM_CHECK(false, "unknown cache kind {}", static_cast<int>(cache.kind));
  return {};
}

}  // namespace

Needs needs_of(const recipe::Cache& cache) {
  Needs needs = cache.policy ? Needs{} : needs_of_kind(cache);
  needs.kind = cache.policy ? cache.policy->name() : recipe::yaml_text(cache.kind);
  needs.name_of_settings.insert(0, needs.kind);
  if (cache.is_quantized())
    needs.name_of_settings += fmt::format(" {}", recipe::yaml_text(cache.dtype));
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
