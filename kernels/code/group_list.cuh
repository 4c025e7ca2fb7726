#pragma once
// The scratch of a set that the heads of a KV head share.
#include "kernels/code/coded_list.cuh"

namespace tandem::coded {

/// Where what a scan kept is, of region r from r * kRegionKeys on: keys, and under the same places
/// the scores of all heads, `width` a place.
struct GroupRegions {
  float *scores, *masses, *references;  // masses of head h from h * mass_stride on
  int64_t mass_stride;
  int width;
  uint16_t* keys;  // their numbers in the region
  int32_t* counts;
  // Of all regions, one after the other.
  uint32_t *numbers, *orders;  // keys, and their ranks' orders

  __device__ GroupRegions(const ChooseCodedParams& p, const CodedList& first)
      : scores(p.scratch.group_scores +
               first.set(p) * p.scratch.key_stride * shared_scores(p.n_heads / p.n_kv_heads)),
        masses(p.masses == nullptr ? nullptr : p.masses + first.local * p.mass_stride),
        references(p.scratch.references + first.local),
        mass_stride(p.mass_stride),
        width(shared_scores(p.n_heads / p.n_kv_heads)),
        keys(p.scratch.group_keys + first.set(p) * p.scratch.key_stride),
        counts(p.scratch.counts + first.local * p.scratch.region_stride),
        numbers(p.scratch.number + first.local * p.scratch.key_stride),
        // The list of a second head has no numbers.
        orders(numbers + p.scratch.key_stride) {}
};

}  // namespace tandem::coded
