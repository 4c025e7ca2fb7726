#include "kv/policies/device_lsh.h"

#include <algorithm>

#include "kv/policies/lsh_tables.h"

namespace tandem::kv {

DeviceLsh::Scratch::Scratch(std::byte* base, const DeviceLsh& lsh, int n_rows) : cutter(base) {
  const auto lists = static_cast<size_t>(n_rows) * static_cast<size_t>(lsh.geometry().n_heads);
  const auto blocks = lists * static_cast<size_t>(lsh.index_.max_blocks());
  const auto keys = lists * static_cast<size_t>(lsh.bounds_.max_tokens);
  codes = cutter.take<uint16_t>(lists * static_cast<size_t>(lsh.spec_.tables));
  hits = cutter.take<uint16_t>(blocks * static_cast<size_t>(lsh.index_.capacity()));
  queries = cutter.take<float>(2 * lists);
  norms = cutter.take<float>(keys);
  n_hits = cutter.take<int32_t>(blocks);
  count = cutter.take<int32_t>(lists);
  ids = cutter.take<int32_t>(keys);
}

DeviceLsh::DeviceLsh(const recipe::Lsh& spec, const Bounds& bounds, const TokenIndex& index,
                     HeadGrid grid)
    : spec_(spec),
      bounds_(bounds),
      index_(index),
      grid_(grid),
      hasher_(spec, bounds, grid, index.capacity(), /*appends=*/true, bounds.device) {}

void DeviceLsh::plan(MemoryPlan& plan, const std::string& prefix) const {
  if (grid_.n_sparse == 0) return;
  const size_t cells = grid_.cells(index_.n_blocks());
  const Device device = bounds_.device;
  plan.add(prefix + ".tables", cells * hasher_.block_elements() * sizeof(uint16_t), device);
  plan.add(prefix + ".norms", cells * static_cast<size_t>(index_.capacity()) * sizeof(float),
           device);
  plan.add(prefix + ".log_u", (LshTables::kLogUIntervals + 1) * sizeof(float), device);
  hasher_.plan(plan, prefix);
}

void DeviceLsh::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse == 0) return;
  tables_ = static_cast<uint16_t*>(arena.take(prefix + ".tables"));
  norms_ = static_cast<float*>(arena.take(prefix + ".norms"));
  log_u_ = static_cast<float*>(arena.take(prefix + ".log_u"));
  hasher_.allocate(arena, prefix);
}

void DeviceLsh::run_on(const Exec& exec, std::span<const float> log_u) {
  exec_ = exec;
  hasher_.run_on(exec);
  if (grid_.n_sparse > 0) exec.queue->copy_in(log_u_, log_u.data(), log_u.size_bytes());
}

KeyHasher::Place DeviceLsh::place_of(int block, int ordinal) const {
  const size_t cell = grid_.cell(block, ordinal, 0);
  return hasher_.place(tables_ + cell * hasher_.block_elements(),
                       norms_ + cell * static_cast<size_t>(index_.capacity()));
}

void DeviceLsh::index_tokens(const TokenIndex::Work& work, std::span<const int> layers,
                             const DeviceIndex& device_index, const PagedStore& store) {
  const auto& [slot, length, pieces, fresh, ordinals] = work;
  const auto keys_of = [&](int ordinal) -> KeyHasher::Keys {
    return {store.k(layers[static_cast<size_t>(ordinal)]).raw(), device_index.pages()};
  };
  for (int ordinal = ordinals.begin; fresh && ordinal < ordinals.end; ++ordinal)
    hasher_.set_center(slot, ordinal, keys_of(ordinal), index_.begin(), index_.end(slot));
  for (const TokenIndex::Piece& piece : pieces) {
    if (piece.copy_of >= 0 && ordinals.begin == 0 && grid_.n_sparse > 0) {
      const KeyHasher::Place to = place_of(piece.block, 0), from = place_of(piece.copy_of, 0);
      exec_.queue->copy_within(to.tables.at, from.tables.at,
                               grid_.cells(1) * hasher_.block_elements() * sizeof(uint16_t));
      exec_.queue->copy_within(
          to.norms, from.norms,
          grid_.cells(1) * static_cast<size_t>(index_.capacity()) * sizeof(float));
    }
    for (int ordinal = ordinals.begin; ordinal < ordinals.end; ++ordinal)
      hasher_.add(slot, ordinal, keys_of(ordinal), piece, {0, geometry().n_kv_heads},
                  place_of(piece.block, ordinal));
  }
}

void DeviceLsh::choose(int ordinal, const ChoosingRows& choosing, const void* q,
                       const DeviceIndex& device_index, const Scratch& s) const {
  const Geometry& g = geometry();
  const KeyHasher::Place first = place_of(0, ordinal);
  ops::hash_queries({.codes = s.codes,
                     .queries = s.queries,
                     .q = q,
                     .centers = hasher_.centers(0, ordinal),
                     .center_stride = hasher_.center_stride(),
                     .rule = hasher_.rule(),
                     .choosing = choosing,
                     .n_heads = g.n_heads,
                     .n_kv_heads = g.n_kv_heads,
                     .d = g.head_dim,
                     .dtype = g.dtype},
                    exec_.stream());
  ops::collide({.ids = s.ids,
                .norms = s.norms,
                .count = s.count,
                .id_stride = bounds_.max_tokens,
                .hits = s.hits,
                .n_hits = s.n_hits,
                .codes = s.codes,
                .blocks = first.tables,
                .block_stride = static_cast<int64_t>(grid_.cells(1) * hasher_.block_elements()),
                .key_norms = first.norms,
                .norm_block_stride = static_cast<int64_t>(grid_.cells(1)) * index_.capacity(),
                .ends = device_index.ends(),
                .table = device_index.blocks(),
                .choosing = choosing,
                .begin = index_.begin(),
                .max_blocks = device_index.max_blocks(),
                .min_hits = spec_.min_hits,
                .n_heads = g.n_heads,
                .n_kv_heads = g.n_kv_heads},
               exec_.stream());
}

QueryLists DeviceLsh::lists(const Scratch& s) const {
  return {.ids = s.ids,
          .count = s.count,
          .stride = bounds_.max_tokens,
          .most = bounds_.max_tokens,
          .weights = {.norms = s.norms,
                      .queries = s.queries,
                      .log_u = log_u_,
                      .log_u_intervals = LshTables::kLogUIntervals}};
}

}  // namespace tandem::kv
