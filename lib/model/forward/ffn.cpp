// The FFN of a layer: of all channels, of listed ones, or of channels that are divided in a set and
// the rest.
#include "base/check.h"
#include "model/forward/transformer.h"
#include "ops/channels.h"
#include "ops/elementwise.h"
#include "ops/loading.h"

namespace tandem::model {

ReadKind Transformer::read_kind(const kv::Step& step) {
  if (!sets_ || !ffn::Channels::reads_lists(step)) return ReadKind::all;
  TANDEM_CHECK(step.n_seqs == 1, "{} sequences cannot share one set of hot neurons", step.n_seqs);
  const int64_t version = channels_->version(step.slot.front());
  if (version != set_version_) {
    std::vector<const int32_t*> lists;
    for (int layer = 0; layer < config_.n_layers; ++layer)
      lists.push_back(channels_->list_of(step.reading.channels, layer, step));
    sets_->bring(weights_, lists);
    set_version_ = version;
  }
  return ReadKind::set;
}

void Transformer::read_by(ffn::Channels& channels) {
  channels_ = &channels;
  if (weights_.stream || sets_) return;
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    channels.read_weights(layer, {w[Role::gate_up], w[Role::down]});
  }
}

bool Transformer::listed_ffn(int layer, const LayerWeights& w, const kv::Step& step) {
  if (channels_ == nullptr || !ffn::Channels::reads_lists(step)) return false;
  const LayerActivations shared = shared_activations();
  const Stream stream = exec_.stream();
  const bool after_gate = channels_->comes_after_gate(step);
  const Tensor normed = act(normed_, n_rows_, config_.dim);
  const Tensor gate = act(shared.gate_up, n_rows_, config_.ffn_dim);
  const Tensor ffn = act(shared.ffn, n_rows_, config_.ffn_dim);

  poll(options_.interrupted);
  ops::rms_norm(normed, residual(), norms(layer).ffn, static_cast<float>(config_.rms_eps), stream);
  if (after_gate) ops::gates(gate, normed, w[Role::gate_up], config_.layer(layer).ffn.gate, stream);
  const ops::ChannelList list = channels_->select(layer, step, after_gate ? gate : Tensor{});
  if (after_gate)
    ops::up_channels(ffn, gate, normed, w[Role::gate_up], list, stream);
  else
    ops::gated_channels(ffn, normed, w[Role::gate_up], config_.layer(layer).ffn.gate, list, stream);
  poll(options_.interrupted);
  into_stream(layer, Role::down, {}, [&](const Tensor& y, ops::Accumulate accumulate) {
    if (accumulate == ops::Accumulate::no) ops::clear(y.as<float>(), y.elements(), stream);
    ops::down_channels(y, ffn, w[Role::down], list, stream);
  });
  return true;
}

void Transformer::ffn_block(int layer, const LayerWeights& w, const kv::Step& step,
                            const LayerActivations& to) {
  if (listed_ffn(layer, w, step)) return;
  const bool observed = channels_ != nullptr && channels_->observes(step);
  const bool keeps_halves =
      to.gate_up != nullptr || (observed && channels_->observes_gate_up(step));
  const LayerActivations shared = shared_activations();
  const Tensor x = residual();
  const Tensor gate_up = gate_up_at(to.gate_up ? to.gate_up : shared.gate_up);
  const Tensor ffn = act(to.ffn ? to.ffn : shared.ffn, n_rows_, config_.ffn_dim);

  poll(options_.interrupted);
  keep(to.residual_mid, residual_);
  const auto eps = static_cast<float>(config_.rms_eps);
  const ops::LinearFusion fusion{
      .norm_weight = norms(layer).ffn, .norm_eps = eps, .gate = config_.layer(layer).ffn.gate};
  if (side_of(layer, Role::gate_up) != nullptr) {
    normed_linear(layer, Role::gate_up, gate_up, norms(layer).ffn, w[Role::gate_up], to.normed_mid);
    ops::gate_mul(ffn, gate_up, config_.layer(layer).ffn.gate, exec_.stream());
  } else if (!keeps_halves && fuses(w[Role::gate_up], n_rows_, fusion)) {
    ops::linear_fused(ffn, x, fusion, w[Role::gate_up], ops::Accumulate::no, exec_.stream());
  } else {
    void* const place = to.normed_mid != nullptr ? to.normed_mid : normed_;
    const Tensor normed = act(place, n_rows_, config_.dim);
    ops::rms_norm(normed, x, norms(layer).ffn, eps, exec_.stream());
    if (!keeps_halves) {
      ops::linear_gated(ffn, gate_up, normed, w[Role::gate_up], config_.layer(layer).ffn.gate,
                        workspace_, exec_.stream());
    } else {  // which need not leave the gate
      ops::linear(gate_up, normed, w[Role::gate_up], ops::Accumulate::no, workspace_,
                  exec_.stream());
      ops::gate_mul(ffn, gate_up, config_.layer(layer).ffn.gate, exec_.stream());
    }
  }
  if (observed)
    channels_->observe(layer, step, {.product = ffn, .gate_up = keeps_halves ? gate_up : Tensor{}});
  poll(options_.interrupted);
  into_stream(layer, Role::down, ffn, w[Role::down], to.down_out);
}

