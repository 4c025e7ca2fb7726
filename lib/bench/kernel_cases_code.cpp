// Ranking keys by their codes: one layer's scans, the refinement of the best, and the selection
// that follows for each head.
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "base/parallel.h"
#include "base/rng.h"
#include "bench/kernel_data.h"
#include "kernels/cpu_table.h"

namespace tandem::bench {
namespace {

struct ScanShape {
  int n, dims, bits, kv_heads, group;  // keys of a KV head, ..., query heads of a KV head
  int64_t groups() const { return (n + kCodeKeys - 1) / kCodeKeys; }
  int64_t padded() const { return groups() * kCodeKeys; }
  int64_t group_bytes() const { return groups() * code_group_bytes(dims); }
  int64_t low_bytes() const { return n * code_low_bytes(dims, bits); }
  size_t head_bytes() const { return static_cast<size_t>(group_bytes() + low_bytes()); }
  /// KV heads in memory: layers that together exceed any cache.
  int heads() const {
    constexpr size_t kBeyondCaches = size_t{1} << 30;
    const size_t layer = head_bytes() * static_cast<size_t>(kv_heads);
    return kv_heads * static_cast<int>(1 + kBeyondCaches / layer);
  }
};

/// Random codes of all heads, the same in each, and the scores of one layer.
struct Scans {
  ScanShape shape;
  int heads;
  OwnedTensor groups, low;    // [heads, bytes]
  OwnedTensor scores, want;   // [kv_heads, group * padded n], [1, ...]
  OwnedTensor keys, refined;  // [candidates]
  std::vector<uint8_t> sums;
  std::vector<int8_t> q;
  std::vector<CodeQuery> queries;
  int turn = 0;

  Scans(const ScanShape& s, int heads_, int n_candidates)
      : shape(s),
        heads(heads_),
        groups(DType::u8, {heads, s.group_bytes()}),
        low(DType::u8, {heads, s.low_bytes()}),
        scores(DType::f32, {s.kv_heads, s.group * s.padded()}),
        want(DType::f32, {1, s.group * s.padded()}),
        keys(DType::i32, {n_candidates}),
        refined(DType::f32, {s.kv_heads, n_candidates}),
        sums(static_cast<size_t>(s.group * s.dims * 4)),
        q(static_cast<size_t>(s.group * s.dims)) {
    PhiloxStream stream(1);
    for (const OwnedTensor* codes : {&groups, &low}) {
      const auto bytes = static_cast<size_t>(codes->view().row_size());
      auto* first = static_cast<uint8_t*>(codes->raw());
      for (size_t i = 0; i < bytes; ++i) first[i] = static_cast<uint8_t>(stream.next());
      for (int64_t h = 1; h < heads; ++h)
        std::memcpy(first + static_cast<size_t>(h) * bytes, first, bytes);
    }
    std::vector<float> query(static_cast<size_t>(s.dims));
    for (int j = 0; j < s.group; ++j) {
      for (float& x : query) x = static_cast<float>(stream.uniform() - 0.5);
      queries.push_back(code_query(query.data(), 1, 0.125f, {1, 1}, s.dims, s.bits,
                                   sums.data() + j * s.dims * 4, q.data() + j * s.dims));
    }
    for (int i = 0; i < n_candidates; ++i)
      keys.as<int32_t>()[i] = static_cast<int32_t>(int64_t{i} * s.n / n_candidates);
  }

