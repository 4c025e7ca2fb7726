#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "attention_case.h"
#include "base/convert.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

void check_against_reference(const AttentionSpec& spec, const AttentionVariant& variant,
                             int threads) {
  AttentionCase got(spec), want(spec);
  got.run(*variant.kernel, threads);
  int n_keys = 0;
  for (const SeqShape& q : spec.seqs) n_keys = std::max(n_keys, q.keys());
  const Tolerance tol = tolerance(spec, n_keys);
  const size_t heads = static_cast<size_t>(spec.group * spec.kv_heads),
               d = static_cast<size_t>(spec.d);
  for (int row : rows_to_check(spec)) {
    want.run_ref({row, row + 1});
    for (size_t at = static_cast<size_t>(row) * heads; at < (static_cast<size_t>(row) + 1) * heads;
         ++at) {
      const float a = got.lse()[at], b = want.lse()[at];
      const bool lse_agrees = b == -kInf ? a == -kInf : std::abs(a - b) <= tol.lse;
      INFO(isa_name(variant.isa), " ", spec.text(), " row ", row, " lse ", a, " expected ", b);
      REQUIRE(lse_agrees);
      double worst = 0;
      size_t where = 0;
      for (size_t c = 0; c < d; ++c) {
        const double error = std::abs(double{got.out(at * d + c)} - want.out(at * d + c));
        if (error <= worst) continue;
        worst = error;  // a NaN stays
        where = c;
        if (std::isnan(error)) break;
      }
      INFO("column ", where, " is ", got.out(at * d + where), " expected ",
           want.out(at * d + where));
      REQUIRE(worst <= tol.out);
    }
  }
  // Rows outside the sample were written too.
  for (size_t i = 0; i < static_cast<size_t>(got.n_rows()) * got.row_values(); ++i)
    if (!std::isfinite(got.out(i)))
      FAIL(isa_name(variant.isa), " ", spec.text(), " value ", i, " not finite");
}

/// Fewer rows where the problem would take the variant longer than this many flops.
void shrink(AttentionSpec& s, double most_flops) {
  for (SeqShape& q : s.seqs)
    while (q.rows > 1 && 4.0 * s.d * s.group * s.kv_heads * q.rows * (q.base + q.rows) > most_flops)
      q.rows = q.rows / 2;
}

constexpr std::array kDims = {64, 128, 80, 32, 96, 256};
constexpr std::array kGroups = {1, 3, 4, 7};
constexpr std::array kLengths = {1, 63, 64, 65, 1023, 1024, 1025, 3000};
constexpr std::array kRows = {1, 2, 5, 16, 17, 64, 200};

void check_grid(DType dtype) {
  for (const AttentionVariant& variant : attention_variants(dtype)) {
    uint32_t n = 0;
    for (int d : kDims)
      for (int g : kGroups)
        for (int length : kLengths) {
          // Rows and masks take turns: 7 and 7 are prime to each other only through the shift.
          AttentionSpec s{
              .d = d, .group = g, .kv_heads = n % 3 == 0 ? 2 : 1, .dtype = dtype, .seed = n};
          s.seqs = {{length, kRows[n % kRows.size()]}};
          s.out_dtype = n % 2 == 0 ? DType::f32 : dtype;
          apply_mask(s, static_cast<int>((n / 7 + n) % 7));
          shrink(s, variant.isa == Isa::scalar ? 2e7 : 2e8);
          check_against_reference(s, variant, 1 + static_cast<int>(n % 3));
          ++n;
        }
  }
}

}  // namespace

TEST_SUITE("kernels/attention") {
  TEST_CASE("f32: every variant agrees with the reference") { check_grid(DType::f32); }
  TEST_CASE("bf16: every variant agrees with the reference") { check_grid(DType::bf16); }

  TEST_CASE("ragged batches: different bases, empty sequences, prefill beside decode") {
    for (DType dtype : {DType::f32, DType::bf16})
      for (const AttentionVariant& variant : attention_variants(dtype))
        for (int mask = 0; mask < 7; ++mask) {
          AttentionSpec s{.d = 64, .group = 3, .kv_heads = 2, .dtype = dtype, .seed = 5};
          s.seqs = {{0, 70}, {1023, 1}, {0, 0}, {0, 1}, {64, 3}, {2100, 5}, {300, 0}, {63, 66}};
          apply_mask(s, mask);
          check_against_reference(s, variant, 2);
        }
  }

  TEST_CASE("rows behind tentative ones, in trees and chains, beside sequences without any") {
    for (DType dtype : {DType::f32, DType::bf16})
      for (const AttentionVariant& variant : attention_variants(dtype))
        for (int mask = 0; mask < kMasks; ++mask) {
          AttentionSpec s{.d = 64, .group = 3, .kv_heads = 2, .dtype = dtype, .seed = 7};
          s.seqs = {{0, 20}, {1000, 1}, {0, 0}, {0, 1}, {64, 3}, {2040, 5}, {40, 66}, {63, 9}};
          add_tentative(s, {1, 40, 0, 70, 7, 200, 130});
          apply_mask(s, mask);
          check_against_reference(s, variant, 2);
        }
  }

  TEST_CASE("head dimensions that fill no vector: 2, 6, 7, 34, 112, 130") {
    for (DType dtype : {DType::f32, DType::bf16})
      for (const AttentionVariant& variant : attention_variants(dtype))
        for (int d : {2, 6, 7, 34, 112, 130}) {
          AttentionSpec s{.d = d, .group = 5, .kv_heads = 2, .dtype = dtype, .seed = 6};
          s.seqs = {{1100, 9}, {5, 40}};
          check_against_reference(s, variant, 1);
        }
  }

  TEST_CASE("an empty set of keys gives out = 0 and lse = -inf") {
    for (DType dtype : {DType::f32, DType::bf16})
      for (const AttentionVariant& variant : attention_variants(dtype))
        for (bool tree : {false, true}) {
          AttentionSpec s{.d = 80, .group = 4, .kv_heads = 1, .dtype = dtype};
          s.seqs = {{500, 20}};
          s.key_lo = 510;  // rows 0..9 of a chain see nothing
          s.tree = tree;
          AttentionCase c(s);
          c.run(*variant.kernel, 2);
          for (size_t head = 0; head < 4; ++head) {
            CHECK(c.lse()[head] == -kInf);
            for (size_t i = 0; i < 80; ++i) CHECK(c.out(head * 80 + i) == 0.0f);
          }
          check_against_reference(s, variant, 2);
        }
  }

  TEST_CASE("lse may be null") {
    for (DType dtype : {DType::f32, DType::bf16})
      for (const AttentionVariant& variant : attention_variants(dtype)) {
        AttentionSpec s{.d = 64, .group = 2, .kv_heads = 2, .dtype = dtype};
        s.seqs = {{3000, 1}, {10, 40}};
        AttentionCase with(s), without(s);
        with.run(*variant.kernel, 2);
        AttentionParams p = without.params();
        p.lse = nullptr;
        run_attention(*variant.kernel, p, 2);
        CHECK(with.out_bytes() == without.out_bytes());
      }
  }
}
