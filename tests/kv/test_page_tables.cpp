#include <doctest/doctest.h>

#include <algorithm>

#include "base/rng.h"
#include "kv/page_tables.h"

using namespace tandem;
using kv::PagedStore;
using kv::PageTables;

namespace {

constexpr int kSlots = 6, kMaxPages = 9;
const PagedStore::Spec kSpec{.n_layers = 1,
                             .n_kv_heads = 1,
                             .head_dim = 1,
                             .dtype = DType::f32,
                             .n_pages = 40,
                             .max_slots = kSlots,
                             .max_pages = kMaxPages};

struct Rig {
  Rig()
      : arena(plan()),
        store(kSpec, arena),
        cells(kSlots * kMaxPages),
        tables(cells.data(), kSlots, kMaxPages),
        copy(cells) {}
  static MemoryPlan plan() {
    MemoryPlan p;
    PagedStore::plan(kSpec, p);
    return p;
  }

  /// Lays out and brings the copy up to date.
  size_t lay_out(const std::vector<int32_t>& slots) {
    tables.lay_out(store, slots);
    for (const PageChange& c : tables.changes()) copy[static_cast<size_t>(c.cell)] = c.page;
    return tables.changes().size();
  }
  /// Cells of the step's rows, from both, that differ from a table laid out anew.
  int n_wrong(const std::vector<int32_t>& slots) const {
    int wrong = 0;
    for (const int slot : slots)
      for (int i = 0; i < kMaxPages; ++i) {
        const size_t cell = static_cast<size_t>(slot * kMaxPages + i);
        const int32_t page = store.page(slot, i);
        wrong += tables.cells()[cell] != page || copy[cell] != page ? 1 : 0;
      }
    return wrong;
  }
  int append(int slot, int n) {
    store.reserve(slot, store.length(slot) + n);
    store.set_length(slot, store.length(slot) + n);
    return slot;
  }

  Arena arena;
  PagedStore store;
  std::vector<int32_t> cells;
  PageTables tables;
  std::vector<int32_t> copy;  // elsewhere, told of changes alone
};

}  // namespace

TEST_SUITE("kv/page_tables") {
  TEST_CASE("a step costs what has changed since the last") {
    Rig rig;
    const int a = rig.append(rig.store.acquire(), 4 * kPageTokens - 1);
    const int b = rig.append(rig.store.acquire(), 10);
    CHECK(rig.lay_out({a, b}) == 5);
    CHECK(rig.lay_out({a, b}) == 0);
    CHECK(rig.lay_out({a}) == 0);
    rig.append(a, 1);
    CHECK(rig.lay_out({a, b}) == 0);
    rig.append(a, 1);
    CHECK(rig.lay_out({a, b}) == 1);
    rig.store.truncate(a, 4 * kPageTokens);
    CHECK(rig.lay_out({a, b}) == 1);
    rig.store.drop(a, 0, 2 * kPageTokens);
    CHECK(rig.lay_out({a, b}) == 2);
    const int fork = rig.store.fork(b);
    CHECK(rig.lay_out({a, fork}) == 1);  // the same page, in a row of its own
    rig.append(fork, 1);
    CHECK(rig.lay_out({fork, a}) == 1);  // its own copy
    CHECK(rig.n_wrong({a, b, fork}) == 0);
  }

  TEST_CASE("stores of the same slots take turns, though versions of their tables are the same") {
    Rig rig, other;
    rig.append(rig.store.acquire(), 2 * kPageTokens);  // pages 0 and 1
    other.append(other.store.acquire(), kPageTokens);
    other.append(other.store.acquire(), 1);
    other.append(0, kPageTokens);  // pages 0 and 2
    while (rig.store.table_version(0) < other.store.table_version(0))
      rig.store.truncate(0, 2 * kPageTokens);
    REQUIRE(rig.store.table_version(0) == other.store.table_version(0));
    const auto page = [&](int i) { return rig.tables.cells()[i]; };
    for (int turn = 0; turn < 3; ++turn)
      for (const PagedStore* store : {&rig.store, &other.store}) {
        rig.tables.lay_out(*store, std::vector<int32_t>{0});
        for (int i = 0; i < kMaxPages; ++i) CHECK(page(i) == store->page(0, i));
      }
    CHECK(rig.store.page(0, 1) != other.store.page(0, 1));
  }

  TEST_CASE(
      "tables of whatever sequences come, grow, fork, shrink and go equal those laid out anew") {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      CAPTURE(seed);
      Rig rig;
      PhiloxStream draw(seed);
      const auto below = [&](size_t n) {
        return static_cast<int>(draw.below(static_cast<uint32_t>(n)));
      };
      std::vector<int32_t> alive;
      const auto any = [&] { return alive[static_cast<size_t>(below(alive.size()))]; };
      int steps = 0;
      for (int i = 0; i < 400; ++i) {
        const int what = alive.empty() ? 0 : below(7);
        const bool room = alive.size() < kSlots;
        if (what == 0 && room) alive.push_back(rig.store.acquire());
        if (what == 1 && room) alive.push_back(rig.store.fork(any()));
        if (what == 2) {
          const auto at = alive.begin() + below(alive.size());
          rig.store.release(*at);
          alive.erase(at);
        }
        if (what == 3 || what == 4) {  // some of it not kept
          const int slot = any(), n = below(2 * kPageTokens) + 1, length = rig.store.length(slot);
          const bool fits = length + n <= kMaxPages * kPageTokens && rig.store.free_pages() >= 4;
          if (fits) rig.store.reserve(slot, length + n);
          if (fits) rig.store.set_length(slot, length + below(static_cast<size_t>(n) + 1));
        }
        if (what == 5) {
          const int slot = any();
          rig.store.truncate(slot, below(static_cast<size_t>(rig.store.length(slot)) + 1));
        }
        if (what == 6) {
          const int slot = any(), end = below(static_cast<size_t>(rig.store.length(slot)) + 1);
          const int begin = below(static_cast<size_t>(end) + 1);
          rig.store.drop(slot, begin, end);
          for (int page = (begin + kPageTokens - 1) / kPageTokens; page < end / kPageTokens; ++page)
            REQUIRE(rig.store.page(slot, page) == -1);
        }
        // A step of some of them, in any order.
        std::vector<int32_t> slots = alive;
        for (size_t k = slots.size(); k > 1; --k)
          std::swap(slots[k - 1], slots[static_cast<size_t>(below(k))]);
        slots.resize(static_cast<size_t>(below(slots.size() + 1)));
        rig.lay_out(slots);
        REQUIRE(rig.n_wrong(slots) == 0);
        steps += slots.empty() ? 0 : 1;
        for (const int slot : alive) {
          const std::vector<int32_t>& pages = rig.store.pages(slot);
          REQUIRE(rig.store.pages_given_back(slot) == std::count(pages.begin(), pages.end(), -1));
        }
      }
      CHECK(steps > 100);
    }
  }
}
