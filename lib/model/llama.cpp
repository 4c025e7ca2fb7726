#include "model/llama.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/elementwise.h"

namespace tandem::model {
namespace {

/// Bytes of the two groups of activations that share memory, per row.
size_t attention_row_bytes(const ModelConfig& c, DType dtype) {
  const int64_t q = c.q_dim(), kv = c.kv_dim();
  return static_cast<size_t>(q + 2 * kv + q + q) * dtype_bytes(dtype);
}

size_t ffn_row_bytes(const ModelConfig& c, DType dtype) {
  return static_cast<size_t>(3 * int64_t{c.ffn_dim}) * dtype_bytes(dtype);
}

size_t block_bytes(const ModelConfig& c, const Llama::Options& o) {
  return static_cast<size_t>(o.max_rows) *
         std::max(attention_row_bytes(c, o.dtype), ffn_row_bytes(c, o.dtype));
}

}  // namespace

void Llama::plan(const ModelConfig& c, const Options& o, const WeightSource& source,
                 MemoryPlan& plan) {
  const auto rows = static_cast<size_t>(o.max_rows), head = static_cast<size_t>(o.max_logit_rows);
  const auto dim = static_cast<size_t>(c.dim), vocab = static_cast<size_t>(c.vocab_size);
  Weights::plan(c, o.dtype, source, plan);
  ops::RopeTable::plan(o.max_position, c.head_dim, plan);
  plan.add("activations/residual", rows * dim * sizeof(float));
  plan.add("activations/normed", rows * dim * dtype_bytes(o.dtype));
  plan.add("activations/block", block_bytes(c, o));
  plan.add("activations/head_rows", head * dim * sizeof(float));
  plan.add("activations/head_in", head * dim * dtype_bytes(o.dtype));
  plan.add("activations/logits", head * vocab * sizeof(float));
  plan.add("workspace/linear", Weights::workspace_bytes(c, o.dtype, o.max_rows, o.max_logit_rows));
}

kv::Geometry geometry_of(const ModelConfig& c, DType dtype) {
  return {.n_layers = c.n_layers, .n_heads = c.n_heads, .n_kv_heads = c.n_kv_heads,
          .head_dim = c.head_dim, .sliding_window = c.sliding_window,
          .sliding_window_from = c.sliding_window_from, .dtype = dtype};
}

Llama::Llama(const ModelConfig& c, const Options& o, std::unique_ptr<WeightSource> source,
             Arena& arena, const std::function<void(double share)>& on_load)
    : config_(c),
      options_(o),
      source_(std::move(source)),
      weights_(Weights::load(c, o.dtype, *source_, arena, {o.interrupted, on_load})),
      rope_(c.rope, o.max_position, c.head_dim, arena),
      residual_(static_cast<float*>(arena.take("activations/residual"))),
      normed_(arena.take("activations/normed")),
      block_(static_cast<char*>(arena.take("activations/block"))),
      head_in_(arena.take("activations/head_in")),
      head_rows_(static_cast<float*>(arena.take("activations/head_rows"))),
      logits_(static_cast<float*>(arena.take("activations/logits"))),
      workspace_(static_cast<std::byte*>(arena.take("workspace/linear")),
                 arena.plan().find("workspace/linear")->bytes) {}

void Llama::forward(std::span<const int32_t> tokens, const kv::Step& step, kv::Cache& cache) {
  n_rows_ = step.n_rows;
  TANDEM_CHECK(static_cast<int64_t>(tokens.size()) == n_rows_ && n_rows_ <= options_.max_rows,
               "{} tokens, {} rows, at most {}", tokens.size(), n_rows_, options_.max_rows);
  if (n_rows_ == 0) return;
  source_->embed(tokens, residual_);
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    attention_block(layer, step, cache);
    ffn_block(layer);
  }
}

void Llama::attention_block(int layer, const kv::Step& step, kv::Cache& cache) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t q_dim = config_.q_dim(), qkv_dim = q_dim + 2 * int64_t{config_.kv_dim()};
  const size_t bytes = dtype_bytes(options_.dtype);
  const Tensor x(residual_, DType::f32, {n_rows_, config_.dim});
  const Tensor normed = act(normed_, n_rows_, config_.dim);
  const Tensor qkv = act(block_, n_rows_, qkv_dim);
  char* q_at = block_ + qkv.bytes();
  char* out_at = q_at + static_cast<size_t>(n_rows_ * q_dim) * bytes;
  const Tensor q(q_at, options_.dtype, {n_rows_, config_.n_heads, config_.head_dim});
  const Tensor out(out_at, options_.dtype, {n_rows_, config_.n_heads, config_.head_dim});

  poll(options_.interrupted);
  ops::rms_norm(normed, x, w.attn_norm, static_cast<float>(config_.rms_eps));
  ops::linear(qkv, normed, w.qkv, ops::Accumulate::no, workspace_);
  ops::rope_kv(q, cache.k(layer), cache.v(layer), qkv, rope_, step.arrays());
  poll(options_.interrupted);
  cache.attend(layer, step, out, q);
  poll(options_.interrupted);
  ops::linear(x, act(out_at, n_rows_, q_dim), w.wo, ops::Accumulate::yes, workspace_);
}

void Llama::ffn_block(int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const Tensor x(residual_, DType::f32, {n_rows_, config_.dim});
  const Tensor normed = act(normed_, n_rows_, config_.dim);
  const Tensor gate_up = act(block_, n_rows_, 2 * int64_t{config_.ffn_dim});
  const Tensor ffn = act(block_ + gate_up.bytes(), n_rows_, config_.ffn_dim);

  poll(options_.interrupted);
  ops::rms_norm(normed, x, w.ffn_norm, static_cast<float>(config_.rms_eps));
  ops::linear(gate_up, normed, w.gate_up, ops::Accumulate::no, workspace_);
  poll(options_.interrupted);
  ops::silu_mul(ffn, gate_up);
  ops::linear(x, ffn, w.w_down, ops::Accumulate::yes, workspace_);
}

Tensor Llama::logits(std::span<const int32_t> rows) {
  const auto n = static_cast<int64_t>(rows.size());
  TANDEM_CHECK(n <= options_.max_logit_rows, "{} logit rows, at most {}", n,
               options_.max_logit_rows);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    TANDEM_CHECK(row >= 0 && row < n_rows_, "logits of row {} of {}", row, n_rows_);
    std::memcpy(head_rows_ + i * config_.dim, residual_ + row * config_.dim,
                static_cast<size_t>(config_.dim) * sizeof(float));
  }
  const Tensor normed = act(head_in_, n, config_.dim);
  const Tensor out(logits_, DType::f32, {n, config_.vocab_size});
  ops::rms_norm(normed, {head_rows_, DType::f32, {n, config_.dim}}, weights_.out_norm,
                static_cast<float>(config_.rms_eps));
  ops::linear(out, normed, weights_.lm_head, ops::Accumulate::no, workspace_);
  return out;
}

}  // namespace tandem::model
