#include "kv/policies/voted_keys.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/parallel.h"
#include "kv/policies/pool_votes.h"
#include "kv/policies/window_votes.h"
#include "kv/query_ring.h"
#include "ops/attention.h"
#include "ops/selection.h"

namespace tandem::kv {

struct VotedKeys::CpuScratch {
  ScratchCutter cutter;
  WindowScratch window;
  float *pooled, *select;
  int32_t* ids;

  CpuScratch(std::byte* base, const VotedKeys& v)
      : cutter(base),
        window(cutter, v.bounds_, v.rule_.window),
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
  float* lse;             // [window, heads]
  std::byte* kernel;
  int32_t *pages, *ids;
  int32_t* rows;  // [3] the slot, then the first and the last of the window's queries in lse

  GpuScratch(std::byte* base, const Bounds& b, int window, size_t n_ids)
      : cutter(base),
        votes(cutter.take<float>(votes_of(b))),
        pooled(cutter.take<float>(votes_of(b))),
        lse(cutter.take<float>(static_cast<size_t>(window) *
                               static_cast<size_t>(b.geometry.n_heads))),
        kernel(cutter.take<std::byte>(
            key_votes_cuda_scratch_bytes(b.max_tokens, window, b.geometry.n_heads))),
        pages(cutter.take<int32_t>(static_cast<size_t>(b.max_tokens / kPageTokens + 1))),
        ids(cutter.take<int32_t>(n_ids)),
        rows(cutter.take<int32_t>(3)) {}

  static size_t votes_of(const Bounds& b) {
    return static_cast<size_t>(b.geometry.n_kv_heads) * static_cast<size_t>(b.max_tokens);
  }
};

}  // namespace

VotedKeys::VotedKeys(const Rule& rule, std::vector<int> layers, const Bounds& bounds)
    : rule_(rule), layers_(std::move(layers)), bounds_(bounds) {
  if (!passes_on()) kept_.emplace(layers_, n_chosen(), 1, bounds);
}

void VotedKeys::read_queries(const QueryRing& queries) {
  queries_ = &queries;
  if (kept_) kept_->run_on(queries.exec());
}

float VotedKeys::scale(int layer) const {
  return rule_.scaled ? geometry().scale(layer).f32() : 1.0f;
}

size_t VotedKeys::passed_ids() const {
  return kept_ ? 0 : static_cast<size_t>(geometry().n_kv_heads) * static_cast<size_t>(n_chosen());
}

size_t VotedKeys::scratch_bytes() const {
  return on_gpu() ? GpuScratch(nullptr, bounds_, rule_.window, passed_ids()).cutter.bytes()
                  : CpuScratch(nullptr, *this).cutter.bytes();
}

void VotedKeys::plan(MemoryPlan& plan, const std::string& prefix) const {
  const size_t n_scratch = on_gpu() ? 1 : static_cast<size_t>(max_threads());
  if (kept_) kept_->plan(plan, prefix);
  plan.add(prefix + ".choosing", scratch_bytes() * n_scratch, bounds_.device);
}

void VotedKeys::allocate(Arena& arena, const std::string& prefix) {
  if (kept_) kept_->allocate(arena, prefix);
  scratch_ = static_cast<std::byte*>(arena.take(prefix + ".choosing"));
  n_scratch_ = max_threads();
}

/// work(i, scratch) for n lists, on all threads of the CPU.
template <class Work>
void VotedKeys::for_lists(int n, const Work& work) const {
  parallel_for(n, n_scratch_, [&](int i, int thread) {
    work(i, CpuScratch(scratch_ + static_cast<size_t>(thread) * scratch_bytes(), *this));
  });
}

void VotedKeys::choose(int slot, int first_query, int n, const PagedStore& store,
                       const Taker& take) {
  const Choice c{slot, first_query, n};
  if (on_gpu()) return choose_on_gpu(c, store, take);
  const int heads = geometry().n_kv_heads;
  for_lists(static_cast<int>(layers_.size()) * heads,
            [&](int i, const CpuScratch& s) { choose_list(c, i / heads, i % heads, store, s); });
}

void VotedKeys::choose_list(const Choice& c, int ordinal, int kv_head, const PagedStore& store,
                            const CpuScratch& s) const {
  const int layer = layers_[static_cast<size_t>(ordinal)], group = geometry().group();
  count_votes({.slot = c.slot,
               .layer = layer,
               .kv_head = kv_head,
               .first = c.first_query,
               .end = c.n,
               .scale = scale(layer)},
              *queries_, store, geometry(), s.window);
  if (scores_ != nullptr) {
    const int32_t slot = c.slot, rows[] = {0, c.n - c.first_query};
    mean_lse_cpu({.out = scores_->lse(0, layer) + kv_head * group,
                  .lse = s.window.lse,
                  .out_slot_stride = scores_->spec().lse_stride(),
                  .out_layer_stride = 0,
                  .layer_stride = 0,
                  .slot = &slot,
                  .row_begin = rows,
                  .n_seqs = 1,
                  .n_layers = 1,
                  .n_heads = group},
                 {0, 1});
  }
  const int n_candidates = c.n - rule_.window, sinks = rule_.sinks;
  pool_votes({s.window.votes, static_cast<size_t>(n_candidates)}, rule_.pool, s.pooled);
  std::iota(s.ids, s.ids + sinks, 0);
  float threshold = 0;
  ops::select_top({.ids = s.ids + sinks,
                   .threshold = &threshold,
                   .scores = s.pooled + sinks,
                   .n = n_candidates - sinks,
                   .m = n_chosen() - sinks,
                   .first_id = sinks,
                   .scratch = s.select});
  std::copy_n(s.ids, n_chosen(), kept_->at(c.slot, ordinal, kv_head));
}

