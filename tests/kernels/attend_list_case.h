#pragma once
#include "kernels/gather/attend_list.h"
#include "kernels/page/eight_bit_rows.h"
#include "kernels/variants.h"

namespace tandem::test {

inline AttendListFn* attend_list_of(Isa isa) {
  constexpr AttendListFn* kVariants[] = {attend_list_scalar, attend_list_avx2, attend_list_avx512,
                                         attend_list_avx512_bf16, attend_list_avx512_bf16};
  return kVariants[static_cast<size_t>(isa)];
}

struct ListedKeys {
  std::vector<int32_t> ids = {};
  std::vector<float> bias = {}, norms = {};  // of the ids; of all tokens
};

/// One query over a sequence in scattered pages. What lies outside the sequence and the KV head is
/// NaN, so that a read of it shows.
struct ListCase {
  static constexpr int kHeads = 3, kHead = 1, kPage = 64, kIntervals = 256;
  int n, d;
  DType dtype;
  ActBuffer q, k, v;
  std::vector<int32_t> pages;
  std::vector<ListedKeys> lists;
  std::vector<float> log_u;
  PhiloxStream stream;
  float scale, q_center = 0.5f;
  float v_max = 0;
  std::vector<int8_t> k8, v8;  // keys and values in eight bits, where they are
  std::vector<float> scales;

  ListCase(DType type, int tokens, int dim, size_t offset = 0)
      : n(tokens),
        d(dim),
        dtype(type),
        q(type, static_cast<size_t>(dim), offset),
        k(type, pool_size(), offset),
        v(type, pool_size(), offset),
        stream(7, static_cast<uint32_t>(dim)),
        scale(1 / std::sqrt(static_cast<float>(dim))) {
    const int n_pages = (n + kPage - 1) / kPage;
    for (int i = 0; i < n_pages; ++i) pages.push_back((7 * i + 3) % spare_pages());
    for (size_t i = 0; i < k.size(); ++i) {
      k.set(i, NAN);
      v.set(i, NAN);
    }
    fill(q, stream, 2.0f);
    for (int t = 0; t < n; ++t)
      for (int c = 0; c < d; ++c) {
        k.set(at(t, c), random_float(stream, 1.5f));
        v.set(at(t, c), random_float(stream, 1.0f));
        v_max = std::max(v_max, std::abs(v.get(at(t, c))));
      }
    for (int i = 0; i <= kIntervals; ++i)
      log_u.push_back(-6.0f * std::pow(1 - static_cast<float>(i) / kIntervals, 2.0f));
  }
  /// A prime above the number of pages, and 7 does not divide it.
  int spare_pages() const { return n <= 64 * 20 ? 23 : 2003; }
  size_t pool_size() const { return static_cast<size_t>(spare_pages() * kHeads * kPage * d); }
  size_t at(int token, int c) const {
    const int row = (pages[static_cast<size_t>(token / kPage)] * kHeads + kHead) * kPage;
    return static_cast<size_t>((row + token % kPage) * d + c);
  }

  /// The keys and values of the sequence become those of eight bits; others get a scale that is
  /// NaN.
  void make_narrow() {
    k8.resize(k.size());
    v8.resize(v.size());
    scales.resize(k.size() / static_cast<size_t>(d) * 2);
    const auto n_rows = static_cast<int>(k.size()) / d;
    narrow_rows_scalar({k8.data(), scales.data(), k.data(), dtype, n_rows, d, 2}, {0, n_rows});
    narrow_rows_scalar({v8.data(), scales.data() + 1, v.data(), dtype, n_rows, d, 2}, {0, n_rows});
  }
  /// A segment of `count` tokens of the sequence, ascending.
  ListedKeys& add(int count) {
    ListedKeys list;
    for (int t = 0; t < n; ++t)
      if (static_cast<int>(stream.below(static_cast<uint32_t>(n - t))) <
          count - static_cast<int>(list.ids.size()))
        list.ids.push_back(t);
    return lists.emplace_back(std::move(list));
  }
  void add_biased(int count) {
    ListedKeys& list = add(count);
    for (int i = 0; i < count; ++i) list.bias.push_back(random_float(stream, 3.0f) + 3);
  }
  void add_weighted(int count) {
    ListedKeys& list = add(count);
    for (int t = 0; t < n; ++t) {
      double sum = 0;
      for (int c = 0; c < d; ++c) sum += std::pow(k.get(at(t, c)), 2);
      list.norms.push_back(static_cast<float>(std::sqrt(sum)) + random_float(stream, 0.05f));
    }
  }

  struct Result {
    std::vector<float> o;
    float lse;
  };
  Result run(AttendListFn* fn) {
    std::vector<KeySegment> segments;
    for (const ListedKeys& list : lists)
      segments.push_back({.ids = list.ids.data(),
                          .n = static_cast<int>(list.ids.size()),
                          .bias = list.bias.empty() ? nullptr : list.bias.data(),
                          .norms = list.norms.empty() ? nullptr : list.norms.data()});
    double q_norm = 0;
    for (int c = 0; c < d; ++c) q_norm += std::pow(q.get(static_cast<size_t>(c)), 2);
    Result r{std::vector<float>(static_cast<size_t>(d), NAN), NAN};
    fn({.o = r.o.data(),
        .lse = &r.lse,
        .q = q.data(),
        .k_pool = scales.empty() ? k.data() : k8.data(),
        .v_pool = scales.empty() ? v.data() : v8.data(),
        .pages = pages.data(),
        .segments = segments.data(),
        .n_segments = static_cast<int>(segments.size()),
        .n_kv_heads = kHeads,
        .kv_head = kHead,
        .d = d,
        .dtype = dtype,
        .scale = scale,
        .log_u = log_u.data(),
        .log_u_intervals = kIntervals,
        .q_norm = static_cast<float>(std::sqrt(q_norm)),
        .q_center = q_center,
        .scales = scales.empty() ? nullptr : scales.data()});
    return r;
  }
};

/// Empty, or what differs by more than the contract allows.
inline std::string difference(const ListCase& c, const ListCase::Result& got,
                              const ListCase::Result& want) {
  // Of bf16 the products are exact and their sum is f32, so the lse is as near as in f32.
  const bool exact = c.dtype == DType::f32 || !c.scales.empty();
  const double tolerance = (exact ? 1e-5 : 4e-3) * c.v_max;
  for (size_t i = 0; i < want.o.size(); ++i)
    if (!(std::abs(double{got.o[i]} - want.o[i]) <= tolerance))
      return "o[" + std::to_string(i) + "] is " + std::to_string(got.o[i]) +
             ", the reference gives " + std::to_string(want.o[i]);
  const bool both_none = got.lse == want.lse;  // -inf
  if (!both_none && !(std::abs(double{got.lse} - want.lse) <= 2e-5 + 1e-6 * std::abs(want.lse)))
    return "lse is " + std::to_string(got.lse) + ", the reference gives " +
           std::to_string(want.lse);
  return {};
}

}  // namespace tandem::test
