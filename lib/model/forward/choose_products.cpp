// Which kernels the products of a model run on, chosen before they first run.
#include <algorithm>

#include "model/forward/transformer.h"
#include "ops/elementwise.h"
#include "ops/linear_choices.h"
#include "ops/loading.h"

namespace tandem::model {

void Transformer::fill_random(const Tensor& t) {
  ops::fill_random(t.raw(), t.dtype(), {.n = t.elements()}, exec_.stream());
}

void Transformer::choose_one(const Tensor& y, const Tensor& x,
                             std::span<const ops::PackedWeights* const> same_shape,
                             ops::Accumulate accumulate, const ops::LinearNeighbours& around) {
  poll(options_.interrupted);
  fill_random(x);
  ops::tune_linear(y, x, same_shape, accumulate, around, workspace_, exec_.stream());
}

void Transformer::choose_products(int64_t wanted) {
  // As many as a choice is for.
  const int64_t rows = std::min<int64_t>(ops::rows_bucket(wanted), options_.max_rows);
  if (!exec_.on_gpu() || rows == 0 || chosen_.contains(rows)) return;
  if (weights_.stream) weights_.stream->settle(*exec_.queue);
  const Tensor x(residual_, DType::f32, {rows, config_.dim}, options_.device);
  const Tensor normed = act(normed_, rows, config_.dim);
  const int64_t qkv_dim = config_.q_dim() + 2 * int64_t{config_.kv_dim()};
  const auto norm = [&](size_t i, Stream stream) {
    ops::rms_norm(normed, x, norms(static_cast<int>(i % weights_.layers.size())).attn,
                  static_cast<float>(config_.rms_eps), stream);
  };
  fill_random(x);
  choose_one(act(block_, rows, qkv_dim), normed, weights_.on_device(Role::qkv), ops::Accumulate::no,
             {.before = norm});
  const StreamTarget sum = stream_target(0, Role::o, rows);
  choose_one(sum.y, act(block_, rows, config_.q_dim()), weights_.on_device(Role::o),
             sum.accumulate);
  choose_ffn_products(rows, Role::gate_up, Role::down);
  if (sets_) choose_ffn_products(rows, Role::rest_gate_up, Role::rest_down);
  chosen_.insert(rows);
}

void Transformer::choose_ffn_products(int64_t rows, Role gate_up_of, Role down_of) {
  const std::vector<const ops::PackedWeights*> uppers = weights_.on_device(gate_up_of);
  const std::vector<const ops::PackedWeights*> lowers = weights_.on_device(down_of);
  const int64_t n_channels = lowers.front()->in();
  const Tensor x(residual_, DType::f32, {rows, config_.dim}, options_.device);
  const Tensor normed = act(normed_, rows, config_.dim);
  const Tensor gate_up = act(block_, rows, 2 * n_channels);
  // Where a forward has it: after the halves of all channels.
  const Tensor ffn =
      act(block_ + act(block_, rows, 2 * int64_t{config_.ffn_dim}).bytes(), rows, n_channels);
  const auto norm = [&](size_t i, Stream stream) {
    ops::rms_norm(normed, x, norms(static_cast<int>(i % weights_.layers.size())).ffn,
                  static_cast<float>(config_.rms_eps), stream);
  };
  const StreamTarget sum = stream_target(0, Role::down, rows);
  const auto down = [&](size_t i, Stream stream) {
    ops::linear(sum.y, ffn, *lowers[i], sum.accumulate, workspace_, stream);
  };
  choose_one(sum.y, ffn, lowers, sum.accumulate);
  if (options_.trainable.any())  // gate and up are kept then
    choose_one(gate_up, normed, uppers, ops::Accumulate::no, {.before = norm});
  poll(options_.interrupted);
  fill_random(x);  // sums have grown
  ops::tune_gated(ffn, gate_up, normed, uppers, config_.kinds.front().ffn.gate,
                  {.before = norm, .after = down}, workspace_, exec_.stream());
}

void Transformer::choose_logit_products(int64_t wanted, const Tensor& scratch) {
  const int64_t rows =
      std::min<int64_t>({ops::rows_bucket(wanted), options_.max_logit_rows, scratch.rows()});
  if (!exec_.on_gpu() || rows == 0 || chosen_logits_.contains(rows)) return;
  const ops::PackedWeights* const lm_head[] = {&weights_.lm_head};
  choose_one({scratch.raw(), DType::f32, {rows, config_.head_rows()}, options_.device},
             act(head_in_, rows, config_.dim), lm_head, ops::Accumulate::no);
  chosen_logits_.insert(rows);
}

}  // namespace tandem::model
