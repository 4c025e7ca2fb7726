#pragma once
// Shared by the tests of norms of whole rows on CPU and GPU.
#include "kernels/variants.h"

namespace tandem::test {

/// Rows of five heads on two, the first of which does not count, beside two other ranks' sums.
struct RowNormsCase {
  static constexpr int kRows = 3;
  DType act;
  int q, kv;
  ActBuffer in, want;
  Buffer<float> q_norm, k_norm, want_squares;

  RowNormsCase(DType t, int head, size_t offset)
      : act(t),
        q(5 * head),
        kv(2 * head),
        in(t, static_cast<size_t>(kRows * (q + 2 * kv)), offset),
        want(t, in.size()),
        q_norm(static_cast<size_t>(q), offset),
        k_norm(static_cast<size_t>(kv), offset),
        want_squares(2 * kRows) {
    PhiloxStream stream(6, static_cast<uint32_t>(head));
    fill(in, stream, 2.0f);
    fill(q_norm, stream, 2.0f);
    fill(k_norm, stream, 2.0f);
    const RowNormsParams p = params(want, want_squares);
    qk_squares_ref(p, {0, kRows});
    row_norms_ref(p, {0, kRows});
  }
  RowNormsParams params(ActBuffer& out, Buffer<float>& squares) {
    return {.out = out.data(),
            .in = in.data(),
            .squares = squares.data(),
            .q_norm = q_norm.data(),
            .k_norm = k_norm.data(),
            .n_rows = kRows,
            .q_dim = q,
            .kv_dim = kv,
            .first_k = kv / 2,
            .q_all = 3 * q,
            .k_all = 2 * kv,
            .eps = 0.01f,
            .act = act};
  }
  void require_squares_close(const float* squares) {
    for (size_t i = 0; i < 2 * kRows; ++i)
      REQUIRE(std::abs(double{squares[i]} - double{want_squares[i]}) <=
              (4 + q / 16.0) * spacing(DType::f32) * double{want_squares[i]});
  }
  void require_close(ActBuffer& got) {
    const double relative = spacing(act) + (6 + q / 16.0) * spacing(DType::f32);
    REQUIRE_CLOSE(got, want, ([&](size_t i) { return relative * std::abs(double{want.get(i)}); }));
  }
};

}  // namespace tandem::test
