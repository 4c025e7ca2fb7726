#include "kernels/elementwise_case.h"
#include "kernels/row_norms_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr double kF32 = 0x1p-23;

}  // namespace

TEST_SUITE("kernels/row_norms") {
  TEST_CASE("every variant agrees with the reference, in place too, and sums may be of a part") {
    for (const Isa isa : usable_isas())
      for (const DType act : kActs)
        for (const int head : {2, 7, 16, 33, 130})
          for (const size_t offset : {0u, 1u}) {
            CAPTURE(isa_name(isa));
            CAPTURE(dtype_name(act));
            CAPTURE(head);
            RowNormsCase c(act, head, offset);
            ActBuffer got(act, c.in.size(), offset);
            Buffer<float> squares(2 * c.kRows);
            const RowNormsParams p = c.params(got, squares);
            cpu_table(isa).qk_squares(p, {0, c.kRows});
            c.require_squares_close(squares.data());
            cpu_table(isa).row_norms(p, {0, c.kRows});
            c.require_close(got);
            RowNormsParams in_place = c.params(c.in, squares);
            cpu_table(isa).row_norms(in_place, {0, c.kRows});
            REQUIRE_CLOSE(c.in, got, ([](size_t) { return 0.0; }));
          }
  }
}

TEST_SUITE("kernels/row_norms_backward") {
  /// The backward pass of rows of 5 and 2 heads as two norms, which rms_norm_backward takes.
  TEST_CASE("every variant is rms_norm_backward of q and of k") {
    for (const Isa isa : usable_isas())
      for (const DType act : kActs)
        for (const int head : {2, 7, 16, 33, 130}) {
          CAPTURE(isa_name(isa));
          CAPTURE(dtype_name(act));
          CAPTURE(head);
          RowNormsCase c(act, head, 0);
          ActBuffer dy(act, c.in.size());
          PhiloxStream stream(9);
          fill(dy, stream, 1.0f);
          ActBuffer got = dy, want = dy;
          const auto n_norms = static_cast<size_t>(c.kRows * (c.q + c.kv));
          std::vector<float> dnorms(n_norms), dnorms0(n_norms);
          const auto params = [&](ActBuffer& d, std::vector<float>& of_norms) {
            return RowNormsBackwardParams{.dqkv = d.data(),
                                          .qkv = c.in.data(),
                                          .q_norm = c.q_norm.data(),
                                          .k_norm = c.k_norm.data(),
                                          .dnorms = of_norms.data(),
                                          .n_rows = c.kRows,
                                          .q_dim = c.q,
                                          .kv_dim = c.kv,
                                          .eps = 0.01f,
                                          .act = act};
          };
          row_norms_backward_ref(params(want, dnorms0), {0, c.kRows});
          cpu_table(isa).row_norms_backward(params(got, dnorms), {0, c.kRows});
          const double f32 = (10 + c.q / 8.0) * kF32 * 10;
          REQUIRE_CLOSE(got, want, ([&](size_t i) {
                          return spacing(act) * std::abs(double{want.get(i)}) + f32;
                        }));
          for (size_t i = 0; i < n_norms; ++i) REQUIRE(std::abs(dnorms[i] - dnorms0[i]) <= f32);
          const auto row = static_cast<size_t>(c.q + 2 * c.kv);
          for (const int part : {0, 1}) {
            const int n = part == 0 ? c.q : c.kv;
            const size_t from = part == 0 ? 0 : static_cast<size_t>(c.q);
            ActBuffer x(act, static_cast<size_t>(n)), g(act, x.size()), dx(DType::f32, x.size());
            for (size_t i = 0; i < x.size(); ++i) {
              x.set(i, c.in.get(row + from + i));
              g.set(i, dy.get(row + from + i));
              dx.set(i, 0);
            }
            rms_norm_backward_ref({.dx = static_cast<float*>(dx.data()),
                                   .dy = g.data(),
                                   .x = x.data(),
                                   .weight = part == 0 ? c.q_norm.data() : c.k_norm.data(),
                                   .n_rows = 1,
                                   .dim = n,
                                   .eps = 0.01f,
                                   .dy_type = act,
                                   .x_type = act},
                                  {0, 1});
            for (size_t i = 0; i < x.size(); ++i)
              REQUIRE(std::abs(want.get(row + from + i) - dx.get(i)) <=
                      spacing(act) * std::abs(double{dx.get(i)}) + 4 * kF32);
          }
          for (size_t i = row - static_cast<size_t>(c.kv); i < row; ++i)
            REQUIRE(got.get(i) == dy.get(i));
        }
  }
}
