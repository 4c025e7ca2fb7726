#include "decode/sampler.h"

#include "base/check.h"
#include "base/rng.h"

namespace tandem::decode {

void Sampler::start(const SamplerSpec& spec) {
  spec_ = spec;
  results_.clear();
}

void Sampler::draw(std::span<const DrawSeq> seqs, const Tensor& logits) {
  TANDEM_CHECK(logits.rows() == static_cast<int64_t>(seqs.size()), "{} rows for {} sequences",
               logits.rows(), seqs.size());
  std::vector<double> uniform;
  std::vector<std::span<const int32_t>> seen;
  for (const DrawSeq& s : seqs) {
    const auto words = draw4(static_cast<uint64_t>(spec_.seed), static_cast<uint32_t>(s.seq),
                             static_cast<uint32_t>(s.position), DrawPurpose::sample);
    uniform.push_back(uniform53(words[0], words[1]));
    seen.push_back(s.tokens);
  }
  const ops::LogitStats stats = ops::logit_stats(logits);
  const std::vector<int32_t> ids = ops::sample(logits, spec_.rule, uniform, seen);
  ops::TopN top;
  if (spec_.top_logprobs > 0) top = ops::top_n(logits, stats, spec_.top_logprobs);
  const size_t n_top = top.ids.size() / seqs.size();
  std::vector<Drawn>& drawn = results_.emplace_back(seqs.size());
  for (size_t r = 0; r < seqs.size(); ++r) {
    const float logit = logits.slice(static_cast<int64_t>(r), 1).as<float>()[ids[r]];
    drawn[r].id = ids[r];
    drawn[r].logprob = logit - stats.lse[r];
    for (size_t i = r * n_top; i < (r + 1) * n_top; ++i)
      drawn[r].top.emplace_back(top.ids[i], top.logprobs[i]);
  }
}

std::vector<Drawn> Sampler::collect() {
  TANDEM_CHECK(!results_.empty(), "no draw is in flight");
  std::vector<Drawn> oldest = std::move(results_.front());
  results_.pop_front();
  return oldest;
}

}  // namespace tandem::decode
