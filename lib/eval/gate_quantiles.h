#pragma once
#include <functional>
#include <span>
#include <vector>

#include "decode/engine.h"
#include "eval/perplexity.h"
#include "ffn/thresholds.h"

namespace tandem::eval {

/// An engine of measure_thresholds for windows of at most `context` tokens.
decode::EngineSpec gates_engine_spec(DType compute, int context);
/// Adds what it holds in addition to the engine, for any length of text.
void plan_thresholds(const model::ModelConfig& config, const decode::EngineSpec& spec,
                     MemoryPlan& plan);

struct MeasuredThresholds {
  ffn::Thresholds thresholds;  // keep: the share of gates that reached them; no values: broken off
  int64_t n_tokens = 0;
};
/// Finds in each layer the largest number that a share `keep` of all |act(g)| reaches, over all
/// tokens of the windows. Bins of a histogram are a thousandth wide; the number may be that much
/// below the quantile.
/// source   CATS (arXiv 2404.08763), which counts 5,000 bins of one width
/// result   empty values when `progress` (given the windows' tokens done) returned false
/// errors   kind memory, numeric: a gate is no number
MeasuredThresholds measure_thresholds(decode::Engine& engine, std::span<const Window> windows,
                                      double keep,
                                      const std::function<bool(int64_t done)>& progress);

}  // namespace tandem::eval
