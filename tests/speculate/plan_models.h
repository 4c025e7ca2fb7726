#pragma once
// Shapes of published models, and steps made up, for plans.
#include "speculate/plan/model_costs.h"
#include "speculate/plan/step_cost.h"

namespace tandem::testing {

inline speculate::ModelCosts shape(int layers, int dim, int heads, int kv_heads, int head_dim,
                                   int ffn, int vocab) {
  model::ModelConfig c;
  c.n_layers = layers;
  c.dim = dim;
  c.n_heads = heads;
  c.n_kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.ffn_dim = ffn;
  c.vocab_size = vocab;
  return speculate::costs_of(c, DType::bf16);
}

inline const speculate::ModelCosts kLlama2_7B = shape(32, 4096, 32, 32, 128, 11008, 32000);
inline const speculate::ModelCosts kLlama3_8B = shape(32, 4096, 32, 8, 128, 14336, 128256);
inline const speculate::ModelCosts kLlama3_70B = shape(80, 8192, 64, 8, 128, 28672, 128256);
inline const speculate::ModelCosts kLlama2_70B = shape(80, 8192, 64, 8, 128, 28672, 32000);
inline const speculate::ModelCosts kLlama3_1B = shape(16, 2048, 32, 8, 64, 8192, 128256);
inline const speculate::ModelCosts kLlama68M = shape(2, 768, 12, 12, 64, 3072, 32000);

/// Steps of chains.
/// verify   forwards over 2, 3, .. tokens
inline speculate::StepCost chain_steps(double plain, double draft, std::vector<double> verify,
                                       double rest = 0) {
  speculate::StepCost cost{
      .target = {{1}, {plain}}, .draft = {{1}, {draft}}, .overhead_ms = rest, .skip_deepest = true};
  for (const double ms : verify) {
    cost.target.tokens.push_back(cost.target.tokens.back() + 1);
    cost.target.ms.push_back(ms);
  }
  return cost;
}

}  // namespace tandem::testing
