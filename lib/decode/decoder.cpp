#include "decode/decoder.h"

namespace tandem::decode {
namespace {

class PlainDecoder final : public Decoder {
 public:
  PlainDecoder(Engine& engine, int policy) : engine_(engine), policy_(policy) {}

  kv::Readers readers() const override { return policy_; }
  void start(const SamplerSpec& spec) override { sampler().start(spec); }
  int depth() const override { return sampler().depth(); }
  int in_flight() const override { return sampler().in_flight(); }
  void draw(std::span<const DrawSeq> seqs, const Tensor& logits) override {
    sampler().draw(seqs, logits);
  }

  void step(std::span<const DrawSeq> seqs) override {
    const double before = kv_bytes();
    engine_.decode(seqs);
    bytes_read_ += static_cast<double>(engine_.weight_bytes()) + kv_bytes() - before;
  }

  std::vector<std::vector<Drawn>> collect() override {
    std::vector<std::vector<Drawn>> all;
    for (Drawn& drawn : sampler().collect()) all.emplace_back().push_back(std::move(drawn));
    return all;
  }

  void forget(int /*slot*/) override {}
  double bytes_read() const override { return bytes_read_; }

 private:
  Sampler& sampler() const { return engine_.sampler(); }
  double kv_bytes() const { return engine_.cache().usage(policy_).bytes(); }

  Engine& engine_;
  int policy_;
  double bytes_read_ = 0;
};

}  // namespace

std::unique_ptr<Decoder> plain_decoder(Engine& engine, int policy) {
  return std::make_unique<PlainDecoder>(engine, policy);
}

}  // namespace tandem::decode
