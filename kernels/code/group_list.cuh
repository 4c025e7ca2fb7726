#pragma once
// The scratch of a set that the heads of a KV head share.
#include "kernels/code/coded_list.cuh"

namespace tandem::coded {

/// Where what a scan kept is, of region r from r * kRegionKeys on: keys, and under the same places
/// the scores of each head.
struct GroupRegions {
  float *scores, *masses, *references;  // of head h from h times a stride on
  int64_t stride, mass_stride;
  uint16_t* keys;  // their numbers in the region
  int32_t* counts;
  // Of all regions, one after the other.
  uint32_t *numbers, *orders;  // keys, and their ranks' orders

  __device__ GroupRegions(const ChooseCodedParams& p, const CodedList& first)
      : scores(p.scratch.group_scores + first.local * p.scratch.key_stride),
        masses(p.masses == nullptr ? nullptr : p.masses + first.local * p.mass_stride),
        references(p.scratch.references + first.local),
        stride(p.scratch.key_stride),
        mass_stride(p.mass_stride),
        keys(p.scratch.group_keys + first.local * p.scratch.key_stride),
        counts(p.scratch.counts + first.local * p.scratch.region_stride),
        numbers(p.scratch.number + first.local * p.scratch.key_stride),
        // The list of a second head has no numbers.
        orders(numbers + p.scratch.key_stride) {}
};

}  // namespace tandem::coded
