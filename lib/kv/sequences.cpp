#include "kv/sequences.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "base/page.h"

namespace tandem::kv {

Sequences::Sequences(const Spec& spec)
    : spec_(spec),
      refs_(static_cast<size_t>(spec.n_pages)),
      slots_(static_cast<size_t>(spec.max_slots)) {
  // Popped from the back: pages go out in rising order, so that a long prompt reads memory forward.
  for (int32_t page = spec.n_pages; page-- > 0;) free_.push_back(page);
}

Sequences::Slot& Sequences::at(int slot) {
  TANDEM_CHECK(slot >= 0 && slot < spec_.max_slots && slots_[static_cast<size_t>(slot)].used,
               "slot {} is not in use", slot);
  return slots_[static_cast<size_t>(slot)];
}

const Sequences::Slot& Sequences::at(int slot) const {
  return const_cast<Sequences*>(this)->at(slot);
}

int Sequences::acquire() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].used) continue;
    slots_[i].used = true;
    touch(slots_[i]);
    return static_cast<int>(i);
  }
  throw make_error(ErrorKind::memory, "kv cache", "all {} sequences are in use", spec_.max_slots)
      .hint("raise run.batch");
}

void Sequences::release(int slot) {
  // The first pages last, so that they go out first again.
  Slot& s = at(slot);
  for (; !s.pages.empty(); s.pages.pop_back()) unref(s.pages.back());
  s = {};
}

int Sequences::fork(int slot) {
  const int copy = acquire();
  at(copy) = at(slot);
  for (const int32_t page : at(copy).pages)
    if (page >= 0) ++refs_[static_cast<size_t>(page)];
  truncate(copy, at(copy).length);  // what is tentative is not shared
  return copy;
}

void Sequences::share(int from, int to) {
  Slot& s = at(to);
  TANDEM_CHECK(s.pages.empty(), "slot {} has {} pages, expected none", to, s.pages.size());
  s = at(from);
  for (const int32_t page : s.pages)
    if (page >= 0) ++refs_[static_cast<size_t>(page)];
  touch(s);
}

int32_t Sequences::allocate() {
  if (free_.empty())
    throw make_error(ErrorKind::memory, "kv cache", "all {} pages of {} tokens are in use",
                     spec_.n_pages, kPageTokens)
        .hint("raise run.context or lower run.batch");
  const int32_t page = free_.back();
  free_.pop_back();
  refs_[static_cast<size_t>(page)] = 1;
  return page;
}

void Sequences::unref(int32_t page) {
  if (page >= 0 && --refs_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

void Sequences::reserve(int slot, int n, const CopyPage& copy, Range gap) {
  Slot& s = at(slot);
  const auto is_out = [&](int i) {
    return i >= gap.begin / kPageTokens && i < gap.end / kPageTokens;
  };
  const int needed = (n + kPageTokens - 1) / kPageTokens;
  TANDEM_CHECK(needed <= spec_.max_pages, "{} pages exceed the limit of {}", needed,
               spec_.max_pages);
  const int held = std::min(needed, static_cast<int>(s.pages.size()));
  for (int i = s.length / kPageTokens; i < held; ++i) {
    int32_t& page = s.pages[static_cast<size_t>(i)];
    const bool is_gone = page < 0;
    if (is_gone ? gap.end == 0 || is_out(i) : refs_[static_cast<size_t>(page)] == 1) continue;
    const int32_t own = allocate();
    const bool has_tokens = i * kPageTokens < s.length;
    if (has_tokens && !is_gone) copy(page, own);
    if (is_gone) --s.n_given_back;
    unref(page);
    page = own;
    touch(s);
  }
  while (static_cast<int>(s.pages.size()) < needed) {
    const bool is_gone = is_out(static_cast<int>(s.pages.size()));
    if (is_gone) ++s.n_given_back;
    s.pages.push_back(is_gone ? -1 : allocate());
    touch(s);
  }
}

void Sequences::own(int slot, int begin, int end, const CopyPage& copy) {
  Slot& s = at(slot);
  for (int i = begin / kPageTokens; i * kPageTokens < end; ++i) {
    int32_t& page = s.pages[static_cast<size_t>(i)];
    if (page < 0 || refs_[static_cast<size_t>(page)] == 1) continue;
    const int32_t own = allocate();
    copy(page, own);
    unref(page);
    page = own;
    touch(s);
  }
}

void Sequences::adopt(int slot, int n, int begin) {
  Slot& s = at(slot);
  TANDEM_CHECK(s.pages.empty() && begin >= 0 && begin <= n,
               "slot has {} pages, or a range of {} tokens cannot begin at {}", s.pages.size(), n,
               begin);
  const int all = (n + kPageTokens - 1) / kPageTokens, gone = std::min(begin / kPageTokens, all);
  s.pages.assign(static_cast<size_t>(gone), -1);
  s.n_given_back = gone;
  s.gone_begin = 0;
  s.gone_end = gone;
  s.length = n;
  touch(s);
  try {
    while (static_cast<int>(s.pages.size()) < all) s.pages.push_back(allocate());
  } catch (const Error&) {
    truncate(slot, 0);
    throw;
  }
}

void Sequences::truncate(int slot, int n) {
  Slot& s = at(slot);
  TANDEM_CHECK(n >= 0 && n <= s.length, "cannot truncate {} tokens to {}", s.length, n);
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

void Sequences::drop(int slot, int begin, int end) {
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

int32_t Sequences::page(int slot, int page_index) const {
  const Slot& s = at(slot);
  return page_index < static_cast<int>(s.pages.size()) ? s.pages[static_cast<size_t>(page_index)]
                                                       : -1;
}

}  // namespace tandem::kv
