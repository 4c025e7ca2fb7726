#include "kv/policies/voted_keys.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/parallel.h"
#include "kv/policies/pool_votes.h"
#include "kv/policies/window_votes.h"
#include "kv/query_ring.h"
#include "ops/selection.h"

namespace tandem::kv {

struct VotedKeys::CpuScratch {
  ScratchCutter cutter;
  WindowScratch window;
  float *pooled, *select;
  int32_t* ids;

  CpuScratch(std::byte* base, const VotedKeys& v)
      : cutter(base),
        window(cutter, v.bounds_, v.spec_.window),
        pooled(cutter.take<float>(static_cast<size_t>(v.bounds_.max_tokens))),
        select(cutter.take<float>(static_cast<size_t>(v.bounds_.max_tokens) + 16)),
        ids(cutter.take<int32_t>(static_cast<size_t>(v.n_chosen()) + 16)) {}
};

namespace {

/// A GPU's scratch: what choosing the lists of one layer needs, and a sequence's pages. `n_ids`: of
/// lists that are passed on.
struct GpuScratch {
  ScratchCutter cutter;
  float *votes, *pooled;  // [KV heads, max_tokens]
  std::byte* kernel;
  int32_t *pages, *ids;

  GpuScratch(std::byte* base, const Bounds& b, int window, size_t n_ids)
      : cutter(base),
        votes(cutter.take<float>(votes_of(b))),
        pooled(cutter.take<float>(votes_of(b))),
        kernel(cutter.take<std::byte>(
            key_votes_cuda_scratch_bytes(b.max_tokens, window, b.geometry.n_heads))),
        pages(cutter.take<int32_t>(static_cast<size_t>(b.max_tokens / kPageTokens + 1))),
        ids(cutter.take<int32_t>(n_ids)) {}

  static size_t votes_of(const Bounds& b) {
    return static_cast<size_t>(b.geometry.n_kv_heads) * static_cast<size_t>(b.max_tokens);
  }
};

}  // namespace

VotedKeys::VotedKeys(const recipe::SnapKv& spec, int sinks, std::vector<int> layers,
                     const Bounds& bounds, Lists lists)
    : spec_(spec), sinks_(sinks), layers_(std::move(layers)), bounds_(bounds), lists_(lists) {}

float VotedKeys::scale() const {
  const bool scaled = spec_.scale == recipe::SnapScale::on;
  return scaled ? 1.0f / std::sqrt(static_cast<float>(geometry().head_dim)) : 1.0f;
}

size_t VotedKeys::layer_ids() const {
  return static_cast<size_t>(geometry().n_kv_heads) * static_cast<size_t>(n_chosen());
}

size_t VotedKeys::slot_ids() const { return passes_on() ? 0 : layers_.size() * layer_ids(); }
size_t VotedKeys::passed_ids() const { return passes_on() ? layer_ids() : 0; }

size_t VotedKeys::list_at(int slot, int ordinal, int kv_head) const {
  return static_cast<size_t>(slot) * slot_ids() +
         static_cast<size_t>(ordinal * geometry().n_kv_heads + kv_head) *
             static_cast<size_t>(n_chosen());
}

size_t VotedKeys::counts() const {
  return static_cast<size_t>(bounds_.max_seqs) * static_cast<size_t>(geometry().n_kv_heads);
}

size_t VotedKeys::scratch_bytes() const {
  return on_gpu() ? GpuScratch(nullptr, bounds_, spec_.window, passed_ids()).cutter.bytes()
                  : CpuScratch(nullptr, *this).cutter.bytes();
}

void VotedKeys::plan(MemoryPlan& plan, const std::string& prefix) const {
  const size_t n_scratch = on_gpu() ? 1 : static_cast<size_t>(max_threads());
  plan.add(prefix + ".lists", static_cast<size_t>(bounds_.max_seqs) * slot_ids() * sizeof(int32_t),
           bounds_.device);
  plan.add(prefix + ".choosing", scratch_bytes() * n_scratch, bounds_.device);
  if (on_gpu() && !passes_on())
    plan.add(prefix + ".counts",
             (counts() + static_cast<size_t>(bounds_.max_seqs)) * sizeof(int32_t), bounds_.device);
}

void VotedKeys::allocate(Arena& arena, const std::string& prefix) {
  if (slot_ids() > 0) ids_ = static_cast<int32_t*>(arena.take(prefix + ".lists"));
  scratch_ = static_cast<std::byte*>(arena.take(prefix + ".choosing"));
  n_scratch_ = max_threads();
  if (on_gpu() && !passes_on()) counts_ = static_cast<int32_t*>(arena.take(prefix + ".counts"));
}

void VotedKeys::fork(int from, int to) {
  if (slot_ids() == 0) return;
  if (on_gpu())
    queries_->exec().queue->copy_within(ids_ + list_at(to, 0, 0), ids_ + list_at(from, 0, 0),
                                        slot_ids() * sizeof(int32_t));
  else
    std::copy_n(ids_ + list_at(from, 0, 0), slot_ids(), ids_ + list_at(to, 0, 0));
}

void VotedKeys::set_rest(int slot, int rest) {
  const auto heads = static_cast<size_t>(geometry().n_kv_heads);
  const std::vector<int32_t> count(heads, rest > 0 ? n_chosen() : 0);
  const auto at = static_cast<size_t>(slot);
  const int32_t begin = rest;
  cuda::Queue& queue = *queries_->exec().queue;
  queue.copy_in(counts_ + at * heads, count.data(), heads * sizeof(int32_t));
  queue.copy_in(counts_ + counts() + at, &begin, sizeof(begin));
}

KeyLists VotedKeys::lists(int ordinal) const {
  return {.ids = ids_ + list_at(0, ordinal, 0),
          .count = counts_,
          .rest = counts_ + counts(),
          .row_stride = static_cast<int64_t>(slot_ids()),
          .head_stride = n_chosen(),
          .count_stride = geometry().n_kv_heads,
          .run = 1};
}

void VotedKeys::choose(int slot, int first_query, int n, const PagedStore& store,
                       const Taker& take) {
  const Choice c{slot, first_query, n};
  if (on_gpu()) return choose_on_gpu(c, store, take);
  const int heads = geometry().n_kv_heads, n_tasks = static_cast<int>(layers_.size()) * heads;
#pragma omp parallel num_threads(n_scratch_) if (n_tasks > 1)
  {
    const CpuScratch s(scratch_ + static_cast<size_t>(omp_get_thread_num()) * scratch_bytes(),
                       *this);
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < n_tasks; ++i) choose_list(c, i / heads, i % heads, store, s);
  }
}

