// Faults in the midst of steps and prompts over keys in host memory, both ends on a CPU: the error
// comes out, nothing was committed, and texts go on as if it had not been.
#include <doctest/doctest.h>

#include <atomic>
#include <new>
#include <stdexcept>

#include "base/parallel.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::CacheKind;

namespace {

recipe::Cache hosted(CacheKind kind) {
  recipe::Cache c = sparse_cache(kind);
  c.lsh = {.bits = 4, .tables = 24};
  c.place = recipe::CachePlace::host;
  return c;
}

/// Attends every layer once more, and fails in a thread at one of the lists.
struct FailingThread final : kv::AttentionObserver {
  void attended(kv::Cache& cache, int layer, const kv::Step& step, const Tensor& q) override {
    std::vector<float> o(static_cast<size_t>(q.elements())),
        lse(static_cast<size_t>(q.rows() * q.size(1)));
    cache.attend_as(
        {.keys = 0}, layer, step, q,
        {.o = o.data(), .lse = lse.data(), .on_list = [&](int, int, const kv::KeyList&, int32_t) {
           if (left.fetch_sub(1) == 0) throw std::bad_alloc();
         }});
  }
  std::atomic<int> left{-1};  // lists until one fails; below 0: none does
};

class Threads {
 public:
  explicit Threads(int n) { set_threads(n); }
  ~Threads() { set_threads(before_); }

 private:
  int before_ = max_threads();
};

}  // namespace

TEST_SUITE("kv/hosted_faults") {
  TEST_CASE("a thread that fails in the midst of a step, with any number of threads") {
    for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid})
      for (const int n : {1, 2, usable_cores() + 5}) {
        CAPTURE(recipe::yaml_text(kind));
        CAPTURE(n);
        const Threads threads(n);
        PolicyRig rig({.max_seqs = 1}, {hosted(kind)}, cone_data(32)),
            undisturbed({.max_seqs = 1}, {hosted(kind)}, cone_data(32));
        const int slot = rig.sequence(tokens(0, 700));
        REQUIRE(undisturbed.sequence(tokens(0, 700)) == slot);
        FailingThread failing;
        rig.cache.observe(&failing);
        int first = 1000;
        // Six lists a layer.
        for (const int list : {0, 3, 5, 6, 11}) {
          CAPTURE(list);
          failing.left = list;
          const int length = rig.cache.length(slot);
          CHECK_THROWS_AS(rig.extend(slot, tokens(first, 1)), std::bad_alloc);
          CHECK(rig.cache.length(slot) == length);
          failing.left = -1;
          const Ids next = tokens(first += 10, 2);
          CHECK(rig.extend(slot, next) == undisturbed.extend(slot, next));
        }
      }
  }

  TEST_CASE("f32: a forward that fails between the layers of a prompt leaves no trace") {
    for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid}) {
      CAPTURE(recipe::yaml_text(kind));
      const auto engine = make_engine(
          small_model("llama-3.1"), {.max_seqs = 2, .max_tokens = 2048, .caches = {hosted(kind)}});
      const Ids prompt = random_ids(*engine, 900, 1), after = random_ids(*engine, 4, 3);
      const int plain = engine->cache().create(), slot = engine->cache().create();
      const Row want = prefill(*engine, plain, prompt);
      const int pages = engine->cache().store().free_pages();
      for (int layers = 1; layers <= engine->config().n_layers; ++layers) {
        CAPTURE(layers);
        int left = layers;
        const decode::SeqTokens seq{slot, prompt, true};
        CHECK_THROWS_WITH_AS(engine->prefill({&seq, 1}, {},
                                             [&](int64_t) {
                                               if (--left == 0) throw std::runtime_error("failed");
                                               return true;
                                             }),
                             "failed", std::runtime_error);
        CHECK(engine->cache().length(slot) == 0);
      }
      CHECK(prefill(*engine, slot, prompt) == want);
      CHECK(extend_each(*engine, slot, after) == extend_each(*engine, plain, after));
      engine->cache().release(slot);
      CHECK(engine->cache().store().free_pages() == pages);
    }
  }
}
