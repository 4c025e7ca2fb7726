#include "kv/paged_store.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tandem::kv {

size_t PagedStore::Spec::page_bytes() const {
  return size_t{2} * static_cast<size_t>(n_layers) * static_cast<size_t>(n_kv_heads) * kPageTokens *
         static_cast<size_t>(head_dim) * dtype_bytes(dtype);
}

void PagedStore::plan(const Spec& spec, MemoryPlan& plan) {
  const size_t half = spec.page_bytes() / 2 * static_cast<size_t>(spec.n_pages);
  plan.add("kv/k", half);
  plan.add("kv/v", half);
}

PagedStore::PagedStore(const Spec& spec, Arena& arena)
    : spec_(spec),
      k_(static_cast<char*>(arena.take("kv/k"))),
      v_(static_cast<char*>(arena.take("kv/v"))),
      refs_(static_cast<size_t>(spec.n_pages)),
      slots_(static_cast<size_t>(spec.max_slots)) {
  // Popped from the back: pages go out in rising order, so that a long prompt reads memory forward.
  for (int32_t page = spec.n_pages; page-- > 0;) free_.push_back(page);
}

size_t PagedStore::layer_page_bytes() const {
  return spec_.page_bytes() / 2 / static_cast<size_t>(spec_.n_layers);
}

Tensor PagedStore::pool(char* base, int layer) const {
  const size_t layer_bytes = layer_page_bytes() * static_cast<size_t>(spec_.n_pages);
  return {base + static_cast<size_t>(layer) * layer_bytes, spec_.dtype,
          {spec_.n_pages, spec_.n_kv_heads, kPageTokens, spec_.head_dim}};
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
    slots_[i] = {true, 0, {}};
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
  Slot& to = at(copy);
  const Slot& from = at(slot);
  to.length = from.length;
  to.pages.assign(from.pages.begin(),
                  from.pages.begin() + (from.length + kPageTokens - 1) / kPageTokens);
  for (const int32_t page : to.pages)
    if (page >= 0) ++refs_[static_cast<size_t>(page)];
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

void PagedStore::copy_page(int32_t from, int32_t to) {
  const size_t bytes = layer_page_bytes();
  for (char* base : {k_, v_})
    for (int layer = 0; layer < spec_.n_layers; ++layer) {
      char* pool = base + static_cast<size_t>(layer) * bytes * static_cast<size_t>(spec_.n_pages);
      std::memcpy(pool + static_cast<size_t>(to) * bytes, pool + static_cast<size_t>(from) * bytes,
                  bytes);
    }
}

void PagedStore::reserve(int slot, int n) {
  Slot& s = at(slot);
  const int needed = (n + kPageTokens - 1) / kPageTokens;
  TANDEM_CHECK(needed <= spec_.max_pages, "{} pages of at most {}", needed, spec_.max_pages);
  if (n > s.length && s.length % kPageTokens != 0) {
    int32_t& page = s.pages[static_cast<size_t>(s.length / kPageTokens)];
    if (page >= 0 && refs_[static_cast<size_t>(page)] > 1) {
      const int32_t own = allocate();
      copy_page(page, own);
      unref(page);
      page = own;
    }
  }
  while (static_cast<int>(s.pages.size()) < needed) s.pages.push_back(allocate());
}

void PagedStore::truncate(int slot, int n) {
  Slot& s = at(slot);
  TANDEM_CHECK(n >= 0 && n <= s.length, "truncation of {} tokens to {}", s.length, n);
  const auto keep = static_cast<size_t>((n + kPageTokens - 1) / kPageTokens);
  while (s.pages.size() > keep) {
    unref(s.pages.back());
    s.pages.pop_back();
  }
  s.length = n;
}

void PagedStore::drop(int slot, int begin, int end) {
  Slot& s = at(slot);
  const int first = (begin + kPageTokens - 1) / kPageTokens;
  const int last = std::min(end / kPageTokens, static_cast<int>(s.pages.size()));
  for (int i = first; i < last; ++i) {
    unref(s.pages[static_cast<size_t>(i)]);
    s.pages[static_cast<size_t>(i)] = -1;
  }
}

int32_t PagedStore::page(int slot, int page_index) const {
  const Slot& s = at(slot);
  return page_index < static_cast<int>(s.pages.size()) ? s.pages[static_cast<size_t>(page_index)]
                                                       : -1;
}

void PagedStore::move_token(int slot, int from, int to) {
  if (from == to) return;
  const size_t row = static_cast<size_t>(spec_.head_dim) * dtype_bytes(spec_.dtype);
  const size_t bytes = layer_page_bytes();
  const auto offset = [&](int token) {
    return static_cast<size_t>(page(slot, token / kPageTokens)) * bytes +
           static_cast<size_t>(token % kPageTokens) * row;
  };
  const size_t source = offset(from), target = offset(to);
  for (char* base : {k_, v_})
    for (int layer = 0; layer < spec_.n_layers; ++layer) {
      char* pool = base + static_cast<size_t>(layer) * bytes * static_cast<size_t>(spec_.n_pages);
      for (int head = 0; head < spec_.n_kv_heads; ++head) {
        const size_t head_offset = static_cast<size_t>(head) * kPageTokens * row;
        std::memcpy(pool + target + head_offset, pool + source + head_offset, row);
      }
    }
}

}  // namespace tandem::kv