void Transformer::divided_ffn(int layer, const kv::Step& step) {
  TANDEM_CHECK(side_ == nullptr, "adapters are not supported with hot and cold neurons");
  const bool reads_all = !ffn::Channels::reads_lists(step);
  const bool observed = reads_all && channels_ != nullptr && channels_->observes(step);
  const LayerActivations shared = shared_activations();
  const Tensor gate_up = gate_up_at(shared.gate_up);
  const Tensor normed = act(normed_, n_rows_, config_.dim);
  const int64_t n_set = sets_->n_set(), n_rest = config_.ffn_dim - n_set;
  // Both parts' products, the rest's after the set's.
  const Tensor of_set = act(shared.ffn, n_rows_, n_set);
  const size_t aligned = (of_set.bytes() + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  const Tensor of_rest = act(static_cast<char*>(shared.ffn) + aligned, n_rows_, n_rest);
  const auto eps = static_cast<float>(config_.rms_eps);
  const ops::LinearFusion fusion{
      .norm_weight = norms(layer).ffn, .norm_eps = eps, .gate = config_.layer(layer).ffn.gate};

  poll(options_.interrupted);
  into_stream(layer, Role::down, {}, [&](const Tensor& y, ops::Accumulate accumulate) {
    with_part(layer, LayerPart::ffn, [&](const LayerWeights& w) {
      if (!reads_all && fuses(w[Role::gate_up], n_rows_, fusion)) {
        ops::linear_fused(of_set, residual(), fusion, w[Role::gate_up], ops::Accumulate::no,
                          exec_.stream());
      } else {
        ops::rms_norm(normed, residual(), norms(layer).ffn, eps, exec_.stream());
        ops::linear_gated(of_set, act(gate_up.raw(), n_rows_, 2 * n_set), normed, w[Role::gate_up],
                          config_.layer(layer).ffn.gate, workspace_, exec_.stream());
      }
      ops::linear(y, of_set, w[Role::down], accumulate, workspace_, exec_.stream());
    });
    if (!reads_all) return;
    with_part(layer, LayerPart::rest, [&](const LayerWeights& w) {
      ops::linear_gated(of_rest, act(gate_up.raw(), n_rows_, 2 * n_rest), normed,
                        w[Role::rest_gate_up], config_.layer(layer).ffn.gate, workspace_,
                        exec_.stream());
      ops::linear(y, of_rest, w[Role::rest_down], ops::Accumulate::yes, workspace_, exec_.stream());
    });
  });
  if (!observed) return;
  // Statistics know channels by their numbers.
  const int32_t* const channels = sets_->channels(layer);
  const Tensor product = act(gate_up.raw(), n_rows_, config_.ffn_dim);
  ops::scatter_columns(product, of_set, channels, exec_.stream());
  ops::scatter_columns(product, of_rest, channels + n_set, exec_.stream());
  channels_->observe(layer, step, {.product = product, .gate_up = {}});
}

}  // namespace tandem::model
