#include "kv/policies/chunk_keys.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "base/parallel.h"
#include "kv/key_rows.h"
#include "kv/query_ring.h"
#include "ops/selection.h"

namespace tandem::kv {
namespace {

constexpr int kMaxBlock = 512;  // tokens: a fork that goes on copies one block at most
constexpr size_t kMostScoreBytes = size_t{64} << 20;  // of a GPU at a time
constexpr int kPassTokens = 16384;  // of keys that pass by, whose means a GPU has at a time

}  // namespace

struct ChunkKeys::CpuScratch {
  ScratchCutter cutter;
  float *row, *q;  // a query, and the sums that choose, [group, d]
  float *scores, *select;
  int32_t* chunks;

  CpuScratch(std::byte* base, const ChunkKeys& c)
      : cutter(base),
        row(cutter.take<float>(static_cast<size_t>(c.geometry().head_dim))),
        q(cutter.take<float>(static_cast<size_t>(c.geometry().group()) *
                             static_cast<size_t>(c.geometry().head_dim))),
        scores(cutter.take<float>(static_cast<size_t>(c.max_chunks()) + 16)),
        select(cutter.take<float>(static_cast<size_t>(c.max_chunks()) + 16)),
        chunks(cutter.take<int32_t>(static_cast<size_t>(c.capacity()) + 16)) {}
};

/// For the lists of some layers at a time, or of one whose keys pass by.
struct ChunkKeys::GpuScratch {
  ScratchCutter cutter;
  float* scores;   // [lists, max_chunks]
  int32_t* found;  // [lists, capacity]
  // Of keys that pass by:
  std::byte* means;  // [KV heads, kPassTokens / chunk, d] of the keys' type
  int32_t* block;    // [1] 0, the one that they are

