#include <algorithm>
#include <cmath>

#include "scored_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

bool same_bits(f16 a, f16 b) { return a.bits == b.bits; }

/// The scores of sequence s.
std::vector<f16> of_sequence(const ScoredCase& c, int s, const std::vector<f16>& all) {
  std::vector<f16> scores;
  c.for_heads([&](int of, size_t first) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    if (of == s) scores.insert(scores.end(), begin, begin + c.base(s));
  });
  return scores;
}

void check_scores(const AttentionSpec& spec, const AttentionVariant& variant, int threads) {
  ScoredCase c(spec);
  const std::vector<f16> want = c.run_ref(), got = c.run(*variant.kernel, threads);
  compare_scores(c, got, want, std::string(isa_name(variant.isa)));
}

template <class Check>
void for_variants(const Check& check) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const AttentionVariant& variant : attention_variants(dtype)) check(dtype, variant);
}

}  // namespace

TEST_SUITE("kernels/key_scores") {
  TEST_CASE("every variant agrees with the reference: rows, groups, trees, ragged batches") {
    for_variants([](DType dtype, const AttentionVariant& variant) {
      uint32_t n = 0;
      for (const int d : {64, 128, 80, 34, 7})
        for (const int group : {1, 3, 4, 7})
          for (const int rows : {1, 4, 5, 6, 17, 35})
            for (const bool tree : {false, true}) {
              if (++n % 11 != 0) continue;  // the grid's values take turns
              check_scores(
                  scored_spec(dtype, d, group, {{130, rows}, {0, 3}, {64, 0}, {1030, rows}}, tree),
                  variant, 1 + static_cast<int>(n / 11 % 3));
            }
      AttentionSpec later = scored_spec(dtype, 64, 3, {{500, 2}, {70, 9}}, true);
      add_tentative(later, {1, 40});
      check_scores(later, variant, 2);
    });
  }

  TEST_CASE("queries of more than one block, divided keys or not: the same bits on any threads") {
    for_variants([](DType dtype, const AttentionVariant& variant) {
      for (const auto& [rows, base] : {std::pair{4, 3000}, {7, 4100}, {50, 1100}}) {
        const AttentionSpec spec = scored_spec(dtype, 64, 4, {{base, rows}}, false);
        check_scores(spec, variant, 1);
        ScoredCase c(spec);
        const std::vector<f16> alone = of_sequence(c, 0, c.run(*variant.kernel, 1));
        for (const int threads : {2, 3, 8}) {
          CAPTURE(threads);
          CHECK(std::ranges::equal(of_sequence(c, 0, c.run(*variant.kernel, threads)), alone,
                                   same_bits));
        }
      }
    });
  }

  TEST_CASE("batch mates do not show, and outputs are those of a call without scores") {
    for_variants([](DType dtype, const AttentionVariant& variant) {
      const AttentionSpec one = scored_spec(dtype, 64, 3, {{2100, 6}}, false);
      AttentionSpec many = one;
      many.seqs = {{2100, 6}, {700, 30}, {0, 4}};
      ScoredCase alone(one), among(many);
      const std::vector<f16> a = alone.run(*variant.kernel, 2), b = among.run(*variant.kernel, 2);
      CHECK(std::ranges::equal(of_sequence(alone, 0, a), of_sequence(among, 0, b), same_bits));
      AttentionCase plain(many);
      plain.run(*variant.kernel, 2);
      CHECK(plain.out_bytes() == among.outputs().out_bytes());
      CHECK(plain.lse() == among.outputs().lse());
    });
  }

  TEST_CASE("scores beyond what f16 holds are infinite, and small ones are kept") {
    for_variants([](DType dtype, const AttentionVariant& variant) {
      ScoredCase c(scored_spec(dtype, 64, 2, {{100, 3}}, false));
      for (const float off : {-1e6f, 1e6f}) {
        std::vector<float> lse(4, off);
        c.params().scores.lse = lse.data();
        for (const f16 score : {c.run(*variant.kernel, 1)[0], c.run_ref()[0]})
          CHECK(std::isinf(to_float(score)));
      }
      std::vector<float> none(4, 0.0f);
      c.params().scores.lse = none.data();
      CHECK(std::isfinite(to_float(c.run(*variant.kernel, 1)[0])));
    });
  }
}
