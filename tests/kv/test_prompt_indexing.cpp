// The index of prompts made under the forward: its errors come out of the forward, whichever thread
// they happened in.
#include "kv/hosted/prompt_indexing.h"

#include <doctest/doctest.h>

#include <new>
#include <stdexcept>

#include "base/parallel.h"

using namespace tandem;
using kv::PromptIndexing;

namespace {

constexpr int kLayers = 4, kItems = 8, kLength = 100;

/// One that fails at a layer, in a thread of a loop.
class Failing final : public kv::HostedIndex {
 public:
  int range_begin(int) const override { return 0; }
  int most_ranged() const override { return 0; }
  void on_layer(int layer, int slot, int length, const kv::PagedStore& store) override {
    threads = max_threads();
    read = &store;
    parallel_for(kItems, [&](int item) {
      if (layer == fails_at && item == kItems / 2) throw std::runtime_error("no index");
    });
    made.push_back({layer, slot, length});
  }
  void on_give_up(int slot) override {
    dropped.push_back(slot);
    if (drop_fails) throw std::bad_alloc();
  }

  struct Entry {
    int layer, slot, length;
    bool operator==(const Entry&) const = default;
  };
  int fails_at = -1, threads = 0;
  bool drop_fails = false;
  const kv::PagedStore* read = nullptr;
  std::vector<Entry> made;
  std::vector<int> dropped;
};

struct Stores {
  Stores() : arena(plan()), far(spec("far"), arena), prompt(spec("prompt"), arena) {
    far.acquire();
    far.acquire();
  }
  static kv::PagedStore::Spec spec(const char* prefix) {
    kv::PagedStore::Spec s{.n_layers = kLayers,
                           .n_kv_heads = 1,
                           .head_dim = 16,
                           .dtype = DType::f32,
                           .n_pages = 2,
                           .max_slots = 2,
                           .max_pages = 2};
    s.prefix = prefix;
    return s;
  }
  static MemoryPlan plan() {
    MemoryPlan p;
    kv::PagedStore::plan(spec("far"), p);
    kv::PagedStore::plan(spec("prompt"), p);
    return p;
  }

  Arena arena;
  kv::PagedStore far, prompt;
};

void run(PromptIndexing& indexing) {
  for (int layer = 0; layer < kLayers; ++layer)
    indexing.layer(layer, {{0, kLength}, {1, kLength + 1}});
  indexing.finish();
}

class Threads {
 public:
  explicit Threads(int n) { set_threads(n); }
  ~Threads() { set_threads(before_); }

 private:
  int before_ = max_threads();
};

constexpr PromptIndexing::Where kPlaces[] = {PromptIndexing::Where::in_queue,
                                             PromptIndexing::Where::on_thread};

}  // namespace

TEST_SUITE("kv/hosted/prompt_indexing") {
  TEST_CASE(
      "an error at any layer comes out, what was begun is dropped, the next prompt is whole") {
    const Stores stores;
    for (const auto where : kPlaces)
      for (int fails_at = 0; fails_at < kLayers; ++fails_at) {
        CAPTURE(fails_at);
        CAPTURE(where == PromptIndexing::Where::on_thread);
        Failing policy;
        PromptIndexing indexing(policy, stores.far, stores.prompt, where, {});
        policy.fails_at = fails_at;
        CHECK_THROWS_WITH_AS(run(indexing), "no index", std::runtime_error);
        indexing.give_up();
        CHECK(policy.dropped == std::vector<int>{0, 1});
        indexing.give_up();
        CHECK(policy.dropped.size() == 2);

        policy.fails_at = -1;
        policy.made.clear();
        run(indexing);
        std::vector<Failing::Entry> all;
        for (int layer = 0; layer < kLayers; ++layer) {
          all.push_back({layer, 0, kLength});
          all.push_back({layer, 1, kLength + 1});
        }
        CHECK(policy.made == all);
        CHECK(policy.dropped.size() == 2);
        CHECK(policy.read ==
              (where == PromptIndexing::Where::on_thread ? &stores.far : &stores.prompt));
      }
  }

  TEST_CASE("work that fails while nobody waits, or cannot be dropped, ends nothing else") {
    const Stores stores;
    for (const bool drop_fails : {false, true}) {
      Failing policy;
      policy.fails_at = 1;
      policy.drop_fails = drop_fails;
      {
        PromptIndexing indexing(policy, stores.far, stores.prompt, PromptIndexing::Where::on_thread,
                                {});
        indexing.layer(0, {{0, kLength}, {1, kLength}});
        indexing.layer(1, {{0, kLength}, {1, kLength}});
      }
      CHECK(policy.dropped == std::vector<int>{0, 1});
    }
  }

  TEST_CASE("a separate thread shares its loops with all cores but one, or does them alone") {
    const Stores stores;
    for (const int n : {1, 2, 5, 33}) {
      CAPTURE(n);
      const Threads threads(n);
      for (const auto where : kPlaces) {
        Failing policy;
        PromptIndexing indexing(policy, stores.far, stores.prompt, where, {});
        run(indexing);
        CHECK(policy.threads ==
              (where == PromptIndexing::Where::on_thread ? std::max(1, n - 1) : n));
        CHECK(policy.made.size() == 2 * kLayers);
      }
    }
  }
}
