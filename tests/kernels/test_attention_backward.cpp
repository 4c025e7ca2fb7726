#include "kernels/attention_backward_case.h"

using namespace tandem;
using namespace tandem::test;

TEST_SUITE("kernels/attention_backward") {
  TEST_CASE("the reference agrees with differences in double") {
    for (const int window : {0, 3}) {
      CAPTURE(window);
      AttentionBackwardCase c(DType::f32, 4, 2, 3, window, {5, 2});
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
            AttentionBackwardCase c(act, shape.hq, shape.hkv, shape.d, window, lengths);
            ActBuffer want = c.reference();
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
      AttentionBackwardCase c(act, 4, 2, 24, 50, {70, 130, 9});
      ActBuffer all(act, c.gradients()), alone(act, c.gradients());
      std::vector<float> scratch = c.workspace(8);
      attention_backward_cpu(c.params(all), scratch.data());
      for (int task = c.n_tasks(); task-- > 0;)
        cpu_table().attention_backward(c.params(alone), {task, task + 1}, scratch.data());
      REQUIRE_CLOSE(all, alone, ([](size_t) { return 0.0; }));
    }
  }
}
