#pragma once
#include <array>
#include <cstdint>
#include <utility>

#include "ops/linear.h"

namespace tandem::model {

/// Norm weights of one layer, on the device of its matrices.
struct LayerNorms {
  const float* attn = nullptr;  // [dim]
  const float* ffn = nullptr;   // [dim]
  const float* q = nullptr;     // [head_dim], null where the model does not normalise heads
  const float* k = nullptr;     // [head_dim], as q
};

/// What of a layer is used together, in the order of a forward; where it lies is decided part by
/// part. Channels of an FFN may be divided in a set, which drafts read, and the rest.
enum class LayerPart : uint8_t { attention, ffn, rest };
inline constexpr std::array kLayerParts = {LayerPart::attention, LayerPart::ffn, LayerPart::rest};

/// The matrices of a layer as they are packed.
enum class LayerMatrix : uint8_t { qkv, wo, gate_up, w_down };
inline constexpr int kLayerMatrices = 4;
/// Whether its products enter the residual stream; of these, adapters of slices change columns.
constexpr bool ends_in_stream(LayerMatrix of) {
  return of == LayerMatrix::wo || of == LayerMatrix::w_down;
}

/// Packed weights of one layer. qkv stacks wq, wk, wv; gate_up stacks w_gate and w_up: one product
/// each instead of three and two. Of a part that passes through a LayerStream nothing is here.
struct LayerWeights {
  ops::PackedWeights qkv;      // [(n_heads + 2 n_kv_heads) head_dim, dim]
  ops::PackedWeights wo;       // [dim, n_heads head_dim]
  ops::PackedWeights gate_up;  // [2 ffn_dim, dim], or of the set alone
  ops::PackedWeights w_down;   // [dim, ffn_dim], as gate_up
  // Of the channels outside the set; empty where they are not divided:
  ops::PackedWeights rest_gate_up;  // [2 (ffn_dim - set), dim]
  ops::PackedWeights rest_down;     // [dim, ffn_dim - set]
  LayerNorms norms;

  const ops::PackedWeights& matrix(LayerMatrix of) const {
    constexpr std::array kMatrices = {&LayerWeights::qkv, &LayerWeights::wo, &LayerWeights::gate_up,
                                      &LayerWeights::w_down};
    return this->*kMatrices[static_cast<size_t>(of)];
  }
  ops::PackedWeights& matrix(LayerMatrix of) {
    return const_cast<ops::PackedWeights&>(std::as_const(*this).matrix(of));
  }
};

}  // namespace tandem::model
