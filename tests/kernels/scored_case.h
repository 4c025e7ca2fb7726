#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/convert.h"
#include "base/rng.h"
#include "kernels/attention_case.h"

namespace tandem::test {

inline AttentionSpec scored_spec(DType dtype, int d, int group, std::vector<SeqShape> seqs,
                                 bool tree) {
  return {.d = d,
          .group = group,
          .kv_heads = 2,
          .seqs = std::move(seqs),
          .tree = tree,
          .dtype = dtype,
          .out_dtype = dtype,
          .seed = static_cast<uint32_t>(d + group)};
}

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
  AttentionCase& attention() { return case_; }
  const std::vector<int32_t>& slot() const { return slot_; }
  const std::vector<int32_t>& pages() const { return pages_; }
  const std::vector<float>& subtracted() const { return lse_; }
  size_t n_scores() const { return scores_.size(); }
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

/// Scores up to the committed length agree, and nothing beyond the last page is written.
inline void compare_scores(const ScoredCase& c, const std::vector<f16>& got,
                           const std::vector<f16>& want, const std::string& what) {
  const double score = tolerance(c.outputs().spec(), 1).lse;
  c.for_heads([&](int s, size_t first) {
    const int base = c.base(s);
    for (int t = 0; t < c.tokens(); ++t) {
      const f16 a = got[first + static_cast<size_t>(t)], b = want[first + static_cast<size_t>(t)];
      // f16 is rounded once: half a unit of each.
      const double bound = score + 0x1p-10 * std::abs(to_float(b)) + 0x1p-24;
      const bool right = t < base ? std::abs(to_float(a) - to_float(b)) <= bound
                                  : t < (base + 63) / 64 * 64 || a.bits == b.bits;
      if (!right)
        FAIL(what, " ", c.outputs().spec().text(), " sequence ", s, " key ", t, " is ", to_float(a),
             " expected ", to_float(b));
    }
  });
}

}  // namespace tandem::test
