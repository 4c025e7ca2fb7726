// Which pages hold whose tokens, without pages.
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "base/page.h"
#include "error_text.h"
#include "kv/sequences.h"

using namespace tandem;
using kv::Sequences;
using tandem::test::kind_of;

namespace {

constexpr int kPages = 12, kSlots = 4;

struct Rig {
  Sequences sequences{{.n_pages = kPages, .max_slots = kSlots, .max_pages = 8}};
  std::vector<std::pair<int32_t, int32_t>> copies;

  Sequences* operator->() { return &sequences; }
  void reserve(int slot, int n) {
    sequences.reserve(slot, n, [&](int32_t from, int32_t to) { copies.emplace_back(from, to); });
  }
  void append(int slot, int n) {
    reserve(slot, sequences.length(slot) + n);
    sequences.set_length(slot, sequences.length(slot) + n);
  }
};

}  // namespace

TEST_SUITE("kv/sequences") {
  TEST_CASE("pages are taken when tokens need them and all come back") {
    Rig s;
    const int a = s->acquire(), b = s->acquire();
    CHECK(a != b);
    s.reserve(a, 1);
    CHECK(s->free_pages() == kPages - 1);
    s.reserve(a, kPageTokens);
    CHECK(s->free_pages() == kPages - 1);
    s.reserve(a, kPageTokens + 1);
    CHECK(s->free_pages() == kPages - 2);
    s.reserve(b, 3 * kPageTokens);
    CHECK(s->free_pages() == kPages - 5);
    CHECK(s.copies.empty());
    s->release(a);
    s->release(b);
    CHECK(s->free_pages() == kPages);
    CHECK(s->acquire() == a);
  }

  TEST_CASE("a shared page is copied once, when a sequence writes, if it has tokens") {
    Rig s;
    const int parent = s->acquire();
    s.append(parent, 100);
    const int child = s->fork(parent);
    CHECK(s->pages(child) == s->pages(parent));
    s.append(child, 10);
    REQUIRE(s.copies.size() == 1);
    CHECK(s.copies[0] == std::pair(s->page(parent, 1), s->page(child, 1)));
    CHECK(s->page(parent, 0) == s->page(child, 0));
    s.append(parent, 20);  // its own page by now
    CHECK(s.copies.size() == 1);
    // At a page's end nothing is to be copied.
    s->truncate(child, kPageTokens);
    const int third = s->fork(child);
    s.append(third, 1);
    s.append(child, 1);
    CHECK(s.copies.size() == 1);
    CHECK(s->page(third, 1) != s->page(child, 1));
  }

  TEST_CASE("drop gives back pages that lie wholly inside the range") {
    Rig s;
    const int slot = s->acquire();
    s.append(slot, 5 * kPageTokens + 10);
    s->drop(slot, 4, 2 * kPageTokens - 1);  // page 0 holds token 0, page 1 ends one later
    CHECK(s->free_pages() == kPages - 6);
    s->drop(slot, 4, 4 * kPageTokens);
    CHECK(s->free_pages() == kPages - 3);
    CHECK(s->pages_given_back(slot) == 3);
    CHECK(s->pages(slot) ==
          std::vector<int32_t>{s->page(slot, 0), -1, -1, -1, s->page(slot, 4), s->page(slot, 5)});
    s->drop(slot, 0, 4 * kPageTokens);  // twice does no harm
    CHECK(s->free_pages() == kPages - 2);
    const int child = s->fork(slot);
    CHECK(s->free_pages() == kPages - 2);
    s->release(slot);
    s->release(child);
    CHECK(s->free_pages() == kPages);
  }

  TEST_CASE("tables have versions that change with them, and no two the same") {
    Rig s;
    const int a = s->acquire();
    const uint64_t empty = s->table_version(a);
    CHECK(empty != 0);
    s.append(a, 10);
    const uint64_t one = s->table_version(a);
    CHECK(one != empty);
    s.append(a, 10);  // the same page
    CHECK(s->table_version(a) == one);
    const int b = s->fork(a);
    CHECK(s->table_version(b) != one);
    s->truncate(a, 5);
    CHECK(s->table_version(a) != one);
  }

  TEST_CASE("exhausted pages and too many sequences are errors of kind memory, and harmless") {
    Rig s;
    const int a = s->acquire(), b = s->acquire();
    s.append(a, 8 * kPageTokens);
    CHECK(kind_of([&] { s.reserve(b, 5 * kPageTokens); }) == ErrorKind::memory);
    CHECK(s->length(b) == 0);
    s->release(b);
    CHECK(s->free_pages() == kPages - 8);
    for (int i = 0; i < kSlots - 1; ++i) s->acquire();
    CHECK(kind_of([&] { s->acquire(); }) == ErrorKind::memory);
    CHECK(kind_of([&] { s->fork(a); }) == ErrorKind::memory);
    CHECK(s->free_pages() == kPages - 8);
  }
}