  GpuScratch(std::byte* base, const ChunkKeys& c, int n_layers) : cutter(base) {
    const auto lists = static_cast<size_t>(n_layers) * static_cast<size_t>(c.geometry().n_kv_heads);
    scores = cutter.take<float>(lists * static_cast<size_t>(c.max_chunks()));
    found = cutter.take<int32_t>(lists * static_cast<size_t>(c.capacity()));
    means = cutter.take<std::byte>(c.keeps_means()
                                       ? 0
                                       : static_cast<size_t>(c.geometry().n_kv_heads) *
                                             (kPassTokens / c.rule_.chunk) * c.mean_bytes());
    block = cutter.take<int32_t>(c.keeps_means() ? 0 : 1);
  }
};

ChunkKeys::ChunkKeys(const Rule& rule, std::vector<int> layers, const Bounds& bounds)
    : rule_(rule),
      bounds_(bounds),
      kept_(std::move(layers), bounds.on_gpu() ? capacity() : capacity() * rule.chunk,
            bounds.on_gpu() ? rule.chunk : 1, bounds),
      // Every sequence may choose again, and then writes separate blocks. Forks of a text within
      // the budget, which has no means yet, each write all of them.
      index_({.max_seqs = bounds.max_seqs,
              .max_tokens = bounds.max_tokens,
              .total_tokens =
                  bounds.total_tokens + int64_t{bounds.max_seqs - 1} *
                                            std::min(bounds.max_tokens, capacity() * rule.chunk),
              .sinks = 0,
              .recent = 0,
              .unit = rule.chunk,
              .max_block = kMaxBlock}) {
  if (on_gpu()) device_index_.emplace(index_, bounds.max_seqs, bounds.device);
}

size_t ChunkKeys::mean_bytes() const {
  return static_cast<size_t>(geometry().head_dim) * dtype_bytes(geometry().dtype);
}

int ChunkKeys::layers_at_a_time() const {
  if (!keeps_means()) return 1;
  const size_t bytes = GpuScratch(nullptr, *this, 1).cutter.bytes();
  return std::clamp(static_cast<int>(kMostScoreBytes / std::max<size_t>(1, bytes)), 1,
                    std::max(1, n_layers()));
}

size_t ChunkKeys::scratch_bytes() const {
  return on_gpu() ? GpuScratch(nullptr, *this, layers_at_a_time()).cutter.bytes()
                  : CpuScratch(nullptr, *this).cutter.bytes();
}

void ChunkKeys::plan(MemoryPlan& plan, const std::string& prefix) const {
  kept_.plan(plan, prefix);
  if (kept_.slot_ids() == 0) return;
  const size_t n_scratch = on_gpu() ? 1 : static_cast<size_t>(max_threads());
  if (keeps_means()) plan.add(prefix + ".means", means_bytes(), bounds_.device);
  plan.add(prefix + ".choosing", scratch_bytes() * n_scratch, bounds_.device);
  if (device_index_) device_index_->plan(plan, prefix);
}

void ChunkKeys::allocate(Arena& arena, const std::string& prefix) {
  kept_.allocate(arena, prefix);
  if (kept_.slot_ids() == 0) return;
  if (keeps_means()) means_ = static_cast<std::byte*>(arena.take(prefix + ".means"));
  scratch_ = static_cast<std::byte*>(arena.take(prefix + ".choosing"));
  n_scratch_ = max_threads();
  if (device_index_) device_index_->allocate(arena, prefix);
}

void ChunkKeys::run_on(const Exec& exec) {
  exec_ = exec;
  kept_.run_on(exec);
  constexpr int32_t kFirst = 0;
  if (!keeps_means() && kept_.slot_ids() > 0)
    exec_.queue->copy_in(GpuScratch(scratch_, *this, 1).block, &kFirst, sizeof(kFirst));
}

void ChunkKeys::cut(int slot, int n) { index_.cut(slot, n / rule_.chunk * rule_.chunk); }

void ChunkKeys::fork(int from, int to) {
  index_.fork(from, to);
  kept_.fork(from, to);
}

void ChunkKeys::release(int slot) { index_.release(slot); }

ChunkBlocks ChunkKeys::blocks_of(int slot, int ordinal) const {
  const auto elements = [&](size_t cells) {
    return static_cast<int64_t>(cells * static_cast<size_t>(block_chunks())) * geometry().head_dim;
  };
  return {.means = means(0, ordinal, 0),
          .blocks = device_index_->blocks() + slot * device_index_->max_blocks(),
          .block_stride = elements(grid().cells(1)),
          .layer_stride = elements(grid().cell(0, 1, 0)),
          .head_stride = elements(1),
          .block_chunks = block_chunks()};
}

TokenIndex::Work ChunkKeys::extend(int slot, int end) {
  TokenIndex::Work work{.slot = slot, .length = end, .ordinals = {0, n_layers()}};
  if (!keeps_means()) return work;
  if (end > index_.end(slot)) work.pieces = index_.extend(slot, end);
  // A fork's or a slot's that was cut has other blocks than the device knows.
  if (device_index_) device_index_->update(slot, index_, *exec_.queue);
  for (const TokenIndex::Piece& piece : work.pieces) {
    if (piece.copy_of < 0) continue;
    const size_t bytes = grid().cells(1) * cell_bytes();
    if (on_gpu())
      exec_.queue->copy_within(means(piece.block, 0, 0), means(piece.copy_of, 0, 0), bytes);
    else
      std::memcpy(means(piece.block, 0, 0), means(piece.copy_of, 0, 0), bytes);
  }
  return work;
}

const int32_t* ChunkKeys::pages_of(int slot, const PagedStore& store) {
  if (!device_index_) return store.pages(slot).data();
  device_index_->set_pages(store.pages(slot), *exec_.queue);
  return device_index_->pages();
}

void ChunkKeys::write_means(const TokenIndex::Work& work, const PagedStore& store) {
  const Geometry& g = geometry();
  const int begin = work.pieces.front().token, heads = g.n_kv_heads;
  const int32_t* const pages = pages_of(work.slot, store);
  for (int ord = work.ordinals.begin; on_gpu() && ord < work.ordinals.end; ++ord)
    ops::chunk_means({.to = blocks_of(work.slot, ord),
                      .k_pool = store.k(layers()[static_cast<size_t>(ord)]).raw(),
                      .pages = pages,
                      .first = begin / rule_.chunk,
                      .n = (work.length - begin) / rule_.chunk,
                      .chunk = rule_.chunk,
                      .n_kv_heads = heads,
                      .d = g.head_dim,
                      .dtype = g.dtype},
                     exec_.stream());
  if (on_gpu()) return;
  const int n_ordinals = work.ordinals.end - work.ordinals.begin;
  parallel_for(n_ordinals * heads, [&](int task) {
    const int ord = work.ordinals.begin + task / heads, head = task % heads;
    for (const TokenIndex::Piece& piece : work.pieces)
      ops::chunk_means({.means = means(piece.block, ord, head) +
                                 static_cast<size_t>(piece.offset / rule_.chunk) * mean_bytes(),
                        .k_pool = store.k(layers()[static_cast<size_t>(ord)]).raw(),
                        .pages = pages,
                        .token = piece.token,
                        .n = piece.n / rule_.chunk,
                        .chunk = rule_.chunk,
                        .n_kv_heads = heads,
                        .kv_head = head,
                        .d = g.head_dim,
                        .dtype = g.dtype});
  });
}

void ChunkKeys::choose(const TokenIndex::Work& work, const Queries& queries, int n,
                       const PagedStore& store) {
  const Choice c{work.slot, queries, work.length / rule_.chunk, n, work.ordinals};
  TANDEM_CHECK(n >= 1 && n <= c.n_chunks && n <= capacity(),
               "cannot choose {} of {} chunks, the limit is {}", n, c.n_chunks, capacity());
  if (!keeps_means()) return choose_passing(c, store);
  if (!work.pieces.empty()) write_means(work, store);
  if (on_gpu()) return choose_on_gpu(c);
  const int heads = geometry().n_kv_heads, n_lists = (c.ordinals.end - c.ordinals.begin) * heads;
  parallel_for(n_lists, n_scratch_, [&](int i, int thread) {
    const CpuScratch s(scratch_ + static_cast<size_t>(thread) * scratch_bytes(), *this);
    choose_list(c, c.ordinals.begin + i / heads, i % heads, s);
  });
}

void ChunkKeys::choose_first(int slot) {
  constexpr int32_t kFirst = 0;
  for (int i = 0; i < n_layers() * geometry().n_kv_heads; ++i) {
    int32_t* const list = kept_.at(slot, i / geometry().n_kv_heads, i % geometry().n_kv_heads);
    if (on_gpu())
      exec_.queue->copy_in(list, &kFirst, sizeof(kFirst));
    else
      std::iota(list, list + rule_.chunk, 0);
  }
}

void ChunkKeys::choose_list(const Choice& c, int ordinal, int kv_head, const CpuScratch& s) const {
  const Geometry& g = geometry();
  const int group = g.group(), n_q = rule_.group == recipe::ScoreGroup::sum ? 1 : group;
  const auto d = static_cast<size_t>(g.head_dim);
  std::fill_n(s.q, static_cast<size_t>(n_q) * d, 0.0f);
  for (int t = c.queries.first; t < c.queries.end; ++t) {
    const std::byte* row = queries_->row(c.slot, layers()[static_cast<size_t>(ordinal)], t);
    for (int h = 0; h < group; ++h) {
      read_vector(row + static_cast<size_t>(kv_head * group + h) * d * dtype_bytes(g.dtype),
                  g.dtype, {s.row, d});
      float* sum = s.q + static_cast<size_t>(n_q == 1 ? 0 : h) * d;
      for (size_t i = 0; i < d; ++i) sum[i] += s.row[i];
    }
  }
  const std::vector<int>& blocks = index_.blocks(c.slot);
  for (int first = 0; first < c.n_chunks; first += block_chunks())
    ops::chunk_scores(
        {.scores = s.scores + first,
         .q = s.q,
         .means = means(blocks[static_cast<size_t>(first / block_chunks())], ordinal, kv_head),
         .n = std::min(block_chunks(), c.n_chunks - first),
         .n_q = n_q,
         .d = g.head_dim,
         .dtype = g.dtype});
  s.chunks[0] = 0;
  float threshold = 0;
  ops::select_top({.ids = s.chunks + 1,
                   .threshold = &threshold,
                   .scores = s.scores + 1,
                   .n = c.n_chunks - 1,
                   .m = c.n - 1,
                   .first_id = 1,
                   .scratch = s.select});
  std::stable_sort(s.chunks + 1, s.chunks + c.n,
                   [&](int32_t a, int32_t b) { return s.scores[a] > s.scores[b]; });
  int32_t* list = kept_.at(c.slot, ordinal, kv_head);
  for (int i = 0; i < c.n; ++i)
    std::iota(list + i * rule_.chunk, list + (i + 1) * rule_.chunk, s.chunks[i] * rule_.chunk);
}

int ChunkKeys::keys_read(const TokenIndex::Work& work) const {
  if (!keeps_means()) return work.length;
  const int n_new = work.pieces.empty() ? 0 : work.length - work.pieces.front().token;
  return n_new + work.length / rule_.chunk;
}

ChunkScoresCudaParams ChunkKeys::scores_of(const Choice& c, int ordinal, float* scores) const {
  const Geometry& g = geometry();
  return {.scores = scores,
          .score_stride = max_chunks(),
          .q = queries_->rows(c.slot, 0),
          .q_layer_stride = int64_t{queries_->spec().capacity()} * g.n_heads * g.head_dim,
          .capacity = queries_->spec().capacity(),
          .first_query = c.queries.first,
          .n_queries = c.queries.end - c.queries.first,
          .layers = kept_.device_layers() + ordinal,
          .from = {},
          .n = c.n_chunks,
          .n_layers = 1,
          .n_heads = g.n_heads,
          .n_kv_heads = g.n_kv_heads,
          .d = g.head_dim,
          .dtype = g.dtype,
          .group = rule_.group == recipe::ScoreGroup::sum ? ChunkGroup::sum : ChunkGroup::max};
}

void ChunkKeys::choose_best(const Choice& c, int ordinal, int n_layers, const GpuScratch& s) {
  ops::choose_chunks({.ids = kept_.at(c.slot, ordinal, 0),
                      .scores = s.scores,
                      .scratch = s.found,
                      .id_stride = kept_.capacity(),
                      .score_stride = max_chunks(),
                      .n_lists = n_layers * geometry().n_kv_heads,
                      .n = c.n_chunks,
                      .n_chosen = c.n},
                     exec_.stream());
}

void ChunkKeys::choose_on_gpu(const Choice& c) {
  const int at_a_time = layers_at_a_time();
  const GpuScratch s(scratch_, *this, at_a_time);
  for (int ord = c.ordinals.begin; ord < c.ordinals.end; ord += at_a_time) {
    const int n = std::min(at_a_time, c.ordinals.end - ord);
    ChunkScoresCudaParams p = scores_of(c, ord, s.scores);
    p.from = blocks_of(c.slot, ord);
    p.n_layers = n;
    ops::chunk_scores(p, exec_.stream());
    choose_best(c, ord, n, s);
  }
}

void ChunkKeys::choose_passing(const Choice& c, const PagedStore& store) {
  const Geometry& g = geometry();
  const GpuScratch s(scratch_, *this, 1);
  const int most = kPassTokens / rule_.chunk;
  const ChunkBlocks part{.means = s.means,
                         .blocks = s.block,
                         .block_stride = 0,
                         .layer_stride = 0,
                         .head_stride = int64_t{most} * g.head_dim,
                         .block_chunks = most};
  const int32_t* const pages = pages_of(c.slot, store);
  for (int ord = c.ordinals.begin; ord < c.ordinals.end; ++ord) {
    for (int first = 0; first < c.n_chunks; first += most) {
      const int n = std::min(most, c.n_chunks - first);
      ops::chunk_means({.to = part,
                        .k_pool = store.k(layers()[static_cast<size_t>(ord)]).raw(),
                        .pages = pages + first * rule_.chunk / kPageTokens,
                        .first = 0,
                        .n = n,
                        .chunk = rule_.chunk,
                        .n_kv_heads = g.n_kv_heads,
                        .d = g.head_dim,
                        .dtype = g.dtype},
                       exec_.stream());
      ChunkScoresCudaParams p = scores_of(c, ord, s.scores + first);
      p.from = part;
      p.n = n;
      ops::chunk_scores(p, exec_.stream());
    }
    choose_best(c, ord, 1, s);
  }
}

}  // namespace tandem::kv
