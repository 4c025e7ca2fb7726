#include <doctest/doctest.h>

#include "kernels/copy_keys_case.h"

using namespace tandem;
using namespace tandem::test;

TEST_SUITE("kernels/copy_keys") {
  TEST_CASE("rows of each head's own tokens, in the order of its list, and nothing else") {
    each_copy_keys_case([](CopyKeysCase c) {
      CAPTURE(c.n);
      CAPTURE(c.n_heads);
      CAPTURE(c.row_bytes);
      CAPTURE(c.run);
      auto k_want = c.k_to, v_want = c.v_to;
      for (int head = 0; head < c.n_heads; ++head)
        for (int i = 0; i < c.n; ++i) {
          const int token = c.token(head, i);
          const auto from = static_cast<std::ptrdiff_t>(c.row_at(c.pages, token, head)),
                     to = static_cast<std::ptrdiff_t>(c.row_at(c.to_pages, i, head));
          std::copy_n(c.k.begin() + from, c.row_bytes, k_want.begin() + to);
          std::copy_n(c.v.begin() + from, c.row_bytes, v_want.begin() + to);
        }
      copy_keys_cpu(c.params(), {0, c.n_heads});
      CHECK(c.k_to == k_want);
      CHECK(c.v_to == v_want);
    });
  }
}
