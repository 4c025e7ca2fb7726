// Lists of keys attended in blocks by many threads.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <stdexcept>

#include "base/parallel.h"
#include "base/rng.h"
#include "kv/list_attention.h"

using namespace tandem;
using kv::KeyList;

namespace {

constexpr int kTokens = 5000, kHeads = 6, kKvHeads = 2, kIntervals = 64;

/// The list of a row and query head.
struct Wanted {
  std::vector<int32_t> first, biased, weighted;
  std::vector<float> bias;
};

/// Lists of very different lengths, one of them empty, in three segments.
class Lists final : public kv::KeySelector {
 public:
  Lists(int n_rows, bool groups) : groups_(groups) {
    PhiloxStream draw(5);
    constexpr int kCounts[] = {4800, 0, 40, 900, 385, 2200};
    for (int i = 0; i < n_rows * kHeads; ++i) {
      const int n = kCounts[(i + i / kHeads) % std::ssize(kCounts)];
      Wanted& w = wanted_.emplace_back();
      for (int t = 0; t < kTokens; ++t) {
        if (draw.uniform() * kTokens >= n) continue;
        (t < 3 ? w.first : t < kTokens / 3 ? w.biased : w.weighted).push_back(t);
      }
      for (size_t k = 0; k < w.biased.size(); ++k)
        w.bias.push_back(static_cast<float>(2 * draw.uniform()));
    }
    for (int t = 0; t < kTokens; ++t) norms_.push_back(3 + static_cast<float>(draw.uniform()));
    for (int i = 0; i <= kIntervals; ++i)
      log_u_.push_back(-4.0f * (1 - static_cast<float>(i) / kIntervals));
  }

  size_t scratch_bytes() const override { return 64; }
  bool takes_groups() const override { return groups_; }
  std::span<const float> log_u() const override { return log_u_; }
  void select_keys(const kv::KeyQuery& query, std::byte*, std::span<KeyList> lists) const override {
    if (countdown >= 0 && countdown.fetch_sub(1) == 0) throw std::runtime_error("no lists");
    for (size_t h = 0; h < lists.size(); ++h)
      fill(query.position - kTokens, query.first_head + static_cast<int>(h), lists[h]);
  }
  void fill(int row, int head, KeyList& list) const {
    const Wanted& w = wanted_[static_cast<size_t>(row * kHeads + head)];
    const auto n = [](const auto& ids) { return static_cast<int>(ids.size()); };
    list.segments.push_back({w.first.data(), n(w.first), nullptr, nullptr});
    list.segments.push_back({w.biased.data(), n(w.biased), w.bias.data(), nullptr});
    list.segments.push_back({w.weighted.data(), n(w.weighted), nullptr, norms_.data()});
    list.n_static = n(w.first);
    list.q_norm = 2.5f;
    list.q_center = 0.25f;
  }

  mutable std::atomic<int> countdown{-1};  // calls until one throws

 private:
  bool groups_;
  std::vector<Wanted> wanted_;
  std::vector<float> norms_, log_u_;
};

struct Case {
  Case(DType dtype, int d, int n_rows)
      : geometry{.n_layers = 1,
                 .n_heads = kHeads,
                 .n_kv_heads = kKvHeads,
                 .head_dim = d,
                 .dtype = dtype},
        spec{.n_layers = 1,
             .n_kv_heads = kKvHeads,
             .head_dim = d,
             .dtype = dtype,
             .n_pages = kTokens / kPageTokens + 2,
             .max_slots = 1,
             .max_pages = kTokens / kPageTokens + 2},
        store_arena(plan()),
        store(spec, store_arena) {
    const int slot = store.acquire();
    store.reserve(slot, kTokens + n_rows);
    store.set_length(slot, kTokens);
    PhiloxStream draw(9);
    for (const Tensor& pool : {store.k(0), store.v(0)}) fill(pool, draw);
    q_bytes.resize(static_cast<size_t>(n_rows * kHeads * d) * dtype_bytes(dtype));
    q = Tensor(q_bytes.data(), dtype, {n_rows, kHeads, d});
    fill(q, draw);
    step.n_seqs = 1;
    step.n_rows = n_rows;
    step.row_begin = {0, n_rows};
    step.slot = {slot};
    step.base = {kTokens};
    for (int i = 0; i < n_rows; ++i) step.pos.push_back(kTokens + i);
  }
  MemoryPlan plan() const {
    MemoryPlan p;
    kv::PagedStore::plan(spec, p);
    return p;
  }
  static void fill(const Tensor& t, PhiloxStream& draw) {
    for (int64_t i = 0; i < t.elements(); ++i) {
      const auto x = static_cast<float>(2 * draw.uniform() - 1);
      if (t.dtype() == DType::f32)
        t.as<float>()[i] = x;
      else
        t.as<bf16>()[i] = to_bf16(x);
    }
  }

