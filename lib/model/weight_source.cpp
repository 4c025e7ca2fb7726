#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "model/weights.h"
#include "ops/loading.h"

namespace tandem::model {
namespace {

/// Embedding rows are read in pieces of this size: small beside any plan, and still in L2 when they
/// are widened.
constexpr size_t kReadBytes = size_t{64} << 10;

int64_t matrix_cols(Weight weight, const ModelConfig& config) {
  return weight_shape(weight, config).back();
}

class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(const ModelConfig& config, Checkpoint checkpoint)
      : config_(config), checkpoint_(std::move(checkpoint)) {
    check_checkpoint(config_, checkpoint_);
    embedding_ = checkpoint_.weight(Weight::tok_emb);
  }

  void rows(Weight weight, int layer, int64_t begin, int64_t end, DType dtype,
            void* out) const override {
    const io::TensorView t = checkpoint_.weight(weight, layer);
    const int64_t cols = t.shape.back();
    const std::byte* from = t.bytes.data() + static_cast<size_t>(begin * cols) * dtype_bytes(t.dtype);
    ops::convert(out, dtype, from, t.dtype, (end - begin) * cols);
  }

  std::vector<float> vector(Weight weight, int layer) const override {
    const io::TensorView t = checkpoint_.weight(weight, layer);
    std::vector<float> values(static_cast<size_t>(t.shape.front()));
    ops::convert(values.data(), DType::f32, t.bytes.data(), t.dtype, t.shape.front());
    return values;
  }

  void embed(std::span<const int32_t> ids, float* out) const override {
    const auto dim = static_cast<size_t>(config_.dim);
    const size_t row_bytes = dim * dtype_bytes(embedding_.dtype);
    const size_t most = std::min(ids.size(), std::max<size_t>(1, kReadBytes / row_bytes));
    std::vector<std::byte> rows(most * row_bytes);
    std::vector<int32_t> order(most);
    std::iota(order.begin(), order.end(), 0);
    for (size_t first = 0; first < ids.size(); first += most) {
      const size_t n = std::min(most, ids.size() - first);
      for (size_t r = 0; r < n; ++r)
        checkpoint_.read(embedding_, static_cast<size_t>(ids[first + r]) * row_bytes,
                         std::span(rows).subspan(r * row_bytes, row_bytes));
      ops::embed(out + first * dim, rows.data(), embedding_.dtype, std::span(order).first(n),
                 config_.dim);
    }
  }

  size_t mapped_bytes(Weight weight) const override { return checkpoint_.weight(weight).bytes.size(); }

  void done() const override { checkpoint_.drop_pages(); }

 private:
  ModelConfig config_;
  Checkpoint checkpoint_;
  io::TensorView embedding_;
};

class SyntheticSource final : public WeightSource {
 public:
  SyntheticSource(const ModelConfig& config, uint64_t seed) : config_(config), seed_(seed) {}

  void rows(Weight weight, int layer, int64_t begin, int64_t end, DType dtype,
            void* out) const override {
    const int64_t cols = matrix_cols(weight, config_);
    ops::fill_random(out, dtype, seed_, tensor_id(weight, layer), begin * cols,
                     (end - begin) * cols, stddev(weight));
  }

  std::vector<float> vector(Weight weight, int /*layer*/) const override {
    const bool norm = weight == Weight::attn_norm || weight == Weight::ffn_norm ||
                      weight == Weight::out_norm;
    return std::vector<float>(static_cast<size_t>(weight_shape(weight, config_).front()),
                              norm ? 1.0f : 0.0f);
  }

  void embed(std::span<const int32_t> ids, float* out) const override {
    for (size_t i = 0; i < ids.size(); ++i)
      ops::fill_random(out + i * static_cast<size_t>(config_.dim), DType::f32, seed_,
                       tensor_id(Weight::tok_emb, 0), int64_t{ids[i]} * config_.dim, config_.dim,
                       stddev(Weight::tok_emb));
  }

  size_t mapped_bytes(Weight) const override { return 0; }

 private:
  static uint32_t tensor_id(Weight weight, int layer) {
    constexpr uint32_t kKinds = 32;
    static_assert(static_cast<uint32_t>(Weight::lm_head) < kKinds);
    return static_cast<uint32_t>(layer) * kKinds + static_cast<uint32_t>(weight);
  }

  float stddev(Weight weight) const {
    const bool into_residual = weight == Weight::wo || weight == Weight::w_down;
    return into_residual ? 0.02f / std::sqrt(2.0f * static_cast<float>(config_.n_layers)) : 0.02f;
  }

  ModelConfig config_;
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<WeightSource> checkpoint_source(const ModelConfig& config, Checkpoint checkpoint) {
  return std::make_unique<CheckpointSource>(config, std::move(checkpoint));
}

std::unique_ptr<WeightSource> synthetic_source(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<SyntheticSource>(config, seed);
}

}  // namespace tandem::model
