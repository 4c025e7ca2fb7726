#include <algorithm>
#include <limits>
#include <string>

#include "kernels/differences.h"
#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr double kF32 = 0x1p-23;

/// Documents whose pages lie in reverse order, slots without a token holding NaN.
struct BackwardCase {
  DType act;
  int hq, hkv, d, window;
  std::vector<int> lengths;
  int n_rows = 0, max_pages = 0;
  std::vector<int32_t> table, slot, row_begin{0};
  ActBuffer q, k, v, dout, out;
  std::vector<float> lse;

  BackwardCase(DType t, int heads, int kv_heads, int dim, int w, std::vector<int> rows)
      : act(t),
        hq(heads),
        hkv(kv_heads),
        d(dim),
        window(w),
        lengths(std::move(rows)),
        q(t, 0),
        k(t, 0),
        v(t, 0),
        dout(t, 0),
        out(t, 0) {
    for (const int n : lengths) {
      n_rows += n;
      row_begin.push_back(n_rows);
      max_pages = std::max(max_pages, (n + kPageTokens - 1) / kPageTokens);
    }
    const auto docs = static_cast<int>(lengths.size());
    for (int s = 0; s < docs; ++s) slot.push_back(docs - 1 - s);
    for (int i = docs * max_pages; i-- > 0;) table.push_back(i);
    const auto queries = static_cast<size_t>(n_rows * hq * d);
    const auto keys = static_cast<size_t>(docs * max_pages * hkv * kPageTokens * d);
    PhiloxStream stream(21, static_cast<uint32_t>(d));
    for (ActBuffer* b : {&q, &dout, &out}) {
      *b = ActBuffer(t, queries, 1);
      fill(*b, stream, 1.0f);
    }
    for (ActBuffer* b : {&k, &v}) {
      *b = ActBuffer(t, keys);
      for (size_t i = 0; i < keys; ++i) b->set(i, std::numeric_limits<float>::quiet_NaN());
    }
    for (int s = 0; s < docs; ++s)
      for (int i = 0; i < lengths[static_cast<size_t>(s)]; ++i)
        for (int h = 0; h < hkv; ++h)
          for (size_t c = 0; c < static_cast<size_t>(d); ++c) {
            k.set(key_at(s, i, h) + c, random_float(stream, 1.0f));
            v.set(key_at(s, i, h) + c, random_float(stream, 1.0f));
          }
    forward();
  }

  size_t key_at(int s, int token, int h) const {
    const int32_t page =
        table[static_cast<size_t>(slot[static_cast<size_t>(s)] * max_pages + token / kPageTokens)];
    return static_cast<size_t>(((page * hkv + h) * kPageTokens + token % kPageTokens) * d);
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(d)); }

  /// Softmax of a row's scores, and their lse.
  Numbers shares(const Numbers& of_q, const Numbers& of_k, int s, int i, int head,
                 double& row_lse) const {
    Numbers share;
    double sum = 0;
    const auto row = static_cast<size_t>(((row_begin[static_cast<size_t>(s)] + i) * hq + head) * d);
    for (int j = 0; j <= i; ++j) {
      double dot = 0;
      for (size_t c = 0; c < static_cast<size_t>(d); ++c)
        dot += of_q[row + c] * of_k[key_at(s, j, head / (hq / hkv)) + c];
      const bool seen = window == 0 || i - j < window;
      share.push_back(seen ? std::exp(dot * scale()) : 0);
      sum += share.back();
    }
    for (double& x : share) x /= sum;
    row_lse = std::log(sum);
    return share;
  }

  /// Attention in double, of a row and head, element c.
  double attended(const Numbers& share, const Numbers& of_v, int s, int head, size_t c) const {
    double sum = 0;
    for (size_t j = 0; j < share.size(); ++j)
      if (share[j] > 0)
        sum += share[j] * of_v[key_at(s, static_cast<int>(j), head / (hq / hkv)) + c];
    return sum;
  }

  template <class Visit>
  void each_row(const Visit& visit) const {
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s)
      for (int i = 0; i < lengths[static_cast<size_t>(s)]; ++i)
        for (int head = 0; head < hq; ++head)
          visit(s, i, head,
                static_cast<size_t>((row_begin[static_cast<size_t>(s)] + i) * hq + head));
  }

  static Numbers numbers(ActBuffer& b) {
    Numbers all;
    for (size_t i = 0; i < b.size(); ++i) all.push_back(double{b.get(i)});
    return all;
  }

  void forward() {
    lse.resize(static_cast<size_t>(n_rows * hq));
    const Numbers of_q = numbers(q), of_k = numbers(k), of_v = numbers(v);
    each_row([&](int s, int i, int head, size_t at) {
      double row_lse = 0;
      const Numbers share = shares(of_q, of_k, s, i, head, row_lse);
      lse[at] = static_cast<float>(row_lse);
      for (size_t c = 0; c < static_cast<size_t>(d); ++c)
        out.set(at * static_cast<size_t>(d) + c,
                static_cast<float>(attended(share, of_v, s, head, c)));
    });
  }

  /// <dout, attention>.
  double loss(const Numbers& of_q, const Numbers& of_k, const Numbers& of_v) {
    double sum = 0;
    each_row([&](int s, int i, int head, size_t at) {
      double row_lse = 0;
      const Numbers share = shares(of_q, of_k, s, i, head, row_lse);
      for (size_t c = 0; c < static_cast<size_t>(d); ++c)
        sum +=
            double{dout.get(at * static_cast<size_t>(d) + c)} * attended(share, of_v, s, head, c);
    });
    return sum;
  }

  size_t gradients() const { return static_cast<size_t>(n_rows * (hq + 2 * hkv) * d); }
  int n_tasks() const { return static_cast<int>(lengths.size()) * hkv; }
  AttentionBackwardParams params(ActBuffer& dqkv) {
    return {.dqkv = dqkv.data(),
            .dout = dout.data(),
            .out = out.data(),
            .lse = lse.data(),
            .q = q.data(),
            .k_pool = k.data(),
            .v_pool = v.data(),
            .page_table = table.data(),
            .slot = slot.data(),
            .row_begin = row_begin.data(),
            .act = act,
            .n_seqs = static_cast<int>(lengths.size()),
            .max_pages = max_pages,
            .n_heads = hq,
            .n_kv_heads = hkv,
            .head_dim = d,
            .window = window,
            .scale = static_cast<float>(scale())};
  }
  std::vector<float> workspace(int threads) const {
    const int longest = *std::max_element(lengths.begin(), lengths.end());
    return std::vector<float>(attention_backward_workspace_bytes(longest, hq / hkv, d, threads) /
                              sizeof(float));
  }
};

}  // namespace

