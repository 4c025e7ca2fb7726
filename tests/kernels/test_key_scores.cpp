#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "attention_case.h"
#include "base/convert.h"
#include "base/rng.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// A call that wants scores, over arrays of its own; the sequences are in rows of the page table in
/// reverse order, and what is taken off differs from head to head.
class ScoredCase {
 public:
  explicit ScoredCase(const AttentionSpec& spec) : case_(spec), params_(case_.params()) {
    for (const SeqShape& s : spec.seqs) tokens_ = std::max(tokens_, (s.keys() + 63) / 64 * 64);
    const int n_seqs = params_.n_seqs, max_pages = params_.max_pages;
    pages_.resize(static_cast<size_t>(n_seqs * max_pages));
    for (int s = 0; s < n_seqs; ++s) {
      slot_.push_back(n_seqs - 1 - s);
      std::copy_n(params_.page_table + s * max_pages, max_pages,
                  &pages_[static_cast<size_t>(slot_.back() * max_pages)]);
    }
    lse_.resize(static_cast<size_t>(n_seqs * params_.n_heads));
    for (int s = 0; s < n_seqs; ++s) {
      PhiloxStream draw(spec.seed, static_cast<uint32_t>(77 + s));
      for (int h = 0; h < params_.n_heads; ++h)
        lse_[static_cast<size_t>(slot_[static_cast<size_t>(s)] * params_.n_heads + h)] =
            static_cast<float>(8 * draw.uniform() - 1);
    }
    scores_.assign(static_cast<size_t>(n_seqs * params_.n_kv_heads * tokens_), kUnwritten);
    params_.slot = slot_.data();
    params_.page_table = pages_.data();
    params_.scores = {.at = scores_.data(),
                      .lse = lse_.data(),
                      .row_stride = int64_t{tokens_} * params_.n_kv_heads,
                      .head_stride = tokens_,
                      .lse_stride = params_.n_heads};
  }

  std::vector<f16> run(const AttentionKernel& kernel, int threads) {
    std::ranges::fill(scores_, kUnwritten);
    run_attention(kernel, params_, threads);
    return scores_;
  }
  std::vector<f16> run_ref() {
    std::ranges::fill(scores_, kUnwritten);
    for (int s = 0; s < params_.n_seqs; ++s)
      if (params_.row_begin[s + 1] > params_.row_begin[s]) key_scores_ref(params_, s);
    return scores_;
  }
  /// visit(seq, first score of the KV head) of sequences that have rows.
  template <class Visit>
  void for_heads(const Visit& visit) const {
    for (int s = 0; s < params_.n_seqs; ++s)
      for (int h = 0; h < params_.n_kv_heads; ++h)
        if (params_.row_begin[s + 1] > params_.row_begin[s])
          visit(s, static_cast<size_t>((slot_[static_cast<size_t>(s)] * params_.n_kv_heads + h) *
                                       tokens_));
  }
  AttentionParams& params() { return params_; }
  const AttentionCase& outputs() const { return case_; }
  int tokens() const { return tokens_; }
  int base(int s) const { return params_.base[s]; }

  static constexpr f16 kUnwritten{0x1234};

 private:
  AttentionCase case_;
  AttentionParams params_;
  int tokens_ = 0;
  std::vector<int32_t> slot_, pages_;
  std::vector<float> lse_;
  std::vector<f16> scores_;
};

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

/// Scores up to the committed length agree, and nothing behind the last page is written.
void check_scores(const AttentionSpec& spec, const AttentionVariant& variant, int threads) {
  ScoredCase c(spec);
  const std::vector<f16> want = c.run_ref(), got = c.run(*variant.kernel, threads);
  const double score = tolerance(spec, 1).lse;
  c.for_heads([&](int s, size_t first) {
    const int base = c.params().base[s];
    for (int t = 0; t < c.tokens(); ++t) {
      const f16 a = got[first + static_cast<size_t>(t)], b = want[first + static_cast<size_t>(t)];
      // f16 is rounded once: half a unit of each.
      const double bound = score + 0x1p-10 * std::abs(to_float(b)) + 0x1p-24;
      const bool right = t < base ? std::abs(to_float(a) - to_float(b)) <= bound
                                  : t < (base + 63) / 64 * 64 || same_bits(a, b);
      if (!right)
        FAIL(isa_name(variant.isa), " ", spec.text(), " sequence ", s, " key ", t, " is ",
             to_float(a), " expected ", to_float(b));
    }
  });
}

AttentionSpec spec_of(DType dtype, int d, int group, std::vector<SeqShape> seqs, bool tree) {
  return {.d = d,
          .group = group,
          .kv_heads = 2,
          .seqs = std::move(seqs),
          .tree = tree,
          .dtype = dtype,
          .out_dtype = dtype,
          .seed = static_cast<uint32_t>(d + group)};
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
                  spec_of(dtype, d, group, {{130, rows}, {0, 3}, {64, 0}, {1030, rows}}, tree),
                  variant, 1 + static_cast<int>(n / 11 % 3));
            }
      AttentionSpec later = spec_of(dtype, 64, 3, {{500, 2}, {70, 9}}, true);
      add_tentative(later, {1, 40});
      check_scores(later, variant, 2);
    });
  }

  TEST_CASE("queries of more than one block, divided keys or not: the same bits on any threads") {
    for_variants([](DType dtype, const AttentionVariant& variant) {
      for (const auto& [rows, base] : {std::pair{4, 3000}, {7, 4100}, {50, 1100}}) {
        const AttentionSpec spec = spec_of(dtype, 64, 4, {{base, rows}}, false);
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
      const AttentionSpec one = spec_of(dtype, 64, 3, {{2100, 6}}, false);
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
      ScoredCase c(spec_of(dtype, 64, 2, {{100, 3}}, false));
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
