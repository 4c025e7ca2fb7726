#include "decode/sampler.h"

#include "base/check.h"
#include "base/rng.h"
#include "decode/gpu_draws.h"

namespace tandem::decode {

double draw_uniform(int64_t seed, const DrawSeq& s) {
  return tandem::draw_uniform(static_cast<uint64_t>(seed), static_cast<uint32_t>(s.seq),
                              static_cast<uint32_t>(s.position), DrawPurpose::sample);
}

void Sampler::plan(const SamplerBounds& bounds, Device device, MemoryPlan& plan) {
  if (device.kind == Device::Kind::cuda) GpuDraws::plan(bounds, device, plan);
}

Sampler::Sampler(const SamplerBounds& bounds, Arena& arena, const Exec& exec)
    : gpu_(exec.on_gpu() ? std::make_unique<GpuDraws>(bounds, arena, exec) : nullptr) {}

Sampler::~Sampler() = default;

void Sampler::start(const SamplerSpec& spec) {
  if (gpu_) gpu_->start(spec);
  spec_ = spec;
  results_.clear();
}

int Sampler::depth() const { return gpu_ ? gpu_->depth() : 1; }

int Sampler::in_flight() const {
  return gpu_ ? gpu_->in_flight() : static_cast<int>(results_.size());
}

void Sampler::draw(std::span<const DrawSeq> seqs, const Tensor& logits) {
  TANDEM_CHECK(logits.rows() == static_cast<int64_t>(seqs.size()), "{} rows for {} sequences",
               logits.rows(), seqs.size());
  if (gpu_) {
    const int n = static_cast<int>(seqs.size());
    gpu_->open();
    gpu_->send(seqs, n);
    gpu_->launch(logits);
    return gpu_->finish(n);
  }
  std::vector<double> uniform;
  std::vector<std::span<const int32_t>> seen;
  for (const DrawSeq& s : seqs) {
    uniform.push_back(draw_uniform(spec_.seed, s));
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
  TANDEM_CHECK(in_flight() > 0, "no draw is in flight");
  if (gpu_) return gpu_->collect();
  std::vector<Drawn> oldest = std::move(results_.front());
  results_.pop_front();
  return oldest;
}

}  // namespace tandem::decode
