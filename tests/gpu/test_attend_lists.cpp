// Attention over lists of rows and heads against the reference, list by list.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "gpu/device_buffer.h"
#include "kernels/gather/attend_list.h"
#include "kernels/gather/attend_lists.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kPage = 64, kSlots = 3, kPagesEach = 24, kTokens = kPage * kPagesEach;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kPlain = 2, kIntervals = 64;  // first keys of a list that hashes do not weigh
constexpr float kCenter = 0.4f;

struct Shape {
  DType dtype;
  int d, n_heads, n_kv_heads, heads;  // heads of a list
  int most;
  enum { none, bias, hashes } weights;
};

/// Lists of a ragged step of three sequences, the second without rows, over scattered pages.
struct Case {
  Shape s;
  std::vector<int32_t> slot = {2, 0, 1}, row_begin = {0, 5, 5, 9};
  int n_rows = 12;  // the last ones belong to no sequence
  ActBuffer q, k, v;
  std::vector<int32_t> pages, ids, count;
  std::vector<float> bias, norms, key_norms, queries, log_u;  // key_norms of all tokens
  int stride;

  explicit Case(const Shape& shape)
      : s(shape),
        q(s.dtype, static_cast<size_t>(n_rows * s.n_heads * s.d)),
        k(s.dtype, static_cast<size_t>(kSlots * kTokens * s.n_kv_heads * s.d)),
        v(s.dtype, k.size()),
        stride(s.most + 3) {
    PhiloxStream stream(5, static_cast<uint32_t>(s.d));
    fill(q, stream, 2.0f);
    fill(k, stream, 1.5f);
    fill(v, stream, 1.0f);
    for (int i = 0; i < kSlots * kPagesEach; ++i)
      pages.push_back((i * 5 + 1) % (kSlots * kPagesEach));
    const int lists = n_rows * n_lists_a_row();
    ids.assign(static_cast<size_t>(lists * stride), -1);
    bias.assign(ids.size(), NAN);
    norms.assign(ids.size(), NAN);
    for (int t = 0; t < kTokens; ++t)
      key_norms.push_back(t % 50 == 7 ? 0.0f : 5 + random_float(stream, 4.0f));
    for (int i = 0; i <= kIntervals; ++i)
      log_u.push_back(-6.0f * std::pow(1 - static_cast<float>(i) / kIntervals, 2.0f));
    const int counts[] = {0, 1, s.most, s.most / 2, 7, s.most - 1};
    for (int list = 0; list < lists; ++list) {
      // Those of padded rows must not be looked at.
      const bool padded = list / n_lists_a_row() >= row_begin.back();
      count.push_back(padded ? 1 << 30 : std::max(0, counts[list * 7 % 6]));
      for (int i = 0; !padded && i < count.back(); ++i) {
        const auto at = static_cast<size_t>(list * stride + i);
        ids[at] = static_cast<int32_t>(stream.below(kTokens));
        bias[at] = i == 3 ? -kInf : random_float(stream, 4.0f);
        norms[at] = i < kPlain ? -1 : key_norms[static_cast<size_t>(ids[at])];
      }
      queries.push_back(6 + random_float(stream, 3.0f));
      queries.push_back(kCenter);
    }
  }
  int n_lists_a_row() const { return s.n_heads / s.heads; }
  int slot_of(int row) const { return slot[row < row_begin[1] ? 0 : 2]; }
};

struct States {
  std::vector<float> o, lse;  // of each row and head
};

/// What merge_states makes of the parts.
States merged(const Case& c, const std::vector<float>& o, const std::vector<float>& lse) {
  const int parts = attend_lists_parts(c.s.most, false), cells = c.n_rows * c.s.n_heads;
  const auto d = static_cast<size_t>(c.s.d);
  States r;
  for (int i = 0; i < cells; ++i) {
    double top = -kInf, sum = 0;
    std::vector<double> mean(d);
    const auto at = [&](int part) { return static_cast<size_t>(part * cells + i); };
    for (int part = 0; part < parts; ++part) top = std::max(top, double{lse[at(part)]});
    for (int part = 0; part < parts && top > -kInf; ++part) {
      const double weight = std::exp(lse[at(part)] - top);
      sum += weight;
      for (size_t e = 0; e < d; ++e) mean[e] += weight * o[at(part) * d + e];
    }
    for (const double x : mean) r.o.push_back(static_cast<float>(sum > 0 ? x / sum : 0));
    r.lse.push_back(static_cast<float>(sum > 0 ? top + std::log(sum) : -kInf));
  }
  return r;
}

