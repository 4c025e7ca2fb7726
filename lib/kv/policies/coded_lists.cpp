#include "kv/policies/coded_lists.h"

#include <algorithm>
#include <cmath>

#include "kv/policies/scratch.h"
#include "ops/selection.h"

namespace tandem::kv {
struct CodedLists::Memory {
  ScratchCutter cutter;
  int32_t *ids, *count;
  float *masses, *origin;
  ChooseCodedScratch scratch;
  int64_t mass_stride;

  Memory(std::byte* base, const CodedLists& c) : cutter(base) {
    const auto heads = static_cast<size_t>(c.bounds_.geometry.n_heads);
    const size_t lists = static_cast<size_t>(c.rows_at_once_) * heads;
    const size_t regions = static_cast<size_t>(c.codes_.score_room()) / kRegionKeys + 1;
    const size_t keys = regions * kRegionKeys, runs = keys / kMeanKeys;
    const size_t sets = lists / static_cast<size_t>(c.heads_a_list());
    ids = cutter.take<int32_t>(sets * static_cast<size_t>(c.most_));
    count = cutter.take<int32_t>(sets);
    masses = cutter.take<float>(c.has_tail() ? lists * runs : 0);
    origin = cutter.take<float>(lists);
    const size_t sharing = c.heads_a_list() > 1 ? lists : 0, alone = lists - sharing;
    scratch = {.queries = cutter.take<DeviceCodeQuery>(lists),
               .q = cutter.take<int8_t>(lists * c.codes_.dims()),
               .scores = cutter.take<float>(alone * keys),
               .keys = cutter.take<uint16_t>(alone * keys),
               .counts = cutter.take<int32_t>(lists * regions),
               .kept = cutter.take<float>(lists * keys),
               .number = cutter.take<uint32_t>(lists * keys),
               .key_stride = static_cast<int64_t>(keys),
               .region_stride = static_cast<int64_t>(regions),
               .references = cutter.take<float>(sharing),
               .group_scores = cutter.take<float>(sharing * keys),
               .group_keys = cutter.take<uint16_t>(sharing * keys)};
    mass_stride = static_cast<int64_t>(runs);
  }
};

size_t CodedLists::row_bytes(const Bounds& bounds, const KeyCodes& codes) {
  return static_cast<size_t>(bounds.geometry.n_heads) * static_cast<size_t>(codes.score_room()) *
         (2 * sizeof(float) + sizeof(uint16_t) + sizeof(uint32_t));
}

CodedLists::CodedLists(const recipe::Hybrid& spec, const Bounds& bounds, const KeyCodes& codes,
                       const TokenIndex& index, int rows_at_once)
    : spec_(spec),
      bounds_(bounds),
      codes_(codes),
      begin_(index.begin()),
      max_keys_(std::max(0, index.wanted_end(0, bounds.max_tokens, true) - index.begin())),
      rows_at_once_(rows_at_once) {
  const int chosen =
      std::max(spec.kLeastExact, static_cast<int>(std::lround(spec.exact * max_keys_)));
  most_ = max_keys_ > 0 ? begin_ + std::min(max_keys_, chosen) : 0;
}

void CodedLists::plan(MemoryPlan& plan, const std::string& prefix) const {
  if (most_ > 0)
    plan.add(prefix + ".choosing", Memory(nullptr, *this).cutter.bytes(), bounds_.device);
}

void CodedLists::allocate(Arena& arena, const std::string& prefix) {
  if (most_ > 0) memory_ = static_cast<std::byte*>(arena.take(prefix + ".choosing"));
}

void CodedLists::choose(int ordinal, const Step& step, const Tensor& q,
                        const DeviceIndex& device_index, AttendPlan& plan) const {
  const Memory m(memory_, *this);
  const Geometry& g = bounds_.geometry;
  ChooseCodedParams p{.ids = m.ids,
                      .count = m.count,
                      .stride = most_,
                      .masses = has_tail() ? m.masses : nullptr,
                      .origin = m.origin,
                      .mass_stride = m.mass_stride,
                      .codes = codes_.device_codes(ordinal),
                      .blocks = device_index.blocks(),
                      .ends = device_index.ends(),
                      .max_blocks = device_index.max_blocks(),
                      .begin = begin_,
                      .q = q.raw(),
                      .dtype = g.dtype,
                      .slot = step.arrays.slot,
                      .row_begin = step.arrays.row_begin,
                      .n_seqs = step.arrays.n_seqs,
                      .n_heads = g.n_heads,
                      .n_kv_heads = g.n_kv_heads,
                      .first_row = 0,
                      .n_rows = 0,
                      .max_keys = max_keys_,
                      .refine = spec_.refine,
                      .exact = spec_.exact,
                      .least_exact = spec_.kLeastExact,
                      .shared = heads_a_list() > 1,
                      .scratch = m.scratch};
  plan.make_lists = [p](Range rows, const PagedStore& store) mutable {
    p.first_row = rows.begin;
    p.n_rows = rows.end - rows.begin;
    ops::choose_coded(p, store.exec().stream());
  };
  plan.list_rows = rows_at_once_;
  plan.lists = {
      .ids = m.ids, .count = m.count, .stride = most_, .most = most_, .heads = heads_a_list()};
  if (!has_tail()) return;
  plan.tails = codes_.device_tails(ordinal, device_index);
  plan.tails.masses = m.masses;
  plan.tails.origin = m.origin;
  plan.tails.mass_stride = m.mass_stride;
}

}  // namespace tandem::kv
