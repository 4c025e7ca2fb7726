#pragma once
// Shared by the tests of attention's backward pass on CPU and GPU.
#include <algorithm>
#include <limits>
#include <string>

#include "base/parallel.h"
#include "kernels/differences.h"
#include "kernels/variants.h"

namespace tandem::test {

inline constexpr double kF32 = 0x1p-23;

/// Documents whose pages lie in reverse order, slots without a token holding NaN.
struct AttentionBackwardCase {
  DType act;
  int hq, hkv, d, window;
  std::vector<int> lengths;
  int n_rows = 0, max_pages = 0;
  std::vector<int32_t> table, slot, row_begin{0};
  ActBuffer q, k, v, dout, out;
  std::vector<float> lse;

  /// q, dout and out begin `offset` elements beyond a vector's address; q's range decides how much
  /// the shares of a row's keys differ.
  AttentionBackwardCase(DType t, int heads, int kv_heads, int dim, int w, std::vector<int> rows,
                        size_t offset = 1, float q_range = 1)
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
      *b = ActBuffer(t, queries, offset);
      fill(*b, stream, b == &q ? q_range : 1.0f);
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
    parallel_for(n_rows, [&](int row) {
      const auto next = std::upper_bound(row_begin.begin(), row_begin.end(), row);
      const int s = static_cast<int>(next - row_begin.begin()) - 1;
      for (int head = 0; head < hq; ++head) {
        const auto at = static_cast<size_t>(row * hq + head);
        double row_lse = 0;
        const Numbers share =
            shares(of_q, of_k, s, row - row_begin[static_cast<size_t>(s)], head, row_lse);
        lse[at] = static_cast<float>(row_lse);
        for (size_t c = 0; c < static_cast<size_t>(d); ++c)
          out.set(at * static_cast<size_t>(d) + c,
                  static_cast<float>(attended(share, of_v, s, head, c)));
      }
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
  /// The reference's gradients, of all documents.
  ActBuffer reference() {
    ActBuffer want(act, gradients());
    parallel_for(n_tasks(), [&](int task) {
      attention_backward_ref(params(want), {task, task + 1});
    });
    return want;
  }
  std::vector<float> workspace(int threads) const {
    const int longest = *std::max_element(lengths.begin(), lengths.end());
    return std::vector<float>(attention_backward_workspace_bytes(longest, hq / hkv, d, threads) /
                              sizeof(float));
  }
};

}  // namespace tandem::test
