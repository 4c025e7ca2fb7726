#pragma once
#include <functional>
#include <optional>

#include "decode/fit/sizing.h"
#include "machine/hosted_plan.h"

namespace tandem::decode {

/// Decides who attends keys in host memory, and where their index lies, by the rates of this
/// machine, measured, or of the one that is planned for: the fastest way that fits.
/// length, batch  tokens of a sequence at its longest; sequences of a step
/// plan_of  the whole run by a cache whose attend and index are decided
/// result   none for keys in one place
/// errors   kind recipe, device, memory (no room to measure)
std::optional<machine::HostedPlan> decide_hosted(
    const EngineSizer& sizer, const ModelFiles& files, const recipe::Cache& cache, int length,
    int batch,
    const std::function<MemoryPlan(const recipe::Cache& decided, const Savings&)>& plan_of);

/// The same of an engine that reads by one cache, which gets the decided settings.
std::optional<machine::HostedPlan> decide_hosted(const EngineSizer& sizer, const ModelFiles& files,
                                                 EngineSpec& spec, int batch);

}  // namespace tandem::decode
