#include "kv/policies/lsh_tables.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "kv/log_u.h"
#include "kv/policies/scratch.h"

namespace tandem::kv {
namespace {

// Tables hashed together: their columns fill whole words whatever the bits of a code.
constexpr int kTableGroup = 64;
constexpr int kRows = 256;  // keys projected at once
// Tables whose codes are cut from the bits together: each pass over the bits costs a cache line a
// key.
constexpr int kCodeTables = 8;

}  // namespace

size_t hash_block_bytes(const recipe::Lsh& spec, int capacity) {
  const size_t offsets = (size_t{1} << spec.bits) + 1;
  return static_cast<size_t>(spec.tables) * (offsets + static_cast<size_t>(capacity)) *
         sizeof(uint16_t);
}

Projections lsh_projections(const recipe::Lsh& spec, int head_dim) {
  return {head_dim, (spec.tables + kTableGroup - 1) / kTableGroup * kTableGroup * spec.bits};
}

/// New keys of one block and KV head, to be hashed into some of its tables.
struct LshTables::BuildTask {
  const TokenIndex::Piece& piece;
  KeyRows keys;                   // of the sequence
  std::span<const float> center;  // of the keys
  int ordinal, kv_head;
  Range tables;
};

/// One thread's memory for hashing keys.
struct LshTables::BuildScratch {
  ScratchCutter cutter;
  float *rows, *norms;
  uint64_t* bits;
  uint16_t* codes;
  uint32_t* append;

  BuildScratch(std::byte* base, int head_dim, int capacity, int code_bits)
      : cutter(base),
        rows(cutter.take<float>(kRows * static_cast<size_t>(head_dim))),
        norms(cutter.take<float>(kRows)),
        bits(cutter.take<uint64_t>(static_cast<size_t>(capacity) * static_cast<size_t>(code_bits))),
        codes(cutter.take<uint16_t>(kCodeTables * static_cast<size_t>(capacity))),
        append(
            cutter.take<uint32_t>((size_t{1} << code_bits) + 1 + static_cast<size_t>(capacity))) {}
};

LshTables::LshTables(const recipe::Lsh& spec, const Geometry& geometry, const TokenIndex& index,
                     HeadGrid grid)
    : spec_(spec),
      geometry_(geometry),
      index_(index),
      grid_(grid),
      words_(static_cast<size_t>(spec.tables * spec.bits + 63) / 64),
      projections_(lsh_projections(spec, geometry.head_dim)),
      log_u_(log_u_table(spec.bits, spec.tables, spec.min_hits, spec.u_floor, kLogUIntervals)) {}

size_t LshTables::scratch_bytes() const {
  return BuildScratch(nullptr, geometry_.head_dim, index_.capacity(), spec_.bits).cutter.bytes();
}

void LshTables::plan(MemoryPlan& plan, const std::string& prefix) const {
  plan.add(prefix + ".tables", memory().size());
  plan.add(prefix + ".norms", norm_memory().size());
  projections_.plan(plan, prefix);
  plan.add(prefix + ".build_scratch", scratch_bytes() * static_cast<size_t>(max_threads()));
}

std::span<std::byte> LshTables::memory() const {
  return {reinterpret_cast<std::byte*>(tables_), cells() * block_bytes()};
}

std::span<std::byte> LshTables::norm_memory() const {
  return {reinterpret_cast<std::byte*>(norms_),
          cells() * static_cast<size_t>(index_.capacity()) * sizeof(float)};
}

void LshTables::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse == 0) return;
  tables_ = static_cast<char*>(arena.take(prefix + ".tables"));
  norms_ = static_cast<float*>(arena.take(prefix + ".norms"));
  projections_.allocate(arena, prefix, static_cast<uint64_t>(spec_.seed));
  scratch_ = static_cast<std::byte*>(arena.take(prefix + ".build_scratch"));
}

HashBlock LshTables::block(int block, int ordinal, int kv_head, int n_tokens) const {
  auto* offsets =
      reinterpret_cast<uint16_t*>(tables_ + grid_.cell(block, ordinal, kv_head) * block_bytes());
  const size_t n_offsets = static_cast<size_t>(spec_.tables) * ((size_t{1} << spec_.bits) + 1);
  return {offsets, offsets + n_offsets, index_.capacity(), n_tokens};
}

