// Ranking keys by their signatures: one layer's scans, and the selection that follows for each
// head.
#include <algorithm>
#include <cstring>
#include <functional>

#include "base/convert.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "bench/kernel_data.h"
#include "kernels/cpu_table.h"

namespace tandem::bench {
namespace {

struct ScanShape {
  int n, bits, kv_heads, group;  // keys of a KV head, bits a key, query heads of a KV head
  int words() const { return bits / 32; }
  int64_t groups() const { return (n + kSignatureGroup - 1) / kSignatureGroup; }
  int64_t signature_words() const { return groups() * kSignatureGroup * words(); }
  size_t head_bytes() const {
    return 4 * static_cast<size_t>(signature_words()) + 2 * static_cast<size_t>(n);
  }
  /// KV heads in memory: layers that together exceed any cache.
  int heads() const {
    constexpr size_t kBeyondCaches = size_t{1} << 30;
    const size_t layer = head_bytes() * static_cast<size_t>(kv_heads);
    return kv_heads * static_cast<int>(1 + kBeyondCaches / layer);
  }
};

/// Signatures and norms of all heads, the same in each, and the scores of one layer.
struct Scans {
  ScanShape shape;
  int heads;
  OwnedTensor signatures;    // [heads, signature_words]
  OwnedTensor norms;         // [heads, n]
  OwnedTensor queries;       // [group, words]
  OwnedTensor scores, want;  // [kv_heads, group * padded n], [1, ...]
  int turn = 0;

  Scans(const ScanShape& s, int heads_)
      : shape(s),
        heads(heads_),
        signatures(DType::i32, {heads, s.signature_words()}),
        norms(DType::bf16, {heads, s.n}),
        queries(DType::i32, {s.group, s.words()}),
        scores(DType::f32, {s.kv_heads, s.group * s.groups() * kSignatureGroup}),
        want(DType::f32, {1, s.group * s.groups() * kSignatureGroup}) {
    PhiloxStream stream(1);
    const auto word = [&] { return static_cast<uint32_t>(stream.uniform() * 0x1p32); };
    std::generate_n(queries.as<uint32_t>(), queries.view().elements(), word);
    std::generate_n(signatures.as<uint32_t>(), s.signature_words(), word);
    for (int i = 0; i < s.n; ++i)
      norms.as<bf16>()[i] = to_bf16(static_cast<float>(6 + 4 * stream.uniform()));
    for (int64_t h = 1; h < heads; ++h) {
      std::memcpy(signatures.as<uint32_t>() + h * s.signature_words(), signatures.raw(),
                  4 * static_cast<size_t>(s.signature_words()));
      std::memcpy(norms.as<bf16>() + h * s.n, norms.raw(), 2 * static_cast<size_t>(s.n));
    }
  }

  void scan(SignatureScanFn* fn, int64_t head, float* to) const {
    fn({.scores = to,
        .score_stride = shape.groups() * kSignatureGroup,
        .signatures = signatures.as<uint32_t>() + head * shape.signature_words(),
        .norms = norms.as<bf16>() + head * shape.n,
        .queries = queries.as<uint32_t>(),
        .words = shape.words(),
        .n_queries = shape.group,
        .n_keys = shape.n,
        .similarity = similarity_curve(shape.bits)},
       {0, shape.n});
  }
  /// One layer; the next run takes the next. A thread writes all its heads' scores to one place, as
  /// the policy that ranks by them does.
  void run() {
    const int layer = turn++ * shape.kv_heads % heads;
    parallel_ranges(shape.kv_heads, 1, [&](int begin, int end) {
      for (int h = begin; h < end; ++h)
        scan(cpu_table().signature_scan, layer + h,
             scores.as<float>() + begin * scores.view().row_size());
    });
  }
  std::string mismatch() {
    scan(signature_scan_ref, 0, want.as<float>());
    for (int64_t q = 0; q < shape.group; ++q)
      for (int64_t i = 0; i < shape.n; ++i) {
        const int64_t at = q * shape.groups() * kSignatureGroup + i;
        if (scores.get(at) != want.get(at))
          return fmt::format("query {}, key {} has score {}, the reference gives {}", q, i,
                             scores.get(at), want.get(at));
      }
    return {};
  }
};

KernelCase scan_case(const ScanShape& s) {
  const auto bytes = static_cast<double>(s.head_bytes());
  return {.family = "signature",
          .name = "scan",
          .shape = fmt::format("{} heads x {} keys, {} bits, {} queries", s.kv_heads, s.n, s.bits,
                               s.group),
          .dtype = DType::f32,
          .work = {.bytes = bytes * s.kv_heads},
          .memory_bytes = s.head_bytes() * static_cast<size_t>(s.heads()),
          .rotates = true,
          .prepare = [=]() -> PreparedCase {
            const auto scans = std::make_shared<Scans>(s, s.heads());
            return {.run = [=] { scans->run(); }, .mismatch = [=] { return scans->mismatch(); }};
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
        scores(DType::f32, {1, s.groups() * kSignatureGroup}),
        scratch(DType::f32, {n + 16}),
        ids(DType::i32, {m + 16}),
        want(DType::i32, {m}) {
    ScanShape one = s;
    one.kv_heads = one.group = 1;
    Scans(one, 1).scan(cpu_table().signature_scan, 0, scores.as<float>());
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
  return {.family = "signature",
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

KernelCases signature_cases(const KernelShapes& s) {
  const int n = static_cast<int>(s.context);
  const ScanShape full{
      .n = n, .bits = 256, .kv_heads = s.n_kv_heads, .group = s.n_heads / s.n_kv_heads};
  ScanShape half = full;
  half.bits = 128;
  return {scan_case(full), scan_case(half), select_case(full, std::max(1, n / 50))};
}

}  // namespace tandem::bench
