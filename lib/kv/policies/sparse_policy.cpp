#include "kv/policies/sparse_policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace tandem::kv {
namespace {

/// Layers that a sparse policy serves: not the dense ones, and not those with a separate window.
/// errors   kind recipe: a dense layer beyond the model (those of the default list are left out)
std::vector<int> sparse_layers(const recipe::Cache& cache, const Geometry& g) {
  // MagicPIG's choice is not that of policies that read few keys in every layer.
  const bool none =
      (cache.kind == recipe::CacheKind::snapkv || cache.kind == recipe::CacheKind::verified ||
       cache.kind == recipe::CacheKind::retrieval) &&
      cache.dense_layers == recipe::Cache::default_dense_layers();
  const std::vector<int> dense = none ? std::vector<int>{} : cache.dense_layers;
  if (!none && dense != recipe::Cache::default_dense_layers())
    for (const int layer : dense)
      if (layer >= g.n_layers)
        throw recipe_error("cache.dense_layers", "names layer {}, but the model has layers 0 to {}",
                           layer, g.n_layers - 1)
            .hint("list layers of this model, or [] for none");
  std::vector<int> layers;
  for (int layer = 0; layer < g.n_layers; ++layer)
    if (g.window(layer) == 0 && std::ranges::find(dense, layer) == dense.end())
      layers.push_back(layer);
  return layers;
}

}  // namespace

SelectingPolicy::SelectingPolicy(const recipe::Cache& cache, const Bounds& bounds)
    : bounds_(bounds),
      needs_(needs_of(cache)),
      layers_(sparse_layers(cache, bounds.geometry)),
      ordinal_(static_cast<size_t>(bounds.geometry.n_layers), -1),
      tail_begin_(static_cast<size_t>(bounds.max_seqs)) {
  for (size_t i = 0; i < layers_.size(); ++i)
    ordinal_[static_cast<size_t>(layers_[i])] = static_cast<int>(i);
}

Needs SelectingPolicy::needs() const {
  Needs needs = needs_;
  if (bounds_.on_gpu()) {
    // One range, of all tokens that are in no list; attention reads lists in the same launch, or
    // separately where rows and heads have their own.
    needs.sources = 1;
    needs.list_keys = layers_.empty() ? 0 : list_keys();
  } else {
    needs.scratch_bytes = scratch_bytes();
  }
  return needs;
}

int SelectingPolicy::rows_at_a_time(size_t row_bytes, size_t most_bytes) const {
  constexpr size_t kMostLists = 65535;  // of a grid
  const size_t rows =
      std::min(most_bytes / row_bytes, kMostLists / static_cast<size_t>(geometry().n_heads));
  return static_cast<int>(std::clamp<size_t>(rows, 1, static_cast<size_t>(bounds_.max_rows)));
}

void SelectingPolicy::plan_from(int layer, const Step& step,
                                const std::function<int(int slot)>& begin_of, AttendPlan& plan) {
  bool any = false;
  for (int b = 0; b < step.n_seqs && ordinal(layer) >= 0; ++b) {
    const auto i = static_cast<size_t>(b);
    tail_begin_[i] = begin_of(step.slot[i]);
    any |= tail_begin_[i] > 0;
  }
  if (!any) return plan.add({.window = geometry().window(layer)});
  plan.add({.seq_key_lo = tail_begin_.data()});
  plan.selector = this;
}

void SelectingPolicy::share_list(const int32_t* ids, int n, int n_static,
                                 std::span<KeyList> lists) {
  for (size_t h = 0; h < lists.size(); ++h) {
    lists[h].segments.push_back({ids, n, nullptr, nullptr});
    lists[h].n_static = n_static;
    lists[h].n_before = h > 0 ? n : 0;
    lists[h].index_bytes = h > 0 ? 0 : n * static_cast<double>(sizeof(int32_t));
  }
}

SparsePolicy::SparsePolicy(const recipe::Cache& cache, const Bounds& bounds, int n_sinks, int unit,
                           int max_block, int least)
    : SelectingPolicy(cache, bounds),
      index_({.max_seqs = bounds.max_seqs,
              .max_prompts = bounds.max_prompts,
              .max_tokens = bounds.max_tokens,
              .total_tokens = bounds.total_tokens,
              .max_appended = bounds.max_appended,
              .sinks = std::min(n_sinks, bounds.max_tokens),
              .recent = static_cast<int>(cache.recent),
              .unit = unit,
              .least = least,
              .max_block = max_block}),
      sink_ids_(static_cast<size_t>(index_.begin())),
      by_layers_(static_cast<size_t>(bounds.max_seqs)) {
  std::iota(sink_ids_.begin(), sink_ids_.end(), 0);
  if (bounds.on_gpu()) device_index_.emplace(index_, bounds.max_seqs, bounds.device);
}

