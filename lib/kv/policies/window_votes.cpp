#include "kv/policies/window_votes.h"

#include "kv/key_rows.h"
#include "ops/selection.h"

namespace tandem::kv {

WindowScratch::WindowScratch(ScratchCutter& cutter, const Bounds& bounds, int window) {
  const Geometry& g = bounds.geometry;
  const auto queries = static_cast<size_t>(window) * static_cast<size_t>(g.group());
  q = cutter.take<float>(queries * static_cast<size_t>(g.head_dim));
  lse = cutter.take<float>(queries);
  kernel = cutter.take<float>(
      static_cast<size_t>(key_votes_scratch(g.head_dim, static_cast<int>(queries))));
  votes = cutter.take<float>(static_cast<size_t>(bounds.max_tokens));
}

void count_votes(const VoteWindow& w, const QueryRing& queries, const PagedStore& store,
                 const Geometry& g, const WindowScratch& s) {
  const size_t width = static_cast<size_t>(g.group()) * static_cast<size_t>(g.head_dim);
  for (int t = w.first; t < w.end; ++t)
    read_vector(queries.row(w.slot, w.layer, t) +
                    static_cast<size_t>(w.kv_head) * width * dtype_bytes(g.dtype),
                g.dtype, {s.q + static_cast<size_t>(t - w.first) * width, width});
  ops::key_votes({.votes = s.votes,
                  .q = s.q,
                  .k_pool = store.k(w.layer).raw(),
                  .pages = store.pages(w.slot).data(),
                  .first_position = w.first,
                  .n_positions = w.end - w.first,
                  .n_heads = g.group(),
                  .n_kv_heads = g.n_kv_heads,
                  .kv_head = w.kv_head,
                  .d = g.head_dim,
                  .dtype = g.dtype,
                  .scale = w.scale,
                  .scratch = s.kernel,
                  .lse = s.lse});
}

}  // namespace tandem::kv
