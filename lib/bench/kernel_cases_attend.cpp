// Attention over lists of keys: random rows of pools far beyond the caches.
#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "base/rng.h"
#include "bench/kernel_data.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu_table.h"
#include "kv/log_u.h"

namespace tandem::bench {
namespace {

constexpr int kQueries = 8;  // of a run, each on another head of the caches
constexpr int kBits = 10, kTables = 150, kIntervals = 1024;
constexpr double kShare = 0.02;               // of the keys, as MagicPIG has it for these tables
constexpr double kPools = 2.0 * (1 << 30);    // bytes of K and V; a last-level cache may have 0.5
constexpr auto kLine = 64.0 / sizeof(float);  // norms of a cache line

struct ListShape {
  int n, n_kv_heads, d;
  DType act;
  bool weighted;

  int n_pages() const { return (n + kPageTokens - 1) / kPageTokens; }
  double row_bytes() const { return static_cast<double>(dtype_bytes(act)) * d; }
  double copy_bytes() const { return 2.0 * n_pages() * kPageTokens * n_kv_heads * row_bytes(); }
  int copies() const {
    const double heads =
        std::max(static_cast<double>(kQueries), n_kv_heads * kPools / copy_bytes());
    return static_cast<int>(std::ceil(heads / n_kv_heads));
  }
  /// Rows, and the cache lines that hold their norms, each counted once.
  double query_bytes() const {
    const double lines = weighted ? n / kLine * (1 - std::pow(1 - kShare, kLine)) : 0;
    return kShare * n * 2 * row_bytes() + lines * 64;
  }
  /// Lists come again when as much has been read in between as there is.
  int lists() const { return kQueries * static_cast<int>(1 + kPools / (kQueries * query_bytes())); }
};

struct ListData {
  ListShape s;
  std::vector<OwnedTensor> k, v, norms;  // of each copy; norms: [n_kv_heads, n]
  OwnedTensor q, o;
  std::vector<int32_t> pages;
  std::vector<std::vector<int32_t>> lists;
  std::vector<float> log_u, lse;
  float q_norm = 0;
  int turn = 0;

  explicit ListData(const ListShape& shape)
      : s(shape),
        q(OwnedTensor::random(s.act, {s.d}, 0, 4)),  // weighs few keys, so that errors show
        o(DType::f32, {kQueries, s.d}),
        pages(static_cast<size_t>(s.n_pages())),
        lists(static_cast<size_t>(s.lists())),
        log_u(kv::log_u_table(kBits, kTables, 2, 1e-4, kIntervals)),
        lse(kQueries) {
    for (int c = 0; c < s.copies(); ++c) {
      const auto id = static_cast<uint32_t>(3 * c + 1);
      for (auto* pool : {&k, &v})
        pool->push_back(OwnedTensor::random(s.act, {s.n_pages(), s.n_kv_heads, kPageTokens, s.d},
                                            id + (pool == &v ? 1 : 0)));
      norms.push_back(OwnedTensor::random(DType::f32, {s.n_kv_heads, s.n}, id + 2));
      // Near sqrt(d), as the norms of the keys are.
      for (int64_t i = 0; i < norms.back().view().elements(); ++i) {
        float& norm = norms.back().as<float>()[i];
        norm = std::sqrt(static_cast<float>(s.d)) * (1 + 0.05f * norm);
      }
    }
    double sum = 0;
    for (int c = 0; c < s.d; ++c) sum += std::pow(q.get(c), 2);
    q_norm = static_cast<float>(std::sqrt(sum));
    draw();
  }

