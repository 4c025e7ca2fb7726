#pragma once
#include <cstdint>

#include "base/types.h"
#include "kernels/ffn/gate.h"
#include "ops/score_scale.h"

namespace tandem::model {

/// Norms of q and k before they are rotated: of each head, or of a whole row.
enum class QkNorm : uint8_t { none, head, row };

struct AttentionSpec {
  int window = 0;         // tokens that a token attends to, its own included; 0: all
  int rope = 0;           // index of ModelConfig::ropes; -1: heads do not turn
  ops::ScoreScale scale;  // {}: that of the size of a head
  QkNorm qk_norm = QkNorm::none;
  bool qkv_bias = false, o_bias = false;
  bool sink = false;  // a learned score of no key, per query head
  bool operator==(const AttentionSpec&) const = default;
};

struct FfnSpec {
  enum class Kind : uint8_t { dense, experts } kind = Kind::dense;
  Gate gate = Gate::silu;
  bool bias = false;  // gate, up and down have one
  float clamp = 0;    // bound of gate and up before the activation; 0: none
  bool operator==(const FfnSpec&) const = default;
};

struct NormSpec {
  bool pre = true, post = false;  // before and after attention, and before and after the FFN
  bool unit_offset = false;       // the factor is 1 + weight
  bool operator==(const NormSpec&) const = default;
};

/// One kind of layer. Heads and widths are those of the model, since a page of keys has one shape.
struct LayerSpec {
  AttentionSpec attention;
  FfnSpec ffn;
  NormSpec norms;
  float residual = 1;  // what a branch is multiplied by before it is added to the stream
  /// True if products enter the stream through a norm or with a multiplier, hence through a buffer.
  bool has_branch() const { return norms.post || residual != 1; }
  bool operator==(const LayerSpec&) const = default;
};

struct EmbeddingSpec {
  float scale = 1;
  bool rounded = false;  // to the type of activations
  /// The scale in a model that computes in that type.
  float scale_in(DType type) const;
  bool operator==(const EmbeddingSpec&) const = default;
};

struct HeadSpec {
  bool tied = false;  // its matrix is the embedding
  float scale = 1, softcap = 0;
  bool operator==(const HeadSpec&) const = default;
};

}  // namespace tandem::model