  struct Result {
    std::vector<float> o, lse;
    kv::KeyUsage usage;
  };
  Result run(kv::ListAttention& lists, const Lists& selector) const {
    const auto n = static_cast<size_t>(step.n_rows * kHeads);
    Result r{std::vector<float>(n * static_cast<size_t>(geometry.head_dim), NAN),
             std::vector<float>(n, NAN),
             {}};
    lists.run({.selector = selector,
               .layer = 0,
               .step = step,
               .store = store,
               .q = q,
               .o = r.o.data(),
               .lse = r.lse.data()},
              r.usage);
    return r;
  }
  /// Whole lists, one after the other.
  Result reference(const Lists& selector) const {
    const auto d = static_cast<size_t>(geometry.head_dim);
    Result r;
    r.o.resize(static_cast<size_t>(step.n_rows * kHeads) * d);
    r.lse.resize(static_cast<size_t>(step.n_rows * kHeads));
    for (int row = 0; row < step.n_rows; ++row)
      for (int head = 0; head < kHeads; ++head) {
        KeyList list;
        selector.fill(row, head, list);
        const auto at = static_cast<size_t>(row * kHeads + head);
        attend_list_ref({.o = r.o.data() + at * d,
                         .lse = r.lse.data() + at,
                         .q = q_bytes.data() + at * d * dtype_bytes(geometry.dtype),
                         .k_pool = store.k(0).raw(),
                         .v_pool = store.v(0).raw(),
                         .pages = store.pages(0).data(),
                         .segments = list.segments.data(),
                         .n_segments = static_cast<int>(list.segments.size()),
                         .n_kv_heads = kKvHeads,
                         .kv_head = head / geometry.group(),
                         .d = geometry.head_dim,
                         .dtype = geometry.dtype,
                         .scale = 1.0f / std::sqrt(static_cast<float>(d)),
                         .log_u = selector.log_u().data(),
                         .log_u_intervals = kIntervals,
                         .q_norm = list.q_norm,
                         .q_center = list.q_center});
      }
    return r;
  }

  kv::Geometry geometry;
  kv::PagedStore::Spec spec;
  Arena store_arena;
  kv::PagedStore store;
  std::vector<std::byte> q_bytes;
  Tensor q;
  kv::Step step;
};

/// ListAttention for a number of threads.
struct Runner {
  Runner(const Case& c, const Lists& selector, int n) {
    set_threads(n);
    MemoryPlan plan;
    const kv::ListAttention::Spec spec{
        .geometry = c.geometry, .scratch_bytes = selector.scratch_bytes(), .drafted = {}};
    kv::ListAttention::plan(spec, plan);
    arena.emplace(std::move(plan));
    lists.emplace(spec, *arena);
  }
  ~Runner() { set_threads(before); }
  int before = max_threads();
  std::optional<Arena> arena;
  std::optional<kv::ListAttention> lists;
};

}  // namespace

