#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/parallel.h"
#include "kv/policies/policies.h"
#include "kv/policies/scratch.h"
#include "kv/policies/sparse_policy.h"

namespace tandem::kv {
namespace {

constexpr int kMaxBlock = 4096;  // tokens; summaries need no large blocks

/// Quest (arXiv 2406.10774): pages of tokens with the smallest and largest value of each channel of
/// their keys; sum_c max(q_c lo_c, q_c hi_c) bounds every score of a page from above. Each query
/// head reads the pages with the largest bounds, and all recent and generated tokens. No sinks.
class QuestPolicy final : public SparsePolicy {
 public:
  QuestPolicy(const recipe::Cache& cache, const Bounds& bounds)
      : SparsePolicy(cache, bounds, 0, cache.quest.page, kMaxBlock),
        page_(cache.quest.page),
        ratio_(cache.quest.ratio) {}

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    SparsePolicy::plan(plan, prefix);
    plan.add(prefix + ".page_bounds", floats(grid().cells(index().n_blocks())) * sizeof(float),
             bounds().device);
    if (bounds().on_gpu() && grid().n_sparse > 0)
      plan.add(prefix + ".choosing", GpuScratch(nullptr, *this, list_rows()).cutter.bytes(),
               bounds().device);
  }
  void set_up(Arena& arena, const std::string& prefix, const Connections& to) override {
    SparsePolicy::set_up(arena, prefix, to);
    if (grid().n_sparse == 0) return;
    summaries_ = static_cast<float*>(arena.take(prefix + ".page_bounds"));
    if (bounds().on_gpu()) gpu_scratch_ = static_cast<std::byte*>(arena.take(prefix + ".choosing"));
  }

  void select(int layer, const Step& step, const Tensor& q, AttendPlan& plan) override {
    if (!bounds().on_gpu() || ordinal(layer) < 0) return SparsePolicy::select(layer, step, q, plan);
    const GpuScratch s(gpu_scratch_, *this, list_rows());
    plan.add({.lists = {.rest = device_index().rests()}});
    plan.lists = {.ids = s.ids, .count = s.count, .stride = list_keys(), .most = list_keys()};
    plan.list_rows = list_rows();
    plan.make_lists = [this, layer, &step, &q, s](Range rows, const PagedStore&) {
      choose_on_gpu(layer, step, q, rows, s);
    };
  }

  size_t scratch_bytes() const override { return Scratch(nullptr, *this).cutter.bytes(); }

  void select_keys(const KeyQuery& query, std::byte* scratch,
                   std::span<KeyList> lists) const override {
    if (index().empty(query.slot)) return;  // the plan's range has all its keys
    const Scratch s(scratch, *this);
    const auto d = static_cast<size_t>(geometry().head_dim);
    const int n_pages = index().end(query.slot) / page_;
    const double wanted = ratio_ * (query.position + 1) / page_;
    const int n_read = std::clamp(static_cast<int>(wanted), 1, n_pages);
    for (size_t h = 0; h < lists.size(); ++h) {
      query.read_q(h, {s.q, d});
      for (int p = 0; p < n_pages; ++p) s.scores[p] = bound(query, p, {s.q, d});
      float threshold = 0;
      ops::select_top({.ids = s.pages,
                       .threshold = &threshold,
                       .scores = s.scores,
                       .n = n_pages,
                       .m = n_read,
                       .first_id = 0,
                       .scratch = s.select});
      int32_t* ids = s.ids + h * static_cast<size_t>(bounds().max_tokens);
      for (int i = 0; i < n_read; ++i)
        std::iota(ids + i * page_, ids + (i + 1) * page_, s.pages[i] * page_);
      lists[h].segments.push_back({ids, n_read * page_, nullptr, nullptr});
      // The heads of a group pass over the same bounds.
      lists[h].index_bytes = 2.0 * n_pages * static_cast<double>(d) * sizeof(float) /
                             static_cast<double>(lists.size());
    }
  }

 protected:
  void index_tokens(const TokenIndex::Work& work, const PagedStore& store) override {
    const int heads = geometry().n_kv_heads;
    if (bounds().on_gpu()) return index_on_gpu(work.pieces, store);
    for (const TokenIndex::Piece& piece : work.pieces) {
      if (piece.copy_of >= 0)
        std::memcpy(at(piece.block, 0, 0, 0), at(piece.copy_of, 0, 0, 0),
                    floats(grid().cells(1)) * sizeof(float));
      parallel_for(grid().n_sparse * heads, [&](int task) {
        const int ord = task / heads, head = task % heads;
        const KeyRows keys = store.keys(layers()[static_cast<size_t>(ord)], work.slot, head);
        for (int t = 0; t < piece.n; t += page_)
          summarize(keys, piece.token + t, at(piece.block, ord, head, (piece.offset + t) / page_));
      });
    }
  }

  /// No query sees more than all tokens; a page at least is read.
  int list_keys() const override {
    const int pages = static_cast<int>(ratio_ * bounds().max_tokens / page_);
    return std::clamp(pages, 1, max_pages()) * page_;
  }
  double expected_index_bytes(int n) const override {
    return 2.0 * n / page_ * geometry().head_dim * sizeof(float);
  }
  double expected_keys(int n) const override { return std::min<double>(n, ratio_ * n + page_); }

 private:
  struct Scratch {
    ScratchCutter cutter;
    float *q, *scores, *select;
    int32_t *pages, *ids;

