#pragma once
#include "bench/model_bench.h"
#include "tensor/memory_plan.h"

// Memory of the phases that measure parts of a layer, without a whole model.
namespace tandem::bench {

MemoryPlan linear_plan(const ModelCase& c, const model::ModelConfig& config);
MemoryPlan attention_plan(const ModelCase& c, const model::ModelConfig& config);

}  // namespace tandem::bench
