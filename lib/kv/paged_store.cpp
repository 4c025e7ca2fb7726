#include "kv/paged_store.h"

#include "base/check.h"

namespace tandem::kv {
namespace {

constexpr const char* kPrefix = "kv";
constexpr const char* kMovesName = "kv/moves";

Pages::Spec pages_spec(const PagedStore::Spec& s) {
  return {.n_layers = s.n_layers,
          .n_kv_heads = s.n_kv_heads,
          .head_dim = s.head_dim,
          .dtype = s.dtype,
          .n_pages = s.n_pages,
          .device = s.device};
}

size_t moves_bytes(const PagedStore::Spec& spec) {
  return 2 * static_cast<size_t>(spec.max_moves) * sizeof(int32_t);
}

}  // namespace

void PagedStore::plan(const Spec& spec, MemoryPlan& plan) {
  Pages::plan(pages_spec(spec), kPrefix, plan);
  plan.add(kMovesName, moves_bytes(spec), spec.device);
}

PagedStore::PagedStore(const Spec& spec, Arena& arena, const Exec& exec)
    : spec_(spec),
      exec_(exec),
      sequences_({spec.n_pages, spec.max_slots, spec.max_pages}),
      pages_(pages_spec(spec), kPrefix, arena) {
  if (moves_bytes(spec) > 0) moves_ = static_cast<int32_t*>(arena.take(kMovesName));
}

void PagedStore::reserve(int slot, int n) {
  sequences_.reserve(slot, n, [&](int32_t from, int32_t to) {
    ops::copy_page({pages_.pools(), from, to}, exec_.stream());
  });
}

void PagedStore::move_paths(const AcceptedPaths& p, const ops::StepArrays& step) {
  const int n_moves = p.n_seqs * p.max_depth;
  TANDEM_CHECK(n_moves <= spec_.max_moves, "{} moves, planned for {}", n_moves, spec_.max_moves);
  ops::path_moves({.from_token = moves_,
                   .to_token = moves_ + n_moves,
                   .path = p.path,
                   .n_accepted = p.n_accepted,
                   .position = p.position,
                   .page_table = step.page_table,
                   .slot = step.slot,
                   .n_seqs = p.n_seqs,
                   .n_nodes = p.n_nodes,
                   .max_pages = spec_.max_pages,
                   .max_moves = p.max_depth,
                   .n_nodes_held = p.n_nodes_held},
                  exec_.stream());
  ops::move_tokens({pages_.pools(), moves_, moves_ + n_moves, n_moves}, exec_.stream());
}

}  // namespace tandem::kv