    Scratch(std::byte* base, const QuestPolicy& p)
        : cutter(base),
          q(cutter.take<float>(static_cast<size_t>(p.geometry().head_dim))),
          scores(cutter.take<float>(p.page_room())),
          select(cutter.take<float>(p.page_room())),
          pages(cutter.take<int32_t>(p.page_room())),
          ids(cutter.take<int32_t>(p.group() * static_cast<size_t>(p.bounds().max_tokens))) {}
  };

  /// A GPU's, of the lists of some rows.
  struct GpuScratch {
    ScratchCutter cutter;
    float* scores;
    int32_t *n, *m, *count, *ids;

    GpuScratch(std::byte* base, const QuestPolicy& p, int n_rows) : cutter(base) {
      const auto lists = static_cast<size_t>(n_rows) * static_cast<size_t>(p.geometry().n_heads);
      scores = cutter.take<float>(lists * static_cast<size_t>(p.max_pages()));
      n = cutter.take<int32_t>(lists);
      m = cutter.take<int32_t>(lists);
      count = cutter.take<int32_t>(lists);
      ids = cutter.take<int32_t>(lists * static_cast<size_t>(p.list_keys()));
    }
  };
  int list_rows() const { return rows_at_a_time(GpuScratch(nullptr, *this, 1).cutter.bytes()); }

  void choose_on_gpu(int layer, const Step& step, const Tensor& q, Range rows,
                     const GpuScratch& s) const {
    const Geometry& g = geometry();
    ops::score_pages({.scores = s.scores,
                      .n = s.n,
                      .m = s.m,
                      .q = q.raw(),
                      .bounds = at(0, ordinal(layer), 0, 0),
                      .ends = device_index().ends(),
                      .blocks = device_index().blocks(),
                      .score_stride = max_pages(),
                      .block_stride = static_cast<int64_t>(floats(grid().cells(1))),
                      .head_stride = static_cast<int64_t>(floats(1)),
                      .choosing = choosing_rows(step, rows),
                      .max_blocks = device_index().max_blocks(),
                      .block_pages = index().capacity() / page_,
                      .page = page_,
                      .max_n = max_pages(),
                      .n_heads = g.n_heads,
                      .n_kv_heads = g.n_kv_heads,
                      .d = g.head_dim,
                      .dtype = g.dtype,
                      .ratio = ratio_},
                     exec().stream());
    ops::select_top({.ids = s.ids,
                     .count = s.count,
                     .scores = s.scores,
                     .n = s.n,
                     .m = s.m,
                     .id_stride = list_keys(),
                     .score_stride = max_pages(),
                     .n_lists = (rows.end - rows.begin) * g.n_heads,
                     .run = page_},
                    exec().stream());
  }

  void index_on_gpu(const std::vector<TokenIndex::Piece>& pieces, const PagedStore& store) const {
    const Geometry& g = geometry();
    for (const TokenIndex::Piece& piece : pieces) {
      if (piece.copy_of >= 0)
        exec().queue->copy_within(at(piece.block, 0, 0, 0), at(piece.copy_of, 0, 0, 0),
                                  floats(grid().cells(1)) * sizeof(float));
      for (int ord = 0; ord < grid().n_sparse; ++ord)
        ops::page_bounds({.bounds = at(piece.block, ord, 0, piece.offset / page_),
                          .head_stride = static_cast<int64_t>(floats(1)),
                          .k_pool = store.k(layers()[static_cast<size_t>(ord)]).raw(),
                          .pages = device_index().pages(),
                          .token = piece.token,
                          .n = piece.n / page_,
                          .page = page_,
                          .n_kv_heads = g.n_kv_heads,
                          .d = g.head_dim,
                          .dtype = g.dtype},
                         exec().stream());
    }
  }

  int max_pages() const { return std::max(1, bounds().max_tokens / page_); }
  /// Pages of a sequence, and what a selection may write past its last.
  size_t page_room() const { return static_cast<size_t>(bounds().max_tokens / page_) + 16; }

  /// Of the pages of a number of cells.
  size_t floats(size_t cells) const {
    return cells * static_cast<size_t>(index().capacity() / page_) * page_floats();
  }
  /// Lower bounds, then upper bounds, [2, head_dim].
  size_t page_floats() const { return 2 * static_cast<size_t>(geometry().head_dim); }
  /// Those of a page within a block.
  float* at(int block, int ord, int kv_head, int page) const {
    return summaries_ + floats(grid().cell(block, ord, kv_head)) +
           static_cast<size_t>(page) * page_floats();
  }

  void summarize(const KeyRows& keys, int token, float* out) const {
    const auto d = static_cast<size_t>(geometry().head_dim);
    float *lo = out, *hi = out + d;
    keys.read(token, lo);
    std::copy_n(lo, d, hi);
    std::vector<float> key(d);
    for (int t = token + 1; t < token + page_; ++t) {
      keys.read(t, key.data());
      for (size_t c = 0; c < d; ++c) {
        lo[c] = std::min(lo[c], key[c]);
        hi[c] = std::max(hi[c], key[c]);
      }
    }
  }

  float bound(const KeyQuery& query, int page, std::span<const float> q) const {
    const int in_block = index().capacity() / page_;
    const int block = index().blocks(query.slot)[static_cast<size_t>(page / in_block)];
    const float* lo = at(block, ordinal(query.layer), query.kv_head, page % in_block);
    const float* hi = lo + q.size();
    float sum = 0;
    for (size_t c = 0; c < q.size(); ++c) sum += std::max(q[c] * lo[c], q[c] * hi[c]);
    return sum;
  }

  int page_;
  double ratio_;
  float* summaries_ = nullptr;
  std::byte* gpu_scratch_ = nullptr;
};

}  // namespace

std::unique_ptr<Policy> make_quest(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<QuestPolicy>(cache, bounds);
}

}  // namespace tandem::kv