TEST_SUITE("kernels/attention_backward") {
  TEST_CASE("the reference agrees with differences in double") {
    for (const int window : {0, 3}) {
      CAPTURE(window);
      BackwardCase c(DType::f32, 4, 2, 3, window, {5, 2});
      ActBuffer dqkv(DType::f32, c.gradients());
      attention_backward_ref(c.params(dqkv), {0, c.n_tasks()});
      const Numbers q = c.numbers(c.q), k = c.numbers(c.k), v = c.numbers(c.v);
      const Numbers dq = differences([&](const Numbers& x) { return c.loss(x, k, v); }, q);
      c.each_row([&](int s, int i, int head, size_t at) {
        const int row = c.row_begin[static_cast<size_t>(s)] + i;
        for (size_t e = 0; e < 3; ++e)
          CHECK(std::abs(double{dqkv.get(static_cast<size_t>(row * 8 + head) * 3 + e)} -
                         dq[at * 3 + e]) <= kDifferenceTolerance);
        // One key after another: slots without a token would be differentiated for nothing.
        if (head >= c.hkv) return;
        const size_t key = c.key_at(s, i, head);
        for (const bool of_k : {true, false}) {
          const auto moved = [&](const Numbers& x) {
            Numbers all = of_k ? k : v;
            std::copy(x.begin(), x.end(), all.begin() + static_cast<long>(key));
            return of_k ? c.loss(q, all, v) : c.loss(q, k, all);
          };
          const auto first = (of_k ? k : v).begin() + static_cast<long>(key);
          const Numbers want = differences(moved, Numbers(first, first + 3));
          const int column = row * 8 + 4 + (of_k ? 0 : 2) + head;
          for (size_t e = 0; e < 3; ++e)
            CHECK(std::abs(double{dqkv.get(static_cast<size_t>(column) * 3 + e)} - want[e]) <=
                  kDifferenceTolerance);
        }
      });
    }
  }

  TEST_CASE("every variant agrees with the reference over heads, widths, windows and lengths") {
    struct Shape {
      int hq, hkv, d;
    };
    for (const DType act : {DType::f32, DType::bf16})
      for (const Shape shape :
           {Shape{1, 1, 1}, {4, 2, 6}, {3, 1, 16}, {5, 5, 17}, {6, 2, 64}, {2, 1, 80}, {2, 2, 128}})
        for (const int window : {0, 1, 40, 64, 100})
          for (const std::vector<int>& lengths :
               {std::vector<int>{1}, {64}, {65, 3}, {200, 1, 37}}) {
            BackwardCase c(act, shape.hq, shape.hkv, shape.d, window, lengths);
            ActBuffer want(act, c.gradients());
            attention_backward_ref(c.params(want), {0, c.n_tasks()});
            double largest = 0;
            for (size_t i = 0; i < want.size(); ++i)
              largest = std::max(largest, std::abs(double{want.get(i)}));
            for (const Isa isa : usable_isas()) {
              if (isa == Isa::avx512_bf16 || isa == Isa::amx) continue;  // run AVX-512's
              CAPTURE(isa_name(isa));
              CAPTURE(dtype_name(act));
              CAPTURE(shape.d);
              CAPTURE(shape.hq);
              CAPTURE(window);
              CAPTURE(lengths.size());
              CAPTURE(lengths[0]);
              ActBuffer got(act, c.gradients(), 1);
              for (size_t i = 0; i < got.size(); ++i)
                got.set(i, std::numeric_limits<float>::quiet_NaN());
              std::vector<float> scratch = c.workspace(1);
              cpu_table(isa).attention_backward(c.params(got), {0, c.n_tasks()}, scratch.data());
              // Errors of products of d and of sums of up to n G terms, each within the largest
              // result and the terms of one row, add up like a random walk.
              const double n = lengths[0] * shape.hq / shape.hkv + shape.d;
              REQUIRE_CLOSE(got, want, ([&](size_t i) {
                              return spacing(act) * std::abs(double{want.get(i)}) +
                                     16 * std::sqrt(n) * kF32 * (largest + 1);
                            }));
            }
          }
  }

  TEST_CASE("a document has the same bits alone and among others, on any number of threads") {
    for (const DType act : {DType::f32, DType::bf16}) {
      BackwardCase c(act, 4, 2, 24, 50, {70, 130, 9});
      ActBuffer all(act, c.gradients()), alone(act, c.gradients());
      std::vector<float> scratch = c.workspace(8);
      attention_backward_cpu(c.params(all), scratch.data());
      for (int task = c.n_tasks(); task-- > 0;)
        cpu_table().attention_backward(c.params(alone), {task, task + 1}, scratch.data());
      REQUIRE_CLOSE(all, alone, ([](size_t) { return 0.0; }));
    }
  }
}
