#pragma once
#include <cstdint>
#include <span>

namespace tandem::kv {

/// Removes ids that are in `excluded`, and their biases; both lists ascend. Returns how many stay.
int drop_excluded(int32_t* ids, float* bias, int n, std::span<const int32_t> excluded);

/// Stratified sampling of n keys from first_id on: one from every run of `stratum` keys, with bias
/// log(stratum). ids, bias: room for n. Returns how many were drawn.
int sample_uniform(int n, int first_id, double stratum, uint64_t key, int32_t* ids, float* bias);

}  // namespace tandem::kv