void LshTables::copy_block(int from, int to) {
  const size_t cells = grid_.cells(1), norm_floats = cells * static_cast<size_t>(index_.capacity());
  std::memcpy(tables_ + static_cast<size_t>(to) * cells * block_bytes(),
              tables_ + static_cast<size_t>(from) * cells * block_bytes(), cells * block_bytes());
  std::memcpy(norms_ + static_cast<size_t>(to) * norm_floats,
              norms_ + static_cast<size_t>(from) * norm_floats, norm_floats * sizeof(float));
}

void LshTables::index_tokens(const TokenIndex::Work& work, std::span<const int> layers,
                             const KeyCenters& centers, const PagedStore& store) {
  const int heads = geometry_.n_kv_heads;
  const int groups = (spec_.tables + kTableGroup - 1) / kTableGroup;
  const int first_ordinal = work.ordinals.begin, end_ordinal = work.ordinals.end;
  for (const TokenIndex::Piece& piece : work.pieces) {
    if (piece.copy_of >= 0 && first_ordinal == 0) copy_block(piece.copy_of, piece.block);
    const int n_tasks = (end_ordinal - first_ordinal) * heads * groups;
    parallel_for(n_tasks, [&](int i, int thread) {
      const int ordinal = first_ordinal + i / groups / heads, head = i / groups % heads;
      const int first = i % groups * kTableGroup;
      const Range tables{first, std::min(first + kTableGroup, spec_.tables)};
      build({.piece = piece,
             .keys = store.keys(layers[static_cast<size_t>(ordinal)], work.slot, head),
             .center = {centers.at(work.slot, ordinal, head),
                        static_cast<size_t>(geometry_.head_dim)},
             .ordinal = ordinal,
             .kv_head = head,
             .tables = tables},
            scratch_ + static_cast<size_t>(thread) * scratch_bytes());
    });
  }
}

void LshTables::copy_out(const uint16_t* tables, const float* norms, const TokenIndex::Piece& piece,
                         int ordinal, int kv_head, cuda::Queue& queue) const {
  const auto n = static_cast<size_t>(piece.n), capacity = static_cast<size_t>(index_.capacity());
  const auto n_tables = static_cast<size_t>(spec_.tables);
  const size_t n_offsets = n_tables * ((size_t{1} << spec_.bits) + 1);
  const HashBlock to = block(piece.block, ordinal, kv_head, piece.n);
  queue.copy_out(to.offsets, tables, n_offsets * sizeof(uint16_t));
  queue.copy_rows_out(to.ids, tables + n_offsets, capacity * sizeof(uint16_t), n * sizeof(uint16_t),
                      n_tables);
  queue.copy_out(norms_ + grid_.cell(piece.block, ordinal, kv_head) * capacity, norms,
                 n * sizeof(float));
}

void LshTables::build(const BuildTask& task, std::byte* scratch) {
  const BuildScratch s(scratch, geometry_.head_dim, index_.capacity(), spec_.bits);
  const TokenIndex::Piece& piece = task.piece;
  const Range tables = task.tables;
  float* norms =
      norms_ +
      grid_.cell(piece.block, task.ordinal, task.kv_head) * static_cast<size_t>(index_.capacity()) +
      piece.offset;
  const int n_bits = (tables.end - tables.begin) * spec_.bits, words = (n_bits + 63) / 64;
  for (int begin = 0; begin < piece.n; begin += kRows) {
    const int n = std::min(kRows, piece.n - begin);
    read_centered(task.keys, piece.token + begin, n, task.center, s.rows, s.norms);
    if (tables.begin == 0)
      std::memcpy(norms + begin, s.norms, static_cast<size_t>(n) * sizeof(float));
    projections_.signs(s.rows, n, {tables.begin * spec_.bits, tables.end * spec_.bits},
                       s.bits + static_cast<int64_t>(begin) * words);
  }
  const HashBlock target = block(piece.block, task.ordinal, task.kv_head, piece.offset);
  for (int t = tables.begin; t < tables.end; t += kCodeTables) {
    // hash_codes counts tables from the first bit of the rows, hash_append from the block's first.
    const int in_group = t - tables.begin, n = std::min(kCodeTables, tables.end - t);
    hash_codes({.codes = s.codes - int64_t{in_group} * piece.n,
                .code_stride = piece.n,
                .bits = s.bits,
                .words = words,
                .code_bits = spec_.bits,
                .n_tokens = piece.n},
               {in_group, in_group + n});
    hash_append({.block = target,
                 .codes = s.codes - int64_t{t} * piece.n,
                 .code_stride = piece.n,
                 .code_bits = spec_.bits,
                 .n_new = piece.n,
                 .scratch = s.append},
                {t, t + n});
  }
}

