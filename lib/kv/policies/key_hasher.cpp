#include "kv/policies/key_hasher.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kv/policies/lsh_tables.h"

namespace tandem::kv {

KeyHasher::KeyHasher(const recipe::Lsh& spec, const Bounds& bounds, HeadGrid grid, int capacity,
                     bool appends, Device device)
    : spec_(spec),
      geometry_(bounds.geometry),
      max_seqs_(bounds.max_seqs),
      grid_(grid),
      capacity_(capacity),
      appends_(appends),
      device_(device),
      projections_(lsh_projections(spec, bounds.geometry.head_dim)) {}

size_t KeyHasher::block_elements() const {
  return hash_block_bytes(spec_, capacity_) / sizeof(uint16_t);
}

size_t KeyHasher::center_floats(int n_slots) const {
  return grid_.cells(n_slots) * static_cast<size_t>(geometry_.head_dim);
}

size_t KeyHasher::columns() const { return static_cast<size_t>(projections_.stride()); }

/// Tokens that are appended at a time.
int KeyHasher::append_tokens() const { return appends_ ? std::min(capacity_, 8192) : 0; }

void KeyHasher::plan(MemoryPlan& plan, const std::string& prefix) const {
  if (grid_.n_sparse == 0) return;
  const auto heads = static_cast<size_t>(geometry_.n_kv_heads);
  const int d = geometry_.head_dim, n = static_cast<int>(columns());
  plan.add(prefix + ".centers", center_floats(max_seqs_) * sizeof(float), device_);
  plan.add(prefix + ".center_sums", kMeanParts * heads * static_cast<size_t>(d) * sizeof(double),
           device_);
  plan.add(prefix + ".projections", projections_.bytes(), device_);
  plan.add(prefix + ".projection_columns",
           columns() * static_cast<size_t>(projection_dims(d)) * sizeof(float), device_);
  plan.add(prefix + ".projection_parts", projection_parts(d, n) * sizeof(ProjectionPart), device_);
  plan.add(prefix + ".build_scratch",
           heads * static_cast<size_t>(spec_.tables) * static_cast<size_t>(append_tokens()) *
               sizeof(uint16_t),
           device_);
}

void KeyHasher::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse == 0) return;
  centers_ = static_cast<float*>(arena.take(prefix + ".centers"));
  sums_ = static_cast<double*>(arena.take(prefix + ".center_sums"));
  w_ = static_cast<float*>(arena.take(prefix + ".projections"));
  columns_ = static_cast<float*>(arena.take(prefix + ".projection_columns"));
  parts_ = static_cast<ProjectionPart*>(arena.take(prefix + ".projection_parts"));
  if (appends_) codes_ = static_cast<uint16_t*>(arena.take(prefix + ".build_scratch"));
}

void KeyHasher::run_on(const Exec& exec) {
  exec_ = exec;
  if (grid_.n_sparse == 0) return;
  const int d = geometry_.head_dim, n = static_cast<int>(columns());
  std::vector<float> w(projections_.bytes() / sizeof(float)),
      turned(columns() * static_cast<size_t>(projection_dims(d)));
  std::vector<ProjectionPart> parts(projection_parts(d, n));
  projections_.draw(w.data(), static_cast<uint64_t>(spec_.seed));
  longest_ = split_projections({.parts = parts.data(),
                                .columns = turned.data(),
                                .w = w.data(),
                                .w_stride = projections_.stride(),
                                .d = d,
                                .n_columns = n});
  exec.queue->copy_in(w_, w.data(), w.size() * sizeof(float));
  exec.queue->copy_in(columns_, turned.data(), turned.size() * sizeof(float));
  exec.queue->copy_in(parts_, parts.data(), parts.size() * sizeof(ProjectionPart));
}

HashRule KeyHasher::rule() const {
  return {.w = w_,
          .w_stride = projections_.stride(),
          .parts = parts_,
          .columns = columns_,
          .longest = longest_,
          .tables = spec_.tables,
          .code_bits = spec_.bits};
}

KeyHasher::Place KeyHasher::place(uint16_t* tables, float* norms) const {
  return {.tables = {.at = tables,
                     .head_stride = static_cast<int64_t>(block_elements()),
                     .capacity = capacity_,
                     .tables = spec_.tables,
                     .code_bits = spec_.bits},
          .norms = norms,
          .norm_stride = capacity_};
}

float* KeyHasher::centers(int slot, int ordinal) const {
  return centers_ + grid_.cell(slot, ordinal, 0) * static_cast<size_t>(geometry_.head_dim);
}

void KeyHasher::copy_center(int from, int to) {
  if (centers_ != nullptr)
    exec_.queue->copy_within(centers(to, 0), centers(from, 0), center_floats(1) * sizeof(float));
}

void KeyHasher::set_center(int slot, int ordinal, const Keys& keys, int begin, int end) {
  ops::mean_keys({.mean = centers(slot, ordinal),
                  .sums = sums_,
                  .k_pool = keys.pool,
                  .pages = keys.pages,
                  .tokens = {begin, end},
                  .n_kv_heads = geometry_.n_kv_heads,
                  .d = geometry_.head_dim,
                  .dtype = geometry_.dtype},
                 exec_.stream());
}

void KeyHasher::add(int slot, int ordinal, const Keys& keys, const TokenIndex::Piece& piece,
                    Range heads, const Place& to) {
  const bool fresh = piece.offset == 0;
  TANDEM_CHECK(fresh || appends_, "cannot append to a block from token {}", piece.offset);
  const int64_t n_offsets = int64_t{spec_.tables} * ((int64_t{1} << spec_.bits) + 1);
  const int at_a_time = fresh ? piece.n : append_tokens();
  for (int begin = 0; begin < piece.n; begin += at_a_time) {
    const int n = std::min(at_a_time, piece.n - begin), held = piece.offset + begin;
    // Codes of a new block lie where the ids will.
    const KeyHashes codes =
        fresh ? KeyHashes{to.tables.at + heads.begin * to.tables.head_stride + n_offsets,
                          to.tables.head_stride, capacity_}
              : KeyHashes{codes_, int64_t{spec_.tables} * n, n};
    ops::hash_keys({.codes = codes,
                    .norms = to.norms + held,
                    .norm_stride = to.norm_stride,
                    .k_pool = keys.pool,
                    .pages = keys.pages,
                    .centers = centers(slot, ordinal),
                    .rule = rule(),
                    .token = piece.token + begin,
                    .n = n,
                    .n_kv_heads = geometry_.n_kv_heads,
                    .d = geometry_.head_dim,
                    .heads = heads,
                    .dtype = geometry_.dtype},
                   exec_.stream());
    ops::hash_append({.block = to.tables, .codes = codes, .n_old = held, .n = n, .heads = heads},
                     exec_.stream());
  }
}

}  // namespace tandem::kv
