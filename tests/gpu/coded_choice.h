#pragma once
// A choice of keys on a GPU.
#include "gpu/coded_case.h"

namespace tandem::test::coded {

/// What the GPU chose for all rows of a case.
struct Choice {
  std::vector<int32_t> ids, count;
  std::vector<float> masses, origin;
  std::vector<DeviceCodeQuery> queries;
  std::vector<int8_t> q;
  std::vector<float> references;                          // of heads that share a set
  std::vector<float> tail_scores, threshold, exact_mass;  // of others
  int64_t stride, mass_stride, score_stride;

  std::vector<int32_t> list(int number) const {
    const auto first = ids.begin() + number * stride;
    return {first, first + count[at(number)]};
  }
};

inline Choice choose(const Case& c) {
  const int64_t keys = (c.max_keys + kRegionKeys - 1) / kRegionKeys * kRegionKeys,
                most = most_masses(static_cast<int>(keys)), regions = keys / kRegionKeys;
  const int lists = c.n_lists(), stride = kSinks + c.max_keys;
  const DeviceBuffer ids(at(int64_t{lists} * stride) * 4), count(at(lists) * 4),
      masses(at(lists * most) * 4), origin(at(lists) * 4),
      queries(at(lists) * sizeof(DeviceCodeQuery)), q8(at(int64_t{lists} * c.dims)),
      scanned(at(lists * keys) * sizeof(KeptKey)), counts(at(lists * regions) * 4),
      orders(at(lists * keys) * 4), numbers(at(lists * keys) * 4), references(at(lists) * 4),
      group_scores(at(lists * keys * shared_scores(c.x.group)) * 4),
      tail_scores(at(lists * keys) * 4), threshold(at(lists) * 4), exact_mass(at(lists) * 4);
  ops::choose_coded(
      {.ids = ids.as<int32_t>(),
       .count = count.as<int32_t>(),
       .stride = stride,
       .masses = masses.as<float>(),
       .origin = origin.as<float>(),
       .mass_stride = most,
       .clusters = {.ids = c.x.by_cluster ? c.cluster_ids.as<uint8_t>() : nullptr,
                    .id_block_stride = c.x.n_kv_heads * c.cluster_room,
                    .id_head_stride = c.cluster_room},
       .tail_scores = c.x.shared || c.x.by_cluster ? nullptr : tail_scores.as<float>(),
       .threshold = threshold.as<float>(),
       .exact_mass = exact_mass.as<float>(),
       .codes = c.codes(),
       .blocks = c.block.as<int32_t>(),
       .ends = c.end.as<int32_t>(),
       .max_blocks = c.max_blocks,
       .begin = kSinks,
       .q = c.q.raw(),
       .dtype = c.x.dtype,
       .scale = 1 / std::sqrt(static_cast<float>(c.x.d)),
       .slot = c.slot.as<int32_t>(),
       .row_begin = c.begins.as<int32_t>(),
       .n_seqs = static_cast<int>(c.x.indexed.size()),
       .n_heads = c.n_heads,
       .n_kv_heads = c.x.n_kv_heads,
       .first_row = 0,
       .n_rows = c.n_rows + c.x.padding,
       .max_keys = c.max_keys,
       .refine = c.x.refine,
       .exact = c.x.exact,
       .least_exact = 64,
       .mass = c.x.mass,
       .shared = c.x.shared,
       .scratch = {.queries = queries.as<DeviceCodeQuery>(),
                   .q = q8.as<int8_t>(),
                   .scanned = scanned.as<KeptKey>(),
                   .counts = counts.as<int32_t>(),
                   .orders = orders.as<uint32_t>(),
                   .keys = numbers.as<uint32_t>(),
                   .key_stride = keys,
                   .region_stride = regions,
                   .references = references.as<float>(),
                   .group_scores = group_scores.as<float>()}},
      queue().stream());
  return {ids.vector<int32_t>(),
          count.vector<int32_t>(),
          masses.vector<float>(),
          origin.vector<float>(),
          queries.vector<DeviceCodeQuery>(),
          q8.vector<int8_t>(),
          references.vector<float>(),
          tail_scores.vector<float>(),
          threshold.vector<float>(),
          exact_mass.vector<float>(),
          stride,
          most,
          keys};
}

}  // namespace tandem::test::coded
