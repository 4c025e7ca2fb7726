#include "kv/policies/copied_keys.h"

#include "ops/selection.h"

namespace tandem::kv {

CopiedKeys::CopiedKeys(int n_tokens, std::vector<int> layers, const Bounds& bounds)
    : n_tokens_(n_tokens), layers_(std::move(layers)), bounds_(bounds) {}

PagedStore::Spec CopiedKeys::own_spec(const std::string& prefix) const {
  const Geometry& g = geometry();
  return {.n_layers = g.n_layers,
          .layers = layers_,
          .n_kv_heads = g.n_kv_heads,
          .head_dim = g.head_dim,
          .dtype = g.dtype,
          // Every sequence that is read may have chosen for itself, forks too.
          .n_pages = bounds_.max_read * pages_a_set(),
          .max_slots = bounds_.max_seqs,
          .max_pages = pages_a_set(),
          .device = bounds_.device,
          .prefix = prefix + ".derived pages"};
}

size_t CopiedKeys::n_ids() const {
  return static_cast<size_t>(bounds_.max_seqs) * static_cast<size_t>(pages_a_set());
}

size_t CopiedKeys::n_counts() const {
  return static_cast<size_t>(bounds_.max_seqs) * static_cast<size_t>(geometry().n_kv_heads);
}

void CopiedKeys::plan(MemoryPlan& plan, const std::string& prefix, bool own_pages) const {
  if (!any()) return;
  if (own_pages) PagedStore::plan(own_spec(prefix), plan);
  if (on_gpu())
    plan.add(prefix + ".tables",
             (n_ids() + n_counts() + static_cast<size_t>(bounds_.max_seqs)) * sizeof(int32_t),
             bounds_.device);
}

void CopiedKeys::allocate(Arena& arena, const std::string& prefix, bool own_pages) {
  if (!any()) return;
  if (on_gpu()) tables_ = static_cast<int32_t*>(arena.take(prefix + ".tables"));
  if (!own_pages) return;
  own_ = std::make_unique<PagedStore>(own_spec(prefix), arena);
  for (int slot = 0; slot < bounds_.max_seqs; ++slot) own_->acquire();
  keep_in(*own_, 0);
}

void CopiedKeys::keep_in(PagedStore& store, int first_slot) {
  store_ = &store;
  first_slot_ = first_slot;
}

void CopiedKeys::begin(int slot, int n) {
  // What the queue still reads of pages, it reads before they are written again.
  store_->truncate(set_of(slot), 0);
  store_->reserve(set_of(slot), n);
  store_->set_length(set_of(slot), n);
  write_ids(slot);
}

void CopiedKeys::write_ids(int slot) {
  const std::vector<int32_t>& ids = store_->pages(set_of(slot));
  if (on_gpu() && !ids.empty())
    exec_.queue->copy_in(tables_ + slot * pages_a_set(), ids.data(), ids.size() * sizeof(int32_t));
}

void CopiedKeys::copy(int slot, const Lists& lists, const PagedStore& from) {
  const Geometry& g = geometry();
  ops::copy_keys(
      {.k_to = store_->k(lists.layer).raw(),
       .v_to = store_->v(lists.layer).raw(),
       .to_pages = on_gpu() ? tables_ + slot * pages_a_set() : store_->pages(set_of(slot)).data(),
       .k_from = from.k(lists.layer).raw(),
       .v_from = from.v(lists.layer).raw(),
       .from_pages = lists.pages,
       .ids = lists.ids,
       .id_stride = lists.id_stride,
       .run = lists.run,
       .n = store_->length(set_of(slot)),
       .n_kv_heads = g.n_kv_heads,
       .row_bytes = g.head_dim * static_cast<int>(dtype_bytes(g.dtype))},
      exec_.stream());
}

void CopiedKeys::set_rest(int slot, int rest, int n) {
  if (store_ != nullptr) store_->truncate(set_of(slot), rest > 0 ? n : 0);
  if (!on_gpu()) return;
  const auto heads = static_cast<size_t>(geometry().n_kv_heads), at = static_cast<size_t>(slot);
  const std::vector<int32_t> count(heads, rest > 0 ? n : 0);
  const int32_t begin = rest;
  int32_t* const counts = tables_ + n_ids();
  exec_.queue->copy_in(counts + at * heads, count.data(), heads * sizeof(int32_t));
  exec_.queue->copy_in(counts + n_counts() + at, &begin, sizeof(begin));
}

void CopiedKeys::fork(int from, int to) {
  store_->truncate(set_of(to), 0);
  store_->share(set_of(from), set_of(to));
  write_ids(to);
}

KeyLists CopiedKeys::lists(int layer) const {
  return {.ids = tables_,
          .count = tables_ + n_ids(),
          .rest = tables_ + n_ids() + n_counts(),
          .row_stride = pages_a_set(),
          .head_stride = 0,
          .count_stride = geometry().n_kv_heads,
          .run = kPageTokens,
          .k_pool = store_->k(layer).raw(),
          .v_pool = store_->v(layer).raw()};
}

}  // namespace tandem::kv
