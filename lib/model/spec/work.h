#pragma once
#include <cstdint>

#include "base/weight_format.h"
#include "model/spec/config.h"

namespace tandem::model {

/// Operations (a multiply-add is two) that dense layers do for one token, the head not included.
double layer_flops(const ModelConfig& c);
/// Bytes of all weights: matrices as `stored`, norms and biases as numbers.
int64_t weight_bytes(const ModelConfig& c, const WeightFormat& stored);
/// Parameters that every step reads, and their bytes: all but the embedding's, of which it reads a
/// row a token, where the head has separate ones.
double step_params(const ModelConfig& c);
double step_bytes(const ModelConfig& c, const WeightFormat& stored);
/// Parameters, embedding and head among them, that a step uses which reads a share of the FFN's
/// channels, and with `all_gates` every row of gate; over those of the whole model. Norms and
/// biases are left out; a tied embedding counts once.
/// source   Sirius (arXiv 2409.03856), the density d_s of a sparse model
double param_density(const ModelConfig& c, double channels, bool all_gates);
/// The head's, for one row of logits.
double head_flops(const ModelConfig& c);
/// Attention's over the visible pairs of query and key: 2 d for the score and 2 d for the value, a
/// head.
double attention_flops(const ModelConfig& c, double pairs);

/// Pairs of a dense prefill of `context` tokens in one layer with a window (0 = none).
double prefill_pairs(int64_t context, int window);
/// The same summed over all layers.
double prefill_pairs(const ModelConfig& c, int64_t context);

}  // namespace tandem::model