void VotedKeys::choose_list(const Choice& c, int ordinal, int kv_head, const PagedStore& store,
                            const CpuScratch& s) {
  count_votes({.slot = c.slot,
               .layer = layers_[static_cast<size_t>(ordinal)],
               .kv_head = kv_head,
               .first = c.first_query,
               .end = c.n,
               .scale = scale()},
              *queries_, store, geometry(), s.window);
  const int n_candidates = c.n - spec_.window;
  pool_votes({s.window.votes, static_cast<size_t>(n_candidates)}, spec_.pool, s.pooled);
  std::iota(s.ids, s.ids + sinks_, 0);
  float threshold = 0;
  ops::select_top({.ids = s.ids + sinks_,
                   .threshold = &threshold,
                   .scores = s.pooled + sinks_,
                   .n = n_candidates - sinks_,
                   .m = n_chosen() - sinks_,
                   .first_id = sinks_,
                   .scratch = s.select});
  std::copy_n(s.ids, n_chosen(), ids_ + list_at(c.slot, ordinal, kv_head));
}

void VotedKeys::choose_on_gpu(const Choice& c, const PagedStore& store, const Taker& take) {
  const Geometry& g = geometry();
  const Exec& exec = store.exec();
  const GpuScratch s(scratch_, bounds_, spec_.window, passed_ids());
  const std::vector<int32_t>& pages = store.pages(c.slot);
  const auto n_pages = static_cast<size_t>((c.n + kPageTokens - 1) / kPageTokens);
  exec.queue->copy_in(s.pages, pages.data(), n_pages * sizeof(int32_t));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int ordinal = static_cast<int>(i), layer = layers_[i];
    ops::key_votes({.votes = s.votes,
                    .vote_stride = bounds_.max_tokens,
                    .q = queries_->rows(c.slot, layer),
                    .capacity = queries_->spec().capacity(),
                    .n_heads = g.n_heads,
                    .k_pool = store.k(layer).raw(),
                    .pages = s.pages,
                    .first_position = c.first_query,
                    .n_positions = c.n - c.first_query,
                    .n_kv_heads = g.n_kv_heads,
                    .d = g.head_dim,
                    .dtype = g.dtype,
                    .scale = scale(),
                    .scratch = s.kernel},
                   exec.stream());
    int32_t* const ids = passes_on() ? s.ids : ids_ + list_at(c.slot, ordinal, 0);
    ops::choose_keys({.ids = ids,
                      .id_stride = n_chosen(),
                      .votes = s.votes,
                      .pooled = s.pooled,
                      .vote_stride = bounds_.max_tokens,
                      .n_lists = g.n_kv_heads,
                      .n = c.n - spec_.window,
                      .n_chosen = n_chosen(),
                      .sinks = sinks_,
                      .pool = spec_.pool},
                     exec.stream());
    if (passes_on()) take(ordinal, ids, s.pages);
  }
}

}  // namespace tandem::kv