TEST_SUITE("kv/list_attention") {
  TEST_CASE("results are the reference's, and the same bits on any number of threads") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {32, 72})
        for (const bool groups : {false, true}) {
          CAPTURE(d);
          CAPTURE(groups);
          CAPTURE(dtype == DType::f32);
          const Case c(dtype, d, 4);
          const Lists selector(4, groups);
          const Case::Result want = c.reference(selector);
          std::optional<Case::Result> first;
          for (const int threads : {1, 2, 3, 7}) {
            CAPTURE(threads);
            Runner runner(c, selector, threads);
            for (int again = 0; again < 3; ++again) {
              const Case::Result got = c.run(*runner.lists, selector);
              if (!first) first = got;
              CHECK(got.o == first->o);
              CHECK(got.lse == first->lse);
              CHECK(got.usage.selected == first->usage.selected);
              CHECK(got.usage.fixed == first->usage.fixed);
              CHECK(got.usage.key_bytes == first->usage.key_bytes);
            }
          }
          double worst = 0, worst_lse = 0;
          for (size_t i = 0; i < want.o.size(); ++i)
            worst = std::max(worst, std::abs(double{first->o[i]} - want.o[i]));
          for (size_t i = 0; i < want.lse.size(); ++i)
            if (first->lse[i] != want.lse[i])  // both -inf
              worst_lse = std::max(worst_lse, std::abs(double{first->lse[i]} - want.lse[i]));
          CHECK(worst <= (dtype == DType::f32 ? 1e-5 : 4e-3));  // values are within 1
          CHECK(worst_lse <= 3e-5);
        }
  }

  TEST_CASE("a step of one row, with one KV head's lists the longest, and one without rows") {
    const Case c(DType::f32, 32, 1);
    const Lists selector(1, true);
    const Case::Result want = c.reference(selector);
    Runner runner(c, selector, 4);
    const Case::Result got = c.run(*runner.lists, selector);
    double worst = 0;
    for (size_t i = 0; i < want.o.size(); ++i)
      worst = std::max(worst, std::abs(double{got.o[i]} - want.o[i]));
    CHECK(worst <= 1e-5);
    Case none(DType::f32, 32, 1);
    none.step.n_rows = 0;
    none.step.row_begin = {0, 0};
    CHECK(none.run(*runner.lists, selector).o.empty());
  }

  TEST_CASE("an error of a thread comes out once all are done, and the next call is as any other") {
    const Case c(DType::f32, 32, 4);
    const Lists selector(4, false);
    for (const int threads : {1, 2, 7}) {
      CAPTURE(threads);
      Runner runner(c, selector, threads);
      const Case::Result want = c.run(*runner.lists, selector);
      for (const int calls : {0, 1, 5}) {
        selector.countdown = calls;
        CHECK_THROWS_WITH_AS(c.run(*runner.lists, selector), "no lists", std::runtime_error);
        selector.countdown = -1;
        const Case::Result got = c.run(*runner.lists, selector);
        CHECK(got.o == want.o);
        CHECK(got.usage.selected == want.usage.selected);
      }
    }
  }

  TEST_CASE("blocks hold every key of a list once, in its order") {
    std::vector<int32_t> ids(20000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(2 * i);
    const std::vector<float> bias(ids.size(), 1.0f), norms(40000);
    std::vector<KeySegment> block;
    for (const int n : {0, 1, 383, 384, 385, 769, 5000, 12288, 12289, 20000}) {
      CAPTURE(n);
      const int third = n / 3;
      const std::vector<KeySegment> list = {
          {ids.data(), third, nullptr, nullptr},
          {nullptr, 0, nullptr, nullptr},
          {ids.data() + third, third, bias.data() + third, nullptr},
          {ids.data() + 2 * third, n - 2 * third, nullptr, norms.data()}};
      const int n_blocks = kv::n_list_blocks(n);
      REQUIRE(n_blocks >= 1);
      REQUIRE(n_blocks <= kv::kMostListBlocks);
      int at = 0, wrong = 0;
      for (int i = 0; i < n_blocks; ++i) {
        kv::cut_block(list, n_blocks, i, block);
        for (const KeySegment& s : block) {
          REQUIRE(s.n > 0);
          for (int k = 0; k < s.n; ++k, ++at) {
            wrong += s.ids[k] != ids[static_cast<size_t>(at)] ? 1 : 0;
            const bool biased = at >= third && at < 2 * third, weighted = at >= 2 * third;
            wrong += (s.bias == nullptr ? !biased : s.bias + k == bias.data() + at) ? 0 : 1;
            wrong += (s.norms == norms.data()) != weighted ? 1 : 0;
          }
        }
      }
      CHECK(at == n);
      CHECK(wrong == 0);
    }
  }

  TEST_CASE("states join as one softmax; those without keys are left out") {
    const float inf = std::numeric_limits<float>::infinity();
    const float o[] = {1, 2, NAN, NAN, 5, -4}, lse[] = {std::log(3.0f), -inf, 0};
    float joined[2], joined_lse;
    kv::join_states(joined, &joined_lse, o, lse, 3, 2);
    CHECK(joined[0] == doctest::Approx((3 * 1 + 5) / 4.0));
    CHECK(joined[1] == doctest::Approx((3 * 2 - 4) / 4.0));
    CHECK(joined_lse == doctest::Approx(std::log(4.0)));
    kv::join_states(joined, &joined_lse, o + 2, lse + 1, 1, 2);
    CHECK(joined[0] == 0);
    CHECK(joined_lse == -inf);
    kv::join_states(joined, &joined_lse, o, lse, 1, 2);  // one is itself, to the bit
    CHECK(joined[1] == 2);
    CHECK(joined_lse == lse[0]);
  }
}
