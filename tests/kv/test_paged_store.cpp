#include <doctest/doctest.h>

#include <cstring>

#include "base/rng.h"
#include "error_text.h"
#include "kv/paged_store.h"

using namespace tandem;
using kv::PagedStore;
using tandem::test::kind_of;

namespace {

constexpr int kPages = 12, kSlots = 4;
const PagedStore::Spec kSpec{.n_layers = 2,
                             .n_kv_heads = 3,
                             .head_dim = 4,
                             .dtype = DType::f32,
                             .n_pages = kPages,
                             .max_slots = kSlots,
                             .max_pages = 8};

struct Store {
  Store() : arena(plan()), store(kSpec, arena) {}
  static MemoryPlan plan() {
    MemoryPlan p;
    PagedStore::plan(kSpec, p);
    return p;
  }
  PagedStore* operator->() { return &store; }

  Arena arena;
  PagedStore store;
};

/// First value of K or V of one token and head.
float& cell(const Tensor& pool, int32_t page, int token, int head) {
  return *(pool.slice(page, 1).as<float>() +
           (head * kPageTokens + token % kPageTokens) * kSpec.head_dim);
}

float value(int writer, int layer, int token, int head, bool v) {
  return static_cast<float>((((writer * 10 + layer) * 1000 + token) * 10 + head) * 2 + (v ? 1 : 0));
}

/// Appends `n` tokens whose K and V tell who wrote them.
void append(PagedStore& s, int slot, int n, int writer) {
  const int begin = s.length(slot);
  s.reserve(slot, begin + n);
  for (int t = begin; t < begin + n; ++t)
    for (int layer = 0; layer < kSpec.n_layers; ++layer)
      for (int head = 0; head < kSpec.n_kv_heads; ++head) {
        cell(s.k(layer), s.page(slot, t / kPageTokens), t, head) =
            value(writer, layer, t, head, false);
        cell(s.v(layer), s.page(slot, t / kPageTokens), t, head) =
            value(writer, layer, t, head, true);
      }
  s.set_length(slot, begin + n);
}

/// Tokens of [begin, end) that do not hold what `writer` wrote for `shift` tokens further.
int n_wrong(const PagedStore& s, int slot, int begin, int end, int writer, int shift = 0) {
  int wrong = 0;
  for (int t = begin; t < end; ++t) {
    bool ok = true;
    for (int layer = 0; layer < kSpec.n_layers; ++layer)
      for (int head = 0; head < kSpec.n_kv_heads; ++head) {
        const int32_t page = s.page(slot, t / kPageTokens);
        ok = ok &&
             cell(s.k(layer), page, t, head) == value(writer, layer, t + shift, head, false) &&
             cell(s.v(layer), page, t, head) == value(writer, layer, t + shift, head, true);
      }
    wrong += ok ? 0 : 1;
  }
  return wrong;
}

}  // namespace

