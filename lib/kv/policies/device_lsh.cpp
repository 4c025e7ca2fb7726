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
      projections_(lsh_projections(spec, bounds.geometry.head_dim)) {}

size_t DeviceLsh::block_elements() const {
  return hash_block_bytes(spec_, index_.capacity()) / sizeof(uint16_t);
}

size_t DeviceLsh::center_floats(int n_slots) const {
  return grid_.cells(n_slots) * static_cast<size_t>(geometry().head_dim);
}

/// Tokens that enter the tables at a time.
int DeviceLsh::append_tokens() const { return std::min(index_.capacity(), 8192); }

void DeviceLsh::plan(MemoryPlan& plan, const std::string& prefix) const {
  if (grid_.n_sparse == 0) return;
  const size_t cells = grid_.cells(index_.n_blocks());
  const Device device = bounds_.device;
  plan.add(prefix + ".tables", cells * block_elements() * sizeof(uint16_t), device);
  plan.add(prefix + ".norms", cells * static_cast<size_t>(index_.capacity()) * sizeof(float),
           device);
  plan.add(prefix + ".centers", center_floats(bounds_.max_seqs) * sizeof(float), device);
  plan.add(prefix + ".projections", projections_.bytes(), device);
  plan.add(prefix + ".log_u", (LshTables::kLogUIntervals + 1) * sizeof(float), device);
  plan.add(prefix + ".build_scratch",
           static_cast<size_t>(geometry().n_kv_heads) * static_cast<size_t>(spec_.tables) *
               static_cast<size_t>(append_tokens()) * sizeof(uint16_t),
           device);
}

void DeviceLsh::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse == 0) return;
  tables_ = static_cast<uint16_t*>(arena.take(prefix + ".tables"));
  norms_ = static_cast<float*>(arena.take(prefix + ".norms"));
  centers_ = static_cast<float*>(arena.take(prefix + ".centers"));
  w_ = static_cast<float*>(arena.take(prefix + ".projections"));
  log_u_ = static_cast<float*>(arena.take(prefix + ".log_u"));
  codes_ = static_cast<uint16_t*>(arena.take(prefix + ".build_scratch"));
}

void DeviceLsh::run_on(const Exec& exec, std::span<const float> log_u) {
  exec_ = exec;
  if (grid_.n_sparse == 0) return;
  std::vector<float> w(projections_.bytes() / sizeof(float));
  projections_.draw(w.data(), static_cast<uint64_t>(spec_.seed));
  exec.queue->copy_in(w_, w.data(), projections_.bytes());
  exec.queue->copy_in(log_u_, log_u.data(), log_u.size_bytes());
}

HashRule DeviceLsh::rule() const {
  return {
      .w = w_, .w_stride = projections_.stride(), .tables = spec_.tables, .code_bits = spec_.bits};
}

HashBlocks DeviceLsh::tables_of(int block, int ordinal) const {
  return {.at = tables_ + grid_.cell(block, ordinal, 0) * block_elements(),
          .head_stride = static_cast<int64_t>(block_elements()),
          .capacity = index_.capacity(),
          .tables = spec_.tables,
          .code_bits = spec_.bits};
}

float* DeviceLsh::norms_of(int block, int ordinal) const {
  return norms_ + grid_.cell(block, ordinal, 0) * static_cast<size_t>(index_.capacity());
}

float* DeviceLsh::centers_of(int slot, int ordinal) const {
  return centers_ + grid_.cell(slot, ordinal, 0) * static_cast<size_t>(geometry().head_dim);
}

void DeviceLsh::copy_center(int from, int to) {
  if (centers_ != nullptr)
    exec_.queue->copy_within(centers_of(to, 0), centers_of(from, 0),
                             center_floats(1) * sizeof(float));
}

void DeviceLsh::index_tokens(const TokenIndex::Work& work, std::span<const int> layers,
                             const DeviceIndex& device_index, const PagedStore& store) {
  const auto& [slot, length, pieces, fresh, ordinals] = work;
  const Geometry& g = geometry();
  const Stream stream = exec_.stream();
  const auto keys_of = [&](int ordinal) {
    return store.k(layers[static_cast<size_t>(ordinal)]).raw();
  };
  for (int ordinal = ordinals.begin; fresh && ordinal < ordinals.end; ++ordinal)
    ops::mean_keys({.mean = centers_of(slot, ordinal),
                    .k_pool = keys_of(ordinal),
                    .pages = device_index.pages(),
                    .tokens = {index_.begin(), index_.end(work.slot)},
                    .n_kv_heads = g.n_kv_heads,
                    .d = g.head_dim,
                    .dtype = g.dtype},
                   stream);
  for (const TokenIndex::Piece& piece : pieces) {
    if (piece.copy_of >= 0 && ordinals.begin == 0 && grid_.n_sparse > 0) {
      exec_.queue->copy_within(tables_of(piece.block, 0).at, tables_of(piece.copy_of, 0).at,
                               grid_.cells(1) * block_elements() * sizeof(uint16_t));
      exec_.queue->copy_within(
          norms_of(piece.block, 0), norms_of(piece.copy_of, 0),
          grid_.cells(1) * static_cast<size_t>(index_.capacity()) * sizeof(float));
    }
    for (int begin = 0; begin < piece.n; begin += append_tokens())
      for (int ordinal = ordinals.begin; ordinal < ordinals.end; ++ordinal) {
        const int n = std::min(append_tokens(), piece.n - begin), held = piece.offset + begin;
        ops::hash_keys({.codes = codes_,
                        .norms = norms_of(piece.block, ordinal) + held,
                        .norm_stride = index_.capacity(),
                        .k_pool = keys_of(ordinal),
                        .pages = device_index.pages(),
                        .centers = centers_of(slot, ordinal),
                        .rule = rule(),
                        .token = piece.token + begin,
                        .n = n,
                        .n_kv_heads = g.n_kv_heads,
                        .d = g.head_dim,
                        .dtype = g.dtype},
                       stream);
        ops::hash_append({.block = tables_of(piece.block, ordinal),
                          .codes = codes_,
                          .n_old = held,
                          .n = n,
                          .n_kv_heads = g.n_kv_heads},
                         stream);
      }
  }
}

void DeviceLsh::choose(int ordinal, const ChoosingRows& choosing, const void* q,
                       const DeviceIndex& device_index, const Scratch& s) const {
  const Geometry& g = geometry();
  ops::hash_queries({.codes = s.codes,
                     .queries = s.queries,
                     .q = q,
                     .centers = centers_of(0, ordinal),
                     .center_stride = static_cast<int64_t>(center_floats(1)),
                     .rule = rule(),
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
                .blocks = tables_of(0, ordinal),
                .block_stride = static_cast<int64_t>(grid_.cells(1) * block_elements()),
                .key_norms = norms_of(0, ordinal),
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
