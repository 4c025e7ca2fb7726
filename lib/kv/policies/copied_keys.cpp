#include "kv/policies/copied_keys.h"

#include <numeric>

#include "ops/selection.h"

namespace tandem::kv {

CopiedKeys::CopiedKeys(int n_tokens, int n_layers, const Bounds& bounds)
    : n_tokens_(n_tokens),
      n_layers_(n_layers),
      bounds_(bounds),
      sets_(bounds.max_seqs, bounds.max_read) {}

size_t CopiedKeys::layer_bytes() const {
  const Geometry& g = geometry();
  return static_cast<size_t>(bounds_.max_read) * static_cast<size_t>(pages_a_set()) *
         static_cast<size_t>(g.n_kv_heads) * kPageTokens * static_cast<size_t>(g.head_dim) *
         dtype_bytes(g.dtype);
}

size_t CopiedKeys::n_ids() const {
  return static_cast<size_t>(bounds_.max_seqs) * static_cast<size_t>(pages_a_set());
}

size_t CopiedKeys::n_counts() const {
  return static_cast<size_t>(bounds_.max_seqs) * static_cast<size_t>(geometry().n_kv_heads);
}

void CopiedKeys::plan(MemoryPlan& plan, const std::string& prefix) const {
  if (n_tokens_ == 0 || n_layers_ == 0) return;
  // Every sequence that is read may have chosen for itself, forks too.
  plan.add(prefix + ".derived pages", 2 * half_bytes(), bounds_.device);
  plan.add(prefix + ".tables",
           (n_ids() + n_counts() + static_cast<size_t>(bounds_.max_seqs)) * sizeof(int32_t),
           bounds_.device);
}

void CopiedKeys::allocate(Arena& arena, const std::string& prefix) {
  if (n_tokens_ == 0 || n_layers_ == 0) return;
  k_ = static_cast<std::byte*>(arena.take(prefix + ".derived pages"));
  v_ = k_ + half_bytes();
  tables_ = static_cast<int32_t*>(arena.take(prefix + ".tables"));
}

void CopiedKeys::begin(int slot) {
  // What the queue still reads of a set, it reads before it is written again.
  if (sets_.own(slot)) write_ids(slot);
}

void CopiedKeys::write_ids(int slot) {
  std::vector<int32_t> ids(static_cast<size_t>(pages_a_set()));
  std::iota(ids.begin(), ids.end(), sets_.of(slot) * pages_a_set());
  exec_.queue->copy_in(tables_ + slot * pages_a_set(), ids.data(), ids.size() * sizeof(int32_t));
}

void CopiedKeys::copy(int slot, const Lists& lists, const PagedStore& store) {
  const Geometry& g = geometry();
  const size_t at = static_cast<size_t>(lists.ordinal) * layer_bytes();
  ops::copy_keys({.k_to = k_ + at,
                  .v_to = v_ + at,
                  .to_pages = tables_ + slot * pages_a_set(),
                  .k_from = store.k(lists.layer).raw(),
                  .v_from = store.v(lists.layer).raw(),
                  .from_pages = lists.pages,
                  .ids = lists.ids,
                  .id_stride = n_tokens_,
                  .n = n_tokens_,
                  .n_kv_heads = g.n_kv_heads,
                  .row_bytes = g.head_dim * static_cast<int>(dtype_bytes(g.dtype))},
                 exec_.stream());
}

void CopiedKeys::set_rest(int slot, int rest) {
  if (rest == 0) sets_.drop(slot);
  const auto heads = static_cast<size_t>(geometry().n_kv_heads), at = static_cast<size_t>(slot);
  const std::vector<int32_t> count(heads, rest > 0 ? n_tokens_ : 0);
  const int32_t begin = rest;
  int32_t* const counts = tables_ + n_ids();
  exec_.queue->copy_in(counts + at * heads, count.data(), heads * sizeof(int32_t));
  exec_.queue->copy_in(counts + n_counts() + at, &begin, sizeof(begin));
}

void CopiedKeys::fork(int from, int to) {
  sets_.share(from, to);
  if (sets_.of(to) >= 0) write_ids(to);
}

KeyLists CopiedKeys::lists(int ordinal) const {
  const size_t at = static_cast<size_t>(ordinal) * layer_bytes();
  return {.ids = tables_,
          .count = tables_ + n_ids(),
          .rest = tables_ + n_ids() + n_counts(),
          .row_stride = pages_a_set(),
          .head_stride = 0,
          .count_stride = geometry().n_kv_heads,
          .run = kPageTokens,
          .k_pool = k_ + at,
          .v_pool = v_ + at};
}

}  // namespace tandem::kv
