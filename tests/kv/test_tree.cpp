#include <doctest/doctest.h>

#include "kv/tree_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;

namespace {

/// Sums of the same terms, some of them in other groups: a key's slot decides which keys share an
/// online-softmax step. Logits are of order 1; the products before them add a few ulp each.
constexpr double kTolerance = 2e-5;

struct Case {
  std::string model;
  recipe::Cache cache;
  int length;
};
const Case kCases[] = {{"llama-3.1", {}, 100},
                       {"llama-3.1", {}, 60},  // the trees cross a page's end
                       {"llama-odd", {}, 130},
                       {"mistral-window", {}, 100},
                       {"qwen2-tied", streaming(4, 16), 200},
                       {"llama-3.1", streaming(4, 16, true), 200},
                       {"llama-odd", snapkv(40, 8), 200},
                       {"llama-3.1", retrieval(40, 8), 200},
                       {"qwen3-tied", {}, 100},
                       {"qwen2-layer-types", {}, 200},
                       {"qwen2-layer-types", snapkv(40, 8), 200},
                       {"qwen3-tied", streaming(4, 16, true), 200}};

}  // namespace

TEST_SUITE("kv/tree") {
  TEST_CASE("f32: every node's logits equal those of the chain that leads to it") {
    for (const Case& c : kCases) {
      CAPTURE(c.model);
      CAPTURE(c.length);
      const auto engine = make_engine(small_model(c.model), {.caches = {c.cache}});
      kv::Cache& cache = engine->cache();
      const Ids ids = random_ids(*engine, c.length, 24);
      const int a = cache.create(), b = cache.create();
      prefill(*engine, a, ids);
      prefill(*engine, b, std::span(ids).first(30));
      const TokenTree left = small_tree(*engine), right = random_tree(*engine, 90);
      std::vector<Row> logits;
      const kv::Step step = verify(*engine, a, left, b, right, logits);
      CHECK(step.mask_words == 2);
      const int none[] = {0, 0};
      cache.commit(step, none);
      double worst = 0;
      size_t row = 0, n_equal = 0;
      for (const auto& [slot, tree] : {std::pair{a, &left}, {b, &right}})
        for (int node = 0; node < static_cast<int>(tree->tokens.size()); ++node, ++row) {
          const int chain = cache.fork(slot, 0);
          const Row want = extend(*engine, chain, tree->chain(node));
          cache.release(chain);
          worst = worse(worst, max_difference(logits[row], want));
          n_equal += same(logits[row], want) ? 1 : 0;
        }
      MESSAGE(c.model << ": " << n_equal << " of " << row << " nodes equal bit for bit, worst "
                      << worst);
      CHECK(worst <= kTolerance);
    }
  }

  TEST_CASE("f32: a committed path goes on as the plain run of its tokens") {
    for (const Case& c : kCases) {
      CAPTURE(c.model);
      CAPTURE(c.length);
      const auto engine = make_engine(small_model(c.model), {.caches = {c.cache}});
      kv::Cache& cache = engine->cache();
      const Ids ids = random_ids(*engine, c.length, 25), after = random_ids(*engine, 6, 26);
      const int a = cache.create(), b = cache.create();
      prefill(*engine, a, ids);
      prefill(*engine, b, std::span(ids).first(30));
      const int plain_a = cache.fork(a, 0), plain_b = cache.fork(b, 0);
      const TokenTree left = small_tree(*engine), right = random_tree(*engine, 90);
      std::vector<Row> logits;
      const kv::Step step = verify(*engine, a, left, b, right, logits);
      const std::vector<int> paths[] = {left.path(9), right.path(89)};
      REQUIRE(paths[0] == std::vector<int>{0, 1, 4, 8, 9});
      const int kept[] = {4, static_cast<int>(paths[1].size())};  // not to the path's end, and all
      commit_paths(cache, step, kept, paths);
      CHECK(cache.length(a) == c.length + 4);

      extend(*engine, plain_a, left.chain(8));
      extend(*engine, plain_b, right.chain(89));
      for (const auto& [slot, plain] : {std::pair{a, plain_a}, {b, plain_b}}) {
        CHECK(cache.length(slot) == cache.length(plain));
        const auto rows = extend_each(*engine, slot, after),
                   want = extend_each(*engine, plain, after);
        double worst = 0;
        for (size_t i = 0; i < want.size(); ++i)
          worst = worse(worst, max_difference(rows[i], want[i]));
        CHECK(worst <= kTolerance);
      }
    }
  }

  TEST_CASE("f32: levels one by one give the bits of the whole tree in one step, kept rows too") {
    for (const Case& c : kCases) {
      CAPTURE(c.model);
      CAPTURE(c.length);
      const auto engine = make_engine(small_model(c.model), {.caches = {c.cache}});
      kv::Cache& cache = engine->cache();
      const Ids ids = random_ids(*engine, c.length, 29), after = random_ids(*engine, 4, 30);
      const LevelTree left = by_levels(small_tree(*engine)),
                      right = by_levels(random_tree(*engine, 90));
      std::vector<Row> want, got, next;
      for (const bool levels : {false, true}) {
        const int a = cache.create(), b = cache.create();
        prefill(*engine, a, ids);
        prefill(*engine, b, std::span(ids).first(30));
        std::vector<Row>& logits = levels ? got : want;
        const kv::Step step = levels ? verify_levels(*engine, a, left, b, right, logits)
                                     : verify(*engine, a, left, b, right, logits);
        CHECK(step.tentative.empty() == !levels);
        const std::vector<int> paths[] = {left.path(9), right.path(89)};
        const int kept[] = {static_cast<int>(paths[0].size()), static_cast<int>(paths[1].size())};
        commit_paths(cache, step, kept, paths);
        CHECK(cache.length(a) == c.length + kept[0]);
        for (const int slot : {a, b}) {
          for (Row& row : extend_each(*engine, slot, after)) next.push_back(std::move(row));
          cache.release(slot);
        }
      }
      REQUIRE(want.size() == 100);
      CHECK(same(got, want));
      const auto half = next.begin() + static_cast<ptrdiff_t>(next.size() / 2);
      CHECK(same(std::vector<Row>(next.begin(), half), std::vector<Row>(half, next.end())));
    }
  }

  TEST_CASE("steps laid out again are those of a new layout, for other texts and lengths") {
    const auto engine = make_engine(small_model("llama-3.1"), {.caches = {{}}});
    kv::Cache& cache = engine->cache();
    const LevelTree left = by_levels(small_tree(*engine)),
                    right = by_levels(random_tree(*engine, 90));
    const size_t n_levels = std::min(left.level_ends.size(), right.level_ends.size());
    std::vector<int> level_ends[] = {left.level_ends, right.level_ends};
    for (std::vector<int>& ends : level_ends) {
      ends[n_levels - 1] = ends.back();
      ends.resize(n_levels);
    }
    const kv::Tree trees[] = {{left.parent}, {right.parent}};
    const auto rows_of = [&](int a, int b) {
      return std::array<kv::SeqRows, 2>{
          {{a, level_ends[0].back(), false}, {b, level_ends[1].back(), false}}};
    };
    const auto require_same = [&](const kv::Step& got, const kv::Step& want) {
      REQUIRE(got.slot == want.slot);
      REQUIRE(got.row_begin == want.row_begin);
      REQUIRE(got.base == want.base);
      REQUIRE(got.tentative == want.tentative);
      REQUIRE(got.pos == want.pos);
      REQUIRE(got.row_page == want.row_page);
      REQUIRE(got.row_in_page == want.row_in_page);
      REQUIRE(got.tree_mask == want.tree_mask);
    };
    const int first = cache.create(), second = cache.create();
    std::vector<kv::Step> levels =
        cache.begin_levels({.rows = rows_of(first, second), .trees = trees}, level_ends);
    kv::Step whole = cache.begin({.rows = rows_of(first, second), .trees = trees});
    // Texts that grow, over the ends of pages, and change places.
    for (const auto& [n_first, n_second] : {std::pair{30, 1}, {60, 3}, {2, 200}, {70, 0}}) {
      if (n_first > 0) prefill(*engine, first, random_ids(*engine, n_first, 41));
      if (n_second > 0) prefill(*engine, second, random_ids(*engine, n_second, 42));
      for (const auto& [a, b] : {std::pair{first, second}, {second, first}}) {
        const int32_t slots[] = {a, b};
        cache.begin_again(levels, slots);
        const std::vector<kv::Step> want =
            cache.begin_levels({.rows = rows_of(a, b), .trees = trees}, level_ends);
        for (size_t l = 0; l < n_levels; ++l) require_same(levels[l], want[l]);
        cache.begin_again({&whole, 1}, slots);
        require_same(whole, cache.begin({.rows = rows_of(a, b), .trees = trees}));
        // The page table is the one of the sequences.
        const ops::StepArrays arrays = whole.arrays;
        for (int i = 0; i < 2; ++i)
          for (int page = 0; page < arrays.max_pages; ++page)
            REQUIRE(arrays.page_table[slots[i] * arrays.max_pages + page] ==
                    cache.store().page(slots[i], page));
      }
    }
  }

  TEST_CASE("a tree's rows read the text once, and its levels what they continue") {
    const auto engine = make_engine(small_model("llama-3.1"), {.caches = {{}}});
    kv::Cache& cache = engine->cache();
    const int a = cache.create(), b = cache.create();
    prefill(*engine, a, random_ids(*engine, 100, 31));
    prefill(*engine, b, random_ids(*engine, 30, 32));
    const LevelTree left = by_levels(small_tree(*engine)),
                    right = by_levels(random_tree(*engine, 90));
    const double key = cache.geometry().token_bytes() * cache.geometry().n_layers;
    std::vector<Row> logits;
    double before = cache.usage(0).bytes();
    verify(*engine, a, left, b, right, logits);
    CHECK(cache.usage(0).bytes() - before == key * (100 + 10 + 30 + 90));
    before = cache.usage(0).bytes();
    verify_levels(*engine, a, left, b, right, logits);
    double keys = 0;
    for (size_t l = 0; l + 1 < left.level_ends.size(); ++l)
      keys += 100 + left.level_ends[l] + 30 + right.level_ends[l];
    CHECK(cache.usage(0).bytes() - before == key * (keys + 100 + 10 + 30 + 90));
  }

  TEST_CASE("f32: a tree without branches is a chain, bit for bit") {
    const auto engine = make_engine(small_model("llama-3.1"));
    const Ids ids = random_ids(*engine, 120, 27);
    const int slot = engine->cache().create();
    prefill(*engine, slot, ids);
    const int plain = engine->cache().fork(slot, 0);
    TokenTree chain{{}, random_ids(*engine, 70, 28)};
    for (int i = 0; i < 70; ++i) chain.parent.push_back(i - 1);
    const int other = engine->cache().create();
    prefill(*engine, other, ids);
    std::vector<Row> logits;
    verify(*engine, slot, chain, other, chain, logits);
    CHECK(same(logits[69], extend(*engine, plain, chain.tokens)));
    CHECK(same(logits[139], logits[69]));
  }

  TEST_CASE("f32: steps of one cache that are laid out before either runs do not collide") {
    for (const std::string name : {"llama-3.1", "mistral-window"}) {
      CAPTURE(name);
      const auto engine = make_engine(small_model(name));
      kv::Cache& cache = engine->cache();
      const TokenTree tree = small_tree(*engine);
      const Ids text = random_ids(*engine, 150, 51), more = random_ids(*engine, 3, 52);
      const int a = cache.create(), b = cache.create();
      prefill(*engine, a, text);
      prefill(*engine, b, std::span(text).first(70));
      const int plain_a = cache.fork(a, 0), plain_b = cache.fork(b, 0);
      const Row want_a = extend(*engine, plain_a, more);
      std::vector<Row> want_b;
      cache.release(plain_a);
      verify(*engine, plain_b, tree, cache.create(), {}, want_b);

      const kv::SeqRows rows_a[] = {{a, static_cast<int>(more.size()), true}};
      const kv::SeqRows rows_b[] = {{b, static_cast<int>(tree.tokens.size()), true}};
      const kv::Tree trees[] = {{tree.parent}};
      const kv::Step first = cache.begin({.rows = rows_a});
      const kv::Step second = cache.begin({.rows = rows_b, .trees = trees});
      engine->model().forward(more, first, cache);
      const int32_t last = first.n_rows - 1;
      CHECK(same(row_of(engine->on_host(engine->logits(std::span(&last, 1))), 0), want_a));
      engine->model().forward(tree.tokens, second, cache);
      for (int32_t r = 0; r < second.n_rows; ++r)
        CHECK(same(row_of(engine->on_host(engine->logits(std::span(&r, 1))), 0),
                   want_b[static_cast<size_t>(r)]));
    }
  }

  TEST_CASE("a tree without branches has no masks, whole and by levels") {
    const auto engine = make_engine(small_model("llama-3.1"));
    kv::Cache& cache = engine->cache();
    const int slot = cache.create();
    prefill(*engine, slot, random_ids(*engine, 20, 53));
    const std::vector<int> chain{-1, 0, 1, 2, 3}, branched{-1, 0, 1, 1, 2};
    const kv::SeqRows rows[] = {{slot, 5, true}};
    const kv::Tree chains[] = {{chain}}, trees[] = {{branched}};
    const std::vector<int> level_ends[] = {{1, 3, 5}};
    CHECK(cache.begin({.rows = rows, .trees = trees}).is_tree());
    const kv::Step step = cache.begin({.rows = rows, .trees = chains});
    CHECK_FALSE(step.is_tree());
    CHECK(step.arrays.tree_mask == nullptr);
    CHECK(step.drafted);
    const std::vector<kv::Step> levels =
        cache.begin_levels({.rows = rows, .trees = chains}, level_ends);
    CHECK_FALSE(levels[1].is_tree());
    CHECK(levels[1].tentative_of(0) == 1);
    CHECK(levels[2].pos == std::vector<int32_t>{23, 24});
  }
}