  void scan(CodeScanFn* fn, int64_t head, float* to) const {
    fn({.scores = to,
        .score_stride = shape.padded(),
        .groups = groups.as<uint8_t>() + head * shape.group_bytes(),
        .queries = queries.data(),
        .n_queries = shape.group,
        .dims = shape.dims},
       {0, shape.n});
  }
  /// Of all query heads of a KV head.
  void refine(CodeRefineFn* fn, int64_t head, float* of, float* to) const {
    for (int j = 0; j < shape.group; ++j)
      fn({.refined = to,
          .scores = of + j * shape.padded(),
          .keys = keys.as<int32_t>(),
          .n = static_cast<int>(keys.view().elements()),
          .first = 0,
          .groups = groups.as<uint8_t>() + head * shape.group_bytes(),
          .low = low.as<uint8_t>() + head * shape.low_bytes(),
          .query = &queries[static_cast<size_t>(j)],
          .dims = shape.dims,
          .bits = shape.bits});
  }
  /// One layer; the next run takes the next. A thread writes all its heads' scores to one place, as
  /// the policy that ranks by them does.
  void run(bool refines) {
    const int layer = turn++ * shape.kv_heads % heads;
    parallel_ranges(shape.kv_heads, 1, [&](int begin, int end) {
      for (int h = begin; h < end; ++h) {
        float* to = scores.as<float>() + begin * scores.view().row_size();
        if (refines)
          refine(cpu_table().code_refine, layer + h, to,
                 refined.as<float>() + begin * refined.view().row_size());
        else
          scan(cpu_table().code_scan, layer + h, to);
      }
    });
  }
  std::string mismatch(bool refines) {
    scan(cpu_table().code_scan, 0, scores.as<float>());
    scan(code_scan_ref, 0, want.as<float>());
    if (refines) {
      refine(cpu_table().code_refine, 0, scores.as<float>(), refined.as<float>());
      refine(code_refine_ref, 0, want.as<float>(), refined.as<float>());
    }
    for (int64_t j = 0; j < shape.group; ++j)
      for (int64_t i = 0; i < shape.n; ++i) {
        const int64_t at = j * shape.padded() + i;
        if (scores.get(at) != want.get(at))
          return fmt::format("query {}, key {} has score {}, the reference gives {}", j, i,
                             scores.get(at), want.get(at));
      }
    return {};
  }
};

/// refined   share of the keys whose score is refined; 0: all are scanned by signs
KernelCase score_case(const ScanShape& s, double refined) {
  const int candidates = static_cast<int>(refined * s.n);
  const double scanned = static_cast<double>(s.group_bytes());
  const double bytes = refined > 0 ? static_cast<double>(candidates) * s.group *
                                         static_cast<double>(code_low_bytes(s.dims, s.bits) + 2)
                                   : scanned;
  return {.family = "code",
          .name = refined > 0 ? "refine" : "scan",
          .shape = fmt::format("{} heads x {} keys of {}, {} bits, {} queries", s.kv_heads,
                               refined > 0 ? candidates : s.n, s.dims, s.bits, s.group),
          .dtype = DType::f32,
          .work = {.bytes = bytes * s.kv_heads},
          .memory_bytes = s.head_bytes() * static_cast<size_t>(s.heads()),
          .rotates = true,
          .prepare = [=]() -> PreparedCase {
            const auto scans = std::make_shared<Scans>(s, s.heads(), std::max(1, candidates));
            scans->scan(cpu_table().code_scan, 0, scans->scores.as<float>());
            return {.run = [=] { scans->run(refined > 0); },
                    .mismatch = [=] { return scans->mismatch(refined > 0); }};
          }};
}

/// The scores of one head, the selection from them, and the same by the standard library.
struct Selection {
  int n, m;
  OwnedTensor scores, scratch, ids, want;
  float threshold = 0;

  Selection(const ScanShape& s, int m_)
      : n(s.n),
        m(m_),
        scores(DType::f32, {1, s.padded()}),
        scratch(DType::f32, {n + 16}),
        ids(DType::i32, {m + 16}),
        want(DType::i32, {m}) {
    ScanShape one = s;
    one.kv_heads = one.group = 1;
    Scans(one, 1, 1).scan(cpu_table().code_scan, 0, scores.as<float>());
  }
  void run() { select(cpu_table().select_top, ids); }
  int select(SelectTopFn* fn, const OwnedTensor& to) {
    return fn({.ids = to.as<int32_t>(),
               .threshold = &threshold,
               .scores = scores.as<float>(),
               .n = n,
               .m = m,
               .first_id = 0,
               .scratch = scratch.as<float>()});
  }
  void run_standard() {
    const auto* x = scores.as<float>();
    auto* order = scratch.as<float>();
    std::copy_n(x, n, order);
    std::nth_element(order, order + m - 1, order + n, std::greater<>());
    const float limit = order[m - 1];
    auto ties = m - std::count_if(x, x + n, [=](float score) { return score > limit; });
    int32_t* to = want.as<int32_t>();
    for (int i = 0; i < n; ++i)
      if (x[i] > limit || (x[i] == limit && ties-- > 0)) *to++ = i;
  }
  std::string mismatch() {
    run_standard();
    return std::equal(ids.as<int32_t>(), ids.as<int32_t>() + m, want.as<int32_t>())
               ? ""
               : "other ids than the reference";
  }
};

KernelCase select_case(const ScanShape& s, int m) {
  return {.family = "code",
          .name = "select_top",
          .shape = fmt::format("{} of {}", m, s.n),
          .dtype = DType::f32,
          .work = {.bytes = 4.0 * s.n},
          .memory_bytes = 12 * static_cast<size_t>(s.n) + 4 * static_cast<size_t>(m),
          .baseline_name = "std::nth_element",
          .prepare = [=]() -> PreparedCase {
            const auto selection = std::make_shared<Selection>(s, m);
            return {.run = [=] { selection->run(); },
                    .mismatch = [=] { return selection->mismatch(); },
                    .baseline = [=] { selection->run_standard(); }};
          }};
}

}  // namespace

KernelCases code_cases(const KernelShapes& s) {
  const int n = static_cast<int>(s.context);
  const ScanShape shape{.n = n,
                        .dims = (s.head_dim + kCodeDims - 1) / kCodeDims * kCodeDims,
                        .bits = 3,
                        .kv_heads = s.n_kv_heads,
                        .group = s.n_heads / s.n_kv_heads};
  return {score_case(shape, 0), score_case(shape, 0.05), select_case(shape, std::max(1, n / 50))};
}

}  // namespace tandem::bench