  void draw() {
    PhiloxStream stream(11);
    for (size_t i = 0; i < pages.size(); ++i) {
      const size_t j = stream.below(static_cast<uint32_t>(i) + 1);
      pages[i] = pages[j];
      pages[j] = static_cast<int32_t>(i);
    }
    // Gaps of a coin that falls for every token: geometric.
    for (std::vector<int32_t>& list : lists) {
      for (double t = -1;;) {
        t += 1 + std::floor(std::log(1 - stream.uniform()) / std::log(1 - kShare));
        if (t >= s.n) break;
        list.push_back(static_cast<int32_t>(t));
      }
    }
  }
  int copy_of(int number) const { return number / s.n_kv_heads % s.copies(); }
  int head_of(int number) const { return number % s.n_kv_heads; }
  const std::vector<int32_t>& list_of(int number) const {
    return lists[static_cast<size_t>(number) % lists.size()];
  }
  const float* norms_of(int number) const {
    return norms[static_cast<size_t>(copy_of(number))].as<float>() + int64_t{head_of(number)} * s.n;
  }

  /// Query `i` of a run; `number` counts the queries of all runs.
  void attend(AttendListFn* fn, int number, float* out, float* out_lse) const {
    const KeySegment segment{.ids = list_of(number).data(),
                             .n = static_cast<int>(list_of(number).size()),
                             .bias = nullptr,
                             .norms = s.weighted ? norms_of(number) : nullptr};
    const auto copy = static_cast<size_t>(copy_of(number));
    fn({.o = out,
        .lse = out_lse,
        .q = q.raw(),
        .k_pool = k[copy].raw(),
        .v_pool = v[copy].raw(),
        .pages = pages.data(),
        .segments = &segment,
        .n_segments = 1,
        .n_kv_heads = s.n_kv_heads,
        .kv_head = head_of(number),
        .d = s.d,
        .dtype = s.act,
        .scale = 1 / std::sqrt(static_cast<float>(s.d)),
        .log_u = log_u.data(),
        .log_u_intervals = kIntervals,
        .q_norm = q_norm,
        .q_center = 0});
  }
  void run() {
    parallel_for(kQueries, [&](int i) {
      attend(cpu_table().attend_list, turn * kQueries + i, o.as<float>() + int64_t{i} * s.d,
             &lse[static_cast<size_t>(i)]);
    });
    ++turn;
  }
  std::string mismatch() const {
    const OwnedTensor want(DType::f32, {kQueries, s.d});
    for (int i = 0; i < kQueries; ++i) {
      float want_lse = 0;
      attend(attend_list_ref, (turn - 1) * kQueries + i, want.as<float>() + int64_t{i} * s.d,
             &want_lse);
      if (const float got = lse[static_cast<size_t>(i)]; !(std::abs(got - want_lse) <= 1e-4f))
        return fmt::format("lse of query {} is {}, the reference gives {}", i, got, want_lse);
    }
    // Values are within sqrt(3).
    return find_mismatch(o, want, 0, std::sqrt(3.0) * (s.act == DType::bf16 ? 4e-3 : 1e-5));
  }
};

KernelCase attend_case(const ListShape& s) {
  const double ids = kShare * s.n;
  return {.family = "attend",
          .name = s.weighted ? "attend_list, LSH weights" : "attend_list",
          .shape = fmt::format("{} x {:.0f} of {} keys x {}", kQueries, ids, s.n, s.d),
          .dtype = s.act,
          .work = {.bytes = kQueries * s.query_bytes(), .flops = kQueries * ids * 4 * s.d},
          .memory_bytes = static_cast<size_t>(
              s.copies() * (s.copy_bytes() + 4.0 * s.n * s.n_kv_heads) + s.lists() * ids * 4),
          .rotates = true,
          .prepare = [=]() -> PreparedCase {
            const auto data = std::make_shared<ListData>(s);
            return {.run = [=] { data->run(); }, .mismatch = [=] { return data->mismatch(); }};
          }};
}

}  // namespace

KernelCases attend_cases(const KernelShapes& s) {
  ListShape shape{.n = static_cast<int>(s.context),
                  .n_kv_heads = s.n_kv_heads,
                  .d = s.head_dim,
                  .act = s.act(),
                  .weighted = true};
  KernelCases cases = {attend_case(shape)};
  shape.weighted = false;
  cases.push_back(attend_case(shape));
  return cases;
}

}  // namespace tandem::bench
