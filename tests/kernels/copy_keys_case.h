#pragma once
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "kernels/gather/copy_keys.h"

namespace tandem::test {

/// Lists of a sequence in scattered pages, and pages for its copies, scattered too. Every byte of
/// the pools differs from its neighbours; what is not written to must stay.
struct CopyKeysCase {
  static constexpr int kPages = 37, kPagesTo = 41;
  int n, n_heads, row_bytes, n_tokens, run;
  std::vector<unsigned char> k, v, k_to, v_to;
  std::vector<int32_t> pages, to_pages, ids;

  CopyKeysCase(int listed, int heads, int bytes, int tokens, int run_tokens)
      : n(listed), n_heads(heads), row_bytes(bytes), n_tokens(tokens), run(run_tokens) {
    PhiloxStream draw(3, static_cast<uint32_t>(listed + bytes));
    for (auto* pool : {&k, &v, &k_to, &v_to}) {
      const int n_pages = pool == &k || pool == &v ? kPages : kPagesTo;
      pool->resize(static_cast<size_t>(n_pages * heads * kPageTokens * bytes));
      for (unsigned char& x : *pool) x = static_cast<unsigned char>(draw.below(256));
    }
    for (int i = 0; i * kPageTokens < tokens; ++i) pages.push_back((7 * i + 3) % kPages);
    for (int i = 0; i * kPageTokens < listed; ++i) to_pages.push_back((5 * i + 11) % kPagesTo);
    ids.assign(static_cast<size_t>(heads * id_stride()), 1 << 24);
    for (int head = 0; head < heads; ++head) {
      std::vector<int32_t> order(static_cast<size_t>(tokens / run));
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[draw.below(static_cast<uint32_t>(i))]);
      std::copy_n(order.begin(), (listed + run - 1) / run, ids.begin() + head * id_stride());
    }
  }
  int id_stride() const { return n + 3; }
  /// Entry i of a head's list.
  int token(int head, int i) const {
    return ids[static_cast<size_t>(head * id_stride() + i / run)] * run + i % run;
  }
  /// Byte of a pool where a token's row begins.
  size_t row_at(const std::vector<int32_t>& table, int token, int head) const {
    const int page = table[static_cast<size_t>(token / kPageTokens)];
    return static_cast<size_t>((page * n_heads + head) * kPageTokens + token % kPageTokens) *
           static_cast<size_t>(row_bytes);
  }
  CopyKeysParams params() {
    return {.k_to = k_to.data(),
            .v_to = v_to.data(),
            .to_pages = to_pages.data(),
            .k_from = k.data(),
            .v_from = v.data(),
            .from_pages = pages.data(),
            .ids = ids.data(),
            .id_stride = id_stride(),
            .run = run,
            .n = n,
            .n_kv_heads = n_heads,
            .row_bytes = row_bytes};
  }
};

/// Calls f with cases of rows of several widths, lists around whole pages, of tokens and of runs,
/// one and several heads.
template <class F>
void each_copy_keys_case(const F& f) {
  for (const int row_bytes : {2, 6, 40, 128, 256, 512})
    for (const int listed : {0, 1, 63, 64, 65, 700})
      for (const int heads : {1, 3})
        for (const int run : {1, 8}) f(CopyKeysCase(listed, heads, row_bytes, 777, run));
}

}  // namespace tandem::test