TEST_SUITE("kv/paged_store") {
  TEST_CASE("a fork shares every page; a write to a shared one copies it, whoever writes") {
    for (const bool parent_writes : {false, true}) {
      CAPTURE(parent_writes);
      Store s;
      const int parent = s->acquire();
      append(s.store, parent, 100, 1);
      const int child = s->fork(parent);
      CHECK(s->length(child) == 100);
      CHECK(s->pages(child) == s->pages(parent));
      CHECK(s->free_pages() == kPages - 2);

      append(s.store, parent_writes ? parent : child, 10, 2);
      CHECK(s->page(parent, 0) == s->page(child, 0));
      CHECK(s->page(parent, 1) != s->page(child, 1));
      CHECK(s->free_pages() == kPages - 3);
      append(s.store, parent_writes ? child : parent, 20, 3);  // its own page by now: no copy
      CHECK(s->free_pages() == kPages - 3);
      const int writer = parent_writes ? parent : child, other = parent_writes ? child : parent;
      CHECK(n_wrong(s.store, writer, 0, 100, 1) == 0);
      CHECK(n_wrong(s.store, writer, 100, 110, 2) == 0);
      CHECK(n_wrong(s.store, other, 0, 100, 1) == 0);
      CHECK(n_wrong(s.store, other, 100, 120, 3) == 0);

      s->release(parent);
      CHECK(n_wrong(s.store, child, 0, 100, 1) == 0);
      s->release(child);
      CHECK(s->free_pages() == kPages);
    }
  }

  TEST_CASE("a fork at a page's end needs no copy, and tentative pages are not shared") {
    Store s;
    const int parent = s->acquire();
    append(s.store, parent, 2 * kPageTokens, 1);
    s->reserve(parent, 3 * kPageTokens);  // rows of a step in flight
    const int child = s->fork(parent);
    CHECK(s->pages(child).size() == 2);
    append(s.store, child, 1, 2);
    append(s.store, parent, 1, 3);
    CHECK(s->free_pages() == kPages - 4);
    CHECK(n_wrong(s.store, child, 128, 129, 2) == 0);
    CHECK(n_wrong(s.store, parent, 128, 129, 3) == 0);
  }

  TEST_CASE("truncation inside a shared page leaves the other sequence alone") {
    Store s;
    const int parent = s->acquire();
    append(s.store, parent, 150, 1);
    const int child = s->fork(parent);
    s->truncate(child, 70);
    CHECK(s->pages(child).size() == 2);
    append(s.store, child, 30, 2);
    CHECK(n_wrong(s.store, parent, 0, 150, 1) == 0);
    CHECK(n_wrong(s.store, child, 0, 70, 1) == 0);
    CHECK(n_wrong(s.store, child, 70, 100, 2) == 0);
    s->truncate(child, 0);
    CHECK(s->pages(child).empty());
    s->release(parent);
    CHECK(s->free_pages() == kPages);
  }

  TEST_CASE("drop gives back pages that lie wholly inside the range") {
    Store s;
    const int slot = s->acquire();
    append(s.store, slot, 5 * kPageTokens + 10, 1);
    s->drop(slot, 4, 2 * kPageTokens - 1);  // page 0 holds token 0, page 1 ends one later
    CHECK(s->free_pages() == kPages - 6);
    s->drop(slot, 4, 4 * kPageTokens);
    CHECK(s->free_pages() == kPages - 3);
    CHECK(s->pages(slot) ==
          std::vector<int32_t>{s->page(slot, 0), -1, -1, -1, s->page(slot, 4), s->page(slot, 5)});
    s->drop(slot, 0, 4 * kPageTokens);  // twice does no harm
    CHECK(s->free_pages() == kPages - 2);
    const int child = s->fork(slot);
    CHECK(s->free_pages() == kPages - 2);
    CHECK(n_wrong(s.store, child, 4 * kPageTokens, 5 * kPageTokens + 10, 1) == 0);
    s->release(slot);
    s->release(child);
    CHECK(s->free_pages() == kPages);
  }

  TEST_CASE("a write that cannot copy a shared page changes nothing") {
    Store s;
    const int a = s->acquire(), filler = s->acquire();
    append(s.store, a, 10, 1);
    append(s.store, filler, 8 * kPageTokens, 2);
    const int other = s->acquire();
    append(s.store, other, 3 * kPageTokens, 3);
    const int child = s->fork(a);
    CHECK(s->free_pages() == 0);
    CHECK(kind_of([&] { s->reserve(child, 11); }) == ErrorKind::memory);
    CHECK(s->page(child, 0) == s->page(a, 0));
    for (const int slot : {a, filler, other, child}) s->release(slot);
    CHECK(s->free_pages() == kPages);
  }

  TEST_CASE("random forks, writes, truncations and releases never lose or share a page wrongly") {
    Store s;
    PhiloxStream draw(7);
    struct Seq {
      int slot;
      std::vector<int> writer;  // by token
    };
    std::vector<Seq> alive;
    for (int i = 0; i < 3000; ++i) {
      const uint32_t what = draw.below(5);
      try {
        if (alive.empty() || what == 0) {
          alive.push_back({s->acquire(), {}});
        } else {
          Seq& seq = alive[draw.below(static_cast<uint32_t>(alive.size()))];
          if (what == 1) {
            alive.push_back({s->fork(seq.slot), seq.writer});
          } else if (what == 2) {
            const int n =
                static_cast<int>(draw.below(static_cast<uint32_t>(seq.writer.size()) + 1));
            s->truncate(seq.slot, n);
            seq.writer.resize(static_cast<size_t>(n));
          } else if (what == 3 && seq.writer.size() < 300) {
            const int n = 1 + static_cast<int>(draw.below(100));
            append(s.store, seq.slot, n, i % 50);
            seq.writer.resize(seq.writer.size() + static_cast<size_t>(n), i % 50);
          } else if (what == 4) {
            s->release(seq.slot);
            seq = alive.back();
            alive.pop_back();
          }
        }
      } catch (const Error& e) {
        REQUIRE(e.kind() == ErrorKind::memory);
      }
    }
    int wrong = 0;
    for (const Seq& seq : alive)
      for (int t = 0; t < static_cast<int>(seq.writer.size()); ++t)
        wrong += n_wrong(s.store, seq.slot, t, t + 1, seq.writer[static_cast<size_t>(t)]);
    CHECK(wrong == 0);
    for (const Seq& seq : alive) s->release(seq.slot);
    CHECK(s->free_pages() == kPages);
  }
}