/// rows_at_a_time    0: all in one call
States on_gpu(Case& c, int rows_at_a_time) {
  const int parts = attend_lists_parts(c.s.most, false), cells = c.n_rows * c.s.n_heads;
  const DeviceBuffer o(static_cast<size_t>(parts * cells * c.s.d) * sizeof(float)),
      lse(static_cast<size_t>(parts * cells) * sizeof(float)),
      q = on_device(c.q), k = on_device(c.k), v = on_device(c.v), pages(c.pages), slot(c.slot),
      begin(c.row_begin), ids(c.ids), count(c.count), bias(c.bias), norms(c.norms),
      queries(c.queries), log_u(c.log_u);
  const int step = rows_at_a_time > 0 ? rows_at_a_time : c.n_rows;
  for (int first = 0; first < c.n_rows; first += step) {
    const int64_t list = int64_t{first} * c.n_lists_a_row();
    const AttendListsParams p{
        .o = o.as<float>(),
        .lse = lse.as<float>(),
        .q = q.raw(),
        .k_pool = k.raw(),
        .v_pool = v.raw(),
        .page_table = pages.as<int32_t>(),
        .slot = slot.as<int32_t>(),
        .row_begin = begin.as<int32_t>(),
        .n_rows = c.n_rows,
        .n_seqs = 3,
        .max_pages = kPagesEach,
        .n_heads = c.s.n_heads,
        .n_kv_heads = c.s.n_kv_heads,
        .d = c.s.d,
        .dtype = c.s.dtype,
        .scale = 0.2f,
        .rows = {first, std::min(first + step, c.n_rows)},
        .lists = {.ids = ids.as<int32_t>() + list * c.stride,
                  .bias = c.s.weights == Shape::bias ? bias.as<float>() + list * c.stride : nullptr,
                  .count = count.as<int32_t>() + list,
                  .stride = c.stride,
                  .most = c.s.most,
                  .heads = c.s.heads,
                  .weights = c.s.weights != Shape::hashes
                                 ? CollisionWeights{}
                                 : CollisionWeights{.norms = norms.as<float>() + list * c.stride,
                                                    .queries = queries.as<float>() + 2 * list,
                                                    .log_u = log_u.as<float>(),
                                                    .log_u_intervals = kIntervals}},
        .tails = {}};
    cuda_table().attend_lists(p, queue().stream());
    cuda::launched("attend_lists", queue().stream());
  }
  return merged(c, o.vector<float>(), lse.vector<float>());
}

States on_cpu(Case& c) {
  const auto d = static_cast<size_t>(c.s.d), bytes = dtype_bytes(c.s.dtype);
  States r;
  for (int row = 0; row < c.n_rows; ++row)
    for (int head = 0; head < c.s.n_heads; ++head) {
      const int list = row * c.n_lists_a_row() + head / c.s.heads;
      const bool padded = row >= c.row_begin.back();
      const auto at = static_cast<size_t>(list * c.stride);
      const int n = padded ? 0 : c.count[static_cast<size_t>(list)];
      const bool hashes = c.s.weights == Shape::hashes;
      const int plain = hashes ? std::min(n, kPlain) : n;
      const KeySegment segments[] = {{.ids = &c.ids[at],
                                      .n = plain,
                                      .bias = c.s.weights == Shape::bias ? &c.bias[at] : nullptr,
                                      .norms = nullptr},
                                     {.ids = &c.ids[at] + plain,
                                      .n = n - plain,
                                      .bias = nullptr,
                                      .norms = c.key_norms.data()}};
      std::vector<float> o(d);
      float lse = 0;
      const auto cell = static_cast<size_t>(row * c.s.n_heads + head);
      attend_list_ref(
          {.o = o.data(),
           .lse = &lse,
           .q = static_cast<const char*>(c.q.data()) + cell * d * bytes,
           .k_pool = c.k.data(),
           .v_pool = c.v.data(),
           .pages = &c.pages[padded ? 0 : static_cast<size_t>(c.slot_of(row) * kPagesEach)],
           .segments = segments,
           .n_segments = 2,
           .n_kv_heads = c.s.n_kv_heads,
           .kv_head = head / (c.s.n_heads / c.s.n_kv_heads),
           .d = c.s.d,
           .dtype = c.s.dtype,
           .scale = 0.2f,
           .log_u = c.log_u.data(),
           .log_u_intervals = kIntervals,
           .q_norm = c.queries[2 * static_cast<size_t>(list)],
           .q_center = kCenter});
      r.o.insert(r.o.end(), o.begin(), o.end());
      r.lse.push_back(lse);
    }
  return r;
}

void check(const Shape& shape) {
  CAPTURE(dtype_name(shape.dtype));
  CAPTURE(shape.d);
  CAPTURE(shape.n_heads);
  CAPTURE(shape.n_kv_heads);
  CAPTURE(shape.heads);
  CAPTURE(shape.most);
  CAPTURE(static_cast<int>(shape.weights));
  Case c(shape);
  const States want = on_cpu(c), got = on_gpu(c, 0);
  double worst = 0, worst_lse = 0;
  for (size_t i = 0; i < want.o.size(); ++i)
    worst = worse(worst, std::abs(double{got.o[i]} - want.o[i]));
  for (size_t i = 0; i < want.lse.size(); ++i)
    if (got.lse[i] != want.lse[i])  // both may be -inf
      worst_lse = worse(worst_lse, std::abs(double{got.lse[i]} - want.lse[i]));
  CHECK(worst <= 2e-5);
  CHECK(worst_lse <= 3e-5);
  // A list's bits do not depend on which others are with it.
  const States again = on_gpu(c, 5);
  CHECK(again.o == got.o);
  CHECK(again.lse == got.lse);
}

}  // namespace

TEST_SUITE("gpu/kernels/attend_lists") {
  TEST_CASE("states are the reference's: types, widths and groups") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {32, 64, 96, 128, 256})
        for (const auto& [n_heads, n_kv_heads, heads] :
             {std::tuple{4, 2, 1}, {6, 2, 3}, {3, 3, 1}, {8, 1, 1}, {8, 2, 4}, {9, 1, 9}})
          for (const auto weights : {Shape::none, Shape::bias, Shape::hashes})
            if (heads == 1 || weights != Shape::hashes)
              check({dtype, d, n_heads, n_kv_heads, heads, 70, weights});
  }
  TEST_CASE("small: lists of each head, weighted") {
    check({DType::bf16, 64, 4, 2, 1, 300, Shape::hashes});
  }
  TEST_CASE("lists longer than a part, and shorter than a block reads at once") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int most : {1, 8, 256, 257, 700, 16000})
        for (const int heads : {1, 2}) check({dtype, 64, 4, 2, heads, most, Shape::bias});
  }
}