void VotedKeys::choose_scored(const Step& step, int recent) {
  const int n_best = rule_.budget - recent, heads = geometry().n_kv_heads;
  TANDEM_CHECK(recent >= rule_.window && n_best > 0,
               "{} recent tokens do not fit the budget or a window of {}", recent, rule_.window);
  const int n_lists = static_cast<int>(layers_.size()) * heads;
  if (n_chosen() == 0 || n_lists == 0) return;
  if (on_gpu())
    return ops::choose_scored({.ids = kept_->at(0, 0, 0),
                               .count = kept_->counts(),
                               .rest = kept_->rests(),
                               .row_stride = static_cast<int64_t>(kept_->slot_ids()),
                               .id_stride = n_chosen(),
                               .scores = scores_->scores(0, 0, 0),
                               .layers = kept_->device_layers(),
                               .score_row_stride = scores_->spec().row_stride(),
                               .score_stride = scores_->spec().stride(),
                               .slot = step.arrays.slot,
                               .row_begin = step.arrays.row_begin,
                               .base = step.arrays.base,
                               .n_seqs = step.arrays.n_seqs,
                               .n_layers = static_cast<int>(layers_.size()),
                               .n_kv_heads = heads,
                               .n_chosen = n_best,
                               .recent = recent},
                              queries_->exec().stream());
  for_lists(step.n_seqs * n_lists, [&](int i, const CpuScratch& s) {
    const auto b = static_cast<size_t>(i / n_lists);
    if (step.rows_of(i / n_lists) == 0 || step.base[b] <= rule_.budget) return;
    const int list = i % n_lists;
    choose_scored_list(step.slot[b], list / heads, list % heads, step.base[b] - recent, n_best, s);
  });
}

void VotedKeys::choose_scored_list(int slot, int ordinal, int kv_head, int n, int n_best,
                                   const CpuScratch& s) const {
  const f16* scores = scores_->scores(slot, layers_[static_cast<size_t>(ordinal)], kv_head);
  // The same bits in wider numbers have the same order: that is all that choosing needs.
  for (int t = 0; t < n; ++t) {
    const uint32_t bits = scores[t].bits;
    s.pooled[t] = std::bit_cast<float>((bits & 0x8000u) << 16 | (bits & 0x7fffu) << 13);
  }
  float threshold = 0;
  ops::select_top({.ids = s.ids,
                   .threshold = &threshold,
                   .scores = s.pooled,
                   .n = n,
                   .m = n_best,
                   .first_id = 0,
                   .scratch = s.select});
  std::copy_n(s.ids, n_best, kept_->at(slot, ordinal, kv_head));
}

void VotedKeys::choose_on_gpu(const Choice& c, const PagedStore& store, const Taker& take) {
  const Geometry& g = geometry();
  const Exec& exec = store.exec();
  const GpuScratch s(scratch_, bounds_, rule_.window, passed_ids());
  const std::vector<int32_t>& pages = store.pages(c.slot);
  const auto n_pages = static_cast<size_t>((c.n + kPageTokens - 1) / kPageTokens);
  exec.queue->copy_in(s.pages, pages.data(), n_pages * sizeof(int32_t));
  const int32_t rows[] = {c.slot, 0, c.n - c.first_query};
  exec.queue->copy_in(s.rows, rows, sizeof(rows));
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
                    .scale = scale(layer),
                    .scratch = s.kernel,
                    .lse = scores_ == nullptr ? nullptr : s.lse},
                   exec.stream());
    if (scores_ != nullptr)
      ops::mean_lse({.out = scores_->lse(0, layer),
                     .lse = s.lse,
                     .out_slot_stride = scores_->spec().lse_stride(),
                     .out_layer_stride = 0,
                     .layer_stride = 0,
                     .slot = s.rows,
                     .row_begin = s.rows + 1,
                     .n_seqs = 1,
                     .n_layers = 1,
                     .n_heads = g.n_heads},
                    exec.stream());
    int32_t* const ids = kept_ ? kept_->at(c.slot, ordinal, 0) : s.ids;
    ops::choose_keys({.ids = ids,
                      .id_stride = n_chosen(),
                      .votes = s.votes,
                      .pooled = s.pooled,
                      .vote_stride = bounds_.max_tokens,
                      .n_lists = g.n_kv_heads,
                      .n = c.n - rule_.window,
                      .n_chosen = n_chosen(),
                      .sinks = rule_.sinks,
                      .pool = rule_.pool},
                     exec.stream());
    if (!kept_) take(ordinal, ids, s.pages);
  }
}

}  // namespace tandem::kv
