#include "kv/page_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/check.h"
#include "base/page.h"
#include "kv/step.h"

namespace tandem::kv {
namespace {

int missing_in(const PagedStore& store, int slot, int n, const Retention& needed) {
  if (store.pages_given_back(slot) == 0) return -1;
  const auto first_missing = [&](int begin, int end) {
    for (int page = begin / kPageTokens; page * kPageTokens < end; ++page)
      if (store.page(slot, page) < 0) return std::max(begin, page * kPageTokens);
    return -1;
  };
  const int sink = first_missing(0, std::min(n, needed.sinks));
  return sink >= 0 ? sink : first_missing(n - std::min(n, needed.recent - 1), n);
}

}  // namespace

std::vector<PageGroup> page_groups(const Geometry& geometry, int max_tokens) {
  constexpr int kAll = std::numeric_limits<int>::max();
  std::map<int, std::vector<int>, std::greater<>> layers_of;  // by tokens that they keep
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    const int window = geometry.window(layer);
    layers_of[window == 0 || window >= max_tokens ? kAll : window].push_back(layer);
  }
  std::vector<PageGroup> groups;
  for (auto& [kept, layers] : layers_of) {
    if (std::ssize(groups) < kMaxPageGroups) {
      groups.push_back({kept == kAll ? 0 : kept, std::move(layers)});
      continue;
    }
    std::vector<int>& last = groups.back().layers;
    last.insert(last.end(), layers.begin(), layers.end());
    std::ranges::sort(last);
  }
  return groups;
}

std::string page_groups_text(std::span<const PageGroup> groups) {
  std::vector<std::string> all;
  for (const PageGroup& g : groups)
    all.push_back(fmt::format("{}: {}", g.window, fmt::join(g.layers, ", ")));
  return fmt::format("{}", fmt::join(all, "; "));
}

void PageGroups::plan(std::span<const Spec> specs, MemoryPlan& plan) {
  for (const Spec& s : specs) {
    PagedStore::plan(s.store, plan);
    plan.add(s.tables, PageTables::bytes(s.store.max_slots, s.store.max_pages));
  }
}

PageGroups::Group::Group(const Spec& spec, bool first, int kept_before, Arena& arena,
                         const Exec& exec)
    : layer(spec.group.layers.front()),
      window(first ? 0 : spec.group.window),
      margin(first ? 0 : kept_before),
      store(spec.store, arena, exec),
      tables(static_cast<int32_t*>(arena.take(spec.tables)), spec.store.max_slots,
             spec.store.max_pages) {}

PageGroups::PageGroups(std::span<const Spec> specs, int margin, Arena& arena, const Exec& exec)
    : of_layer_(static_cast<size_t>(specs.front().store.n_layers)) {
  for (const Spec& spec : specs) {
    for (const int layer : spec.group.layers) of_layer_[static_cast<size_t>(layer)] = size();
    groups_.push_back(std::make_unique<Group>(spec, groups_.empty(), margin, arena, exec));
  }
}

int PageGroups::acquire() {
  const int slot = groups_.front()->store.acquire();
  for (size_t g = 1; g < size(); ++g) {
    const int other = store(g).acquire();
    TANDEM_CHECK(other == slot, "slots differ: {} and {}", slot, other);
  }
  return slot;
}

void PageGroups::release(int slot) {
  for (const auto& g : groups_) g->store.release(slot);
}

int PageGroups::fork(int slot) {
  int copy = 0;
  for (const auto& g : groups_) copy = g->store.fork(slot);
  return copy;
}

void PageGroups::set_length(int slot, int n) {
  for (const auto& g : groups_) g->store.set_length(slot, n);
}

void PageGroups::reserve(int slot, int n) {
  for (const auto& g : groups_) g->store.reserve(slot, n);
}

void PageGroups::truncate(int slot, int n) {
  for (const auto& g : groups_) g->store.truncate(slot, n);
}

void PageGroups::adopt(int slot, int n, const Retention& needed,
                       const std::function<bool(int layer, int page)>& has) {
  for (const auto& g : groups_)
    for (int page = 0; page * kPageTokens < n; ++page) {
      const int begin = page * kPageTokens, end = begin + kPageTokens;
      g->store.reserve(slot, std::min(n, end));
      if (!has(g->layer, page)) g->store.drop(slot, begin, end);
      g->store.set_length(slot, std::min(n, end));
      if (g->window > 0) g->evict(slot, needed);  // no more than the pool has room for
    }
}

void PageGroups::Group::evict(int slot, const Retention& needed) {
  // The last token may run again (a saved or shared text that goes on without new tokens), so its
  // window is the one that counts.
  const Retention kept = needed.within(window);
  store.drop(slot, kept.sinks, std::max(kept.sinks, store.length(slot) - margin - kept.recent));
}

void PageGroups::evict(int slot, const Retention& needed) {
  for (const auto& g : groups_) g->evict(slot, needed);
}

int PageGroups::missing_token(int slot, int n, const Retention& needed) const {
  for (const auto& g : groups_)
    if (const int token = missing_in(g->store, slot, n, needed.within(g->window)); token >= 0)
      return token;
  return -1;
}

void PageGroups::lay_out_tables(std::span<const int32_t> slots) {
  for (const auto& g : groups_) g->tables.lay_out(g->store, slots);
}

std::vector<std::span<const int32_t>> PageGroups::further_pages(int slot) const {
  std::vector<std::span<const int32_t>> pages;
  for (size_t g = 1; g < size(); ++g) pages.push_back(store(g).pages(slot));
  return pages;
}

}  // namespace tandem::kv