void LshTables::hash_queries(const float* q, int n, uint64_t* bits, uint16_t* codes) const {
  projections_.signs(q, n, {0, spec_.tables * spec_.bits}, bits);
  for (int i = 0; i < n; ++i)
    hash_codes({.codes = codes + i * spec_.tables,
                .code_stride = 1,
                .bits = bits + static_cast<size_t>(i) * words_,
                .words = static_cast<int64_t>(words_),
                .code_bits = spec_.bits,
                .n_tokens = 1},
               {0, spec_.tables});
}

void LshTables::add_collisions(const KeyQuery& query, int ordinal, const uint16_t* codes,
                               uint8_t* counters, int32_t* ids, KeyList& list) const {
  for (int i = 0; i < static_cast<int>(index_.blocks(query.slot).size()); ++i) {
    const int n = probe(query.slot, i, ordinal, query.kv_head, codes, counters, ids);
    list.segments.push_back({ids, n, nullptr, norms(query.slot, i, ordinal, query.kv_head)});
    list.index_bytes += probe_bytes(index_.block_tokens(query.slot, i));
    ids += n;
  }
}

/// Tokens of the i-th block of a slot that collide with the query; returns how many.
int LshTables::probe(int slot, int i, int ordinal, int kv_head, const uint16_t* codes,
                     uint8_t* counters, int32_t* ids) const {
  const int id = index_.blocks(slot)[static_cast<size_t>(i)];
  return ops::hash_probe({.block = block(id, ordinal, kv_head, index_.block_tokens(slot, i)),
                          .codes = codes,
                          .tables = spec_.tables,
                          .code_bits = spec_.bits,
                          .min_hits = spec_.min_hits,
                          .first_id = index_.begin() + i * index_.capacity(),
                          .counters = counters,
                          .ids = ids});
}

/// Norms of the centred keys, such that token t's is at [t], for the tokens of the i-th block.
const float* LshTables::norms(int slot, int i, int ordinal, int kv_head) const {
  const int id = index_.blocks(slot)[static_cast<size_t>(i)];
  return norms_ + grid_.cell(id, ordinal, kv_head) * static_cast<size_t>(index_.capacity()) -
         (index_.begin() + i * index_.capacity());
}

/// Bytes of bucket bounds and ids that a probe of a block reads, expected: two cache lines and a
/// bucket a table.
double LshTables::probe_bytes(int n_tokens) const {
  // Buckets are uneven: 1.65 times the even share, measured on real and on synthetic keys.
  constexpr double kUnevenness = 1.65;
  const double bucket = kUnevenness * n_tokens / double(1 << spec_.bits);
  return spec_.tables * (128.0 + sizeof(uint16_t) * bucket);
}

double LshTables::expected_probe_bytes(int n) const {
  const int whole = n / kHashBlockTokens, rest = n % kHashBlockTokens;
  return whole * probe_bytes(kHashBlockTokens) + (rest > 0 ? probe_bytes(rest) : 0);
}

double LshTables::expected_share() const {
  // Keys at right angles collide with u(0); shares measured are 1.4 to 2 times that.
  constexpr double kMeasuredFactor = 1.8;
  const double at_right_angle = std::exp(double{log_u_[kLogUIntervals / 2]}) - spec_.u_floor;
  return std::min(1.0, kMeasuredFactor * at_right_angle);
}

}  // namespace tandem::kv
