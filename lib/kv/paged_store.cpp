#include "kv/paged_store.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::kv {
namespace {

constexpr const char* kMovesName = "kv/moves";

size_t moves_bytes(const PagedStore::Spec& spec) {
  return 2 * static_cast<size_t>(spec.max_moves) * sizeof(int32_t);
}

}  // namespace

size_t PagedStore::Spec::page_bytes() const {
  return size_t{2} * static_cast<size_t>(n_layers) * static_cast<size_t>(n_kv_heads) * kPageTokens *
         static_cast<size_t>(head_dim) * dtype_bytes(dtype);
}

void PagedStore::plan(const Spec& spec, MemoryPlan& plan) {
  const size_t half = spec.page_bytes() / 2 * static_cast<size_t>(spec.n_pages);
  plan.add("kv/k", half, spec.device);
  plan.add("kv/v", half, spec.device);
  plan.add(kMovesName, moves_bytes(spec), spec.device);
}

PagedStore::PagedStore(const Spec& spec, Arena& arena, const Exec& exec)
    : spec_(spec),
      exec_(exec),
      k_(static_cast<char*>(arena.take("kv/k"))),
      v_(static_cast<char*>(arena.take("kv/v"))),
      refs_(static_cast<size_t>(spec.n_pages)),
      slots_(static_cast<size_t>(spec.max_slots)) {
  if (moves_bytes(spec) > 0) moves_ = static_cast<int32_t*>(arena.take(kMovesName));
  // Popped from the back: pages go out in rising order, so that a long prompt reads memory forward.
  for (int32_t page = spec.n_pages; page-- > 0;) free_.push_back(page);
}

size_t PagedStore::layer_page_bytes() const {
  return spec_.page_bytes() / 2 / static_cast<size_t>(spec_.n_layers);
}

Tensor PagedStore::pool(char* base, int layer) const {
  const size_t layer_bytes = layer_page_bytes() * static_cast<size_t>(spec_.n_pages);
  return {base + static_cast<size_t>(layer) * layer_bytes,
          spec_.dtype,
          {spec_.n_pages, spec_.n_kv_heads, kPageTokens, spec_.head_dim},
          spec_.device};
}

PagedStore::Slot& PagedStore::at(int slot) {
  TANDEM_CHECK(slot >= 0 && slot < spec_.max_slots && slots_[static_cast<size_t>(slot)].used,
               "slot {}", slot);
  return slots_[static_cast<size_t>(slot)];
}

const PagedStore::Slot& PagedStore::at(int slot) const {
  return const_cast<PagedStore*>(this)->at(slot);
}

int PagedStore::acquire() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].used) continue;
    slots_[i].used = true;
    touch(slots_[i]);
    return static_cast<int>(i);
  }
  throw Error::make(ErrorKind::memory, "kv cache", "all {} sequences are in use", spec_.max_slots)
      .hint("raise run.batch");
}

void PagedStore::release(int slot) {
  for (const int32_t page : at(slot).pages) unref(page);
  at(slot) = {};
}

int PagedStore::fork(int slot) {
  const int copy = acquire();
  at(copy) = at(slot);
  for (const int32_t page : at(copy).pages)
    if (page >= 0) ++refs_[static_cast<size_t>(page)];
  truncate(copy, at(copy).length);  // what is tentative is not shared
  return copy;
}

int32_t PagedStore::allocate() {
  if (free_.empty())
    throw Error::make(ErrorKind::memory, "kv cache", "all {} pages of {} tokens are in use",
                      spec_.n_pages, kPageTokens)
        .hint("raise run.context or lower run.batch");
  const int32_t page = free_.back();
  free_.pop_back();
  refs_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagedStore::unref(int32_t page) {
  if (page >= 0 && --refs_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

void PagedStore::reserve(int slot, int n) {
  Slot& s = at(slot);
  const int needed = (n + kPageTokens - 1) / kPageTokens;
  TANDEM_CHECK(needed <= spec_.max_pages, "{} pages of at most {}", needed, spec_.max_pages);
  const int held = std::min(needed, static_cast<int>(s.pages.size()));
  for (int i = s.length / kPageTokens; i < held; ++i) {
    int32_t& page = s.pages[static_cast<size_t>(i)];
    if (page < 0 || refs_[static_cast<size_t>(page)] == 1) continue;
    const int32_t own = allocate();
    const bool has_tokens = i * kPageTokens < s.length;
    if (has_tokens) ops::copy_page({pools(), page, own}, exec_.stream());
    unref(page);
    page = own;
    touch(s);
  }
  while (static_cast<int>(s.pages.size()) < needed) {
    s.pages.push_back(allocate());
    touch(s);
  }
}

void PagedStore::truncate(int slot, int n) {
  Slot& s = at(slot);
  TANDEM_CHECK(n >= 0 && n <= s.length, "truncation of {} tokens to {}", s.length, n);
  const auto keep = static_cast<size_t>((n + kPageTokens - 1) / kPageTokens);
  while (s.pages.size() > keep) {
    if (s.pages.back() < 0) --s.n_given_back;
    unref(s.pages.back());
    s.pages.pop_back();
  }
  s.gone_end = std::min(s.gone_end, static_cast<int>(keep));
  s.length = n;
  touch(s);
}

void PagedStore::drop(int slot, int begin, int end) {
  Slot& s = at(slot);
  const int first = (begin + kPageTokens - 1) / kPageTokens;
  const int last = std::min(end / kPageTokens, static_cast<int>(s.pages.size()));
  if (first >= last) return;
  const bool goes_on = s.gone_begin <= first && first <= s.gone_end;
  for (int i = goes_on ? s.gone_end : first; i < last; ++i) {
    int32_t& page = s.pages[static_cast<size_t>(i)];
    if (page < 0) continue;
    unref(page);
    page = -1;
    ++s.n_given_back;
    touch(s);
  }
  if (!goes_on) s.gone_begin = first;
  s.gone_end = goes_on ? std::max(s.gone_end, last) : last;
}

int32_t PagedStore::page(int slot, int page_index) const {
  const Slot& s = at(slot);
  return page_index < static_cast<int>(s.pages.size()) ? s.pages[static_cast<size_t>(page_index)]
                                                       : -1;
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
  ops::move_tokens({pools(), moves_, moves_ + n_moves, n_moves}, exec_.stream());
}

PagePools PagedStore::pools() const {
  return {.k = k_,
          .v = v_,
          .n_layers = spec_.n_layers,
          .n_pages = spec_.n_pages,
          .n_kv_heads = spec_.n_kv_heads,
          .row_bytes = spec_.head_dim * static_cast<int>(dtype_bytes(spec_.dtype))};
}

}  // namespace tandem::kv