void SparsePolicy::plan(MemoryPlan& plan, const std::string& prefix) const {
  if (device_index_) device_index_->plan(plan, prefix);
}

void SparsePolicy::set_up(Arena& arena, const std::string& prefix, const Connections& to) {
  if (device_index_) device_index_->allocate(arena, prefix);
  exec_ = to.exec;
  for (int slot = 0; slot < bounds().max_seqs; ++slot) update_device(slot);
}

void SparsePolicy::update_device(int slot) {
  if (device_index_) device_index_->update(slot, index_, *exec_.queue);
}

void SparsePolicy::select(int layer, const Step& step, const Tensor&, AttendPlan& plan) {
  plan_from(
      layer, step, [&](int slot) { return index_.empty(slot) ? 0 : index_.end(slot); }, plan);
}

void SparsePolicy::on_prompt(int slot, const PagedStore& store) {
  by_layers_[static_cast<size_t>(slot)] = {};
  grow(slot, true, store);
}

void SparsePolicy::on_commit(std::span<const int32_t> slots, const PagedStore& store) {
  for (const int32_t slot : slots) grow(slot, false, store);
}

void SparsePolicy::on_truncate(int slot, int n, const PagedStore& store) {
  if (n >= index_.end(slot)) return;
  index_.release(slot);
  update_device(slot);
  grow(slot, true, store);
}

void SparsePolicy::on_fork(int from, int to) {
  index_.fork(from, to);
  update_device(to);
}

void SparsePolicy::on_release(int slot) {
  index_.release(slot);
  try {
    update_device(slot);
  } catch (const Error&) {
    // The GPU has stopped: nothing reads its index.
  }
}

TokenIndex::Work SparsePolicy::lay_out(int slot, int length, bool prompt) {
  TokenIndex::Work work{.slot = slot, .length = length, .fresh = index_.empty(slot)};
  const int end = index_.wanted_end(slot, length, prompt);
  if (end > index_.end(slot)) work.pieces = index_.extend(slot, end);
  return work;
}

void SparsePolicy::grow(int slot, bool prompt, const PagedStore& store) {
  TokenIndex::Work work = lay_out(slot, store.length(slot), prompt);
  if (work.pieces.empty()) return;
  update_device(slot);
  if (device_index_) device_index_->set_pages(store.pages(slot), *exec_.queue);
  work.ordinals = {0, grid().n_sparse};
  index_tokens(work, store);
}

void SparsePolicy::on_layer(int layer, int slot, int length, const PagedStore& store) {
  const int ord = ordinal(layer);
  if (ord < 0) return;
  TokenIndex::Work& work = by_layers_[static_cast<size_t>(slot)];
  // Nothing could take an entry from an index again: on_prompt does that.
  if (ord == 0)
    work = index_.empty(slot) ? lay_out(slot, length, /*prompt=*/true) : TokenIndex::Work{};
  if (work.pieces.empty()) return;
  if (ord == 0) update_device(slot);
  if (device_index_) device_index_->set_pages(store.pages(slot), *exec_.queue);
  work.ordinals = {ord, ord + 1};
  index_tokens(work, store);
}

void SparsePolicy::on_give_up(int slot) {
  TokenIndex::Work& work = by_layers_[static_cast<size_t>(slot)];
  if (work.pieces.empty()) return;
  work = {};
  on_release(slot);
}

int SparsePolicy::indexed(int length) const {
  return std::max(0, index_.wanted_end(0, length, true) - index_.begin());
}

KeysRead SparsePolicy::keys_read(int layer, int length) const {
  if (ordinal(layer) < 0) return {.total = geometry().visible(layer, length)};
  const int n = indexed(length), fixed = length - n;
  const double all = std::min<double>(length, fixed + std::round(expected_group_keys(n)));
  if (n == 0) return {.total = static_cast<int>(all)};
  return {.total = static_cast<int>(all),
          .chosen = expected_keys(n),
          .fixed = static_cast<double>(fixed)};
}

HostedIndex::Choosing SparsePolicy::choosing(int layer, int length) const {
  const int n = indexed(length);
  if (ordinal(layer) < 0 || n == 0) return {};
  return {.bytes = geometry().n_kv_heads * expected_index_bytes(n),
          .scores = static_cast<double>(n) * geometry().n_heads};
}

}  // namespace tandem::kv
