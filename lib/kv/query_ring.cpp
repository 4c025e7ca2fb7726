#include "kv/query_ring.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/paging.h"

namespace tandem::kv {
namespace {

constexpr const char *kName = "kv/queries", *kFetchedName = "kv/queries on the host";

bool reads_copy(const QueryRing::Spec& s) {
  return s.read_on_host && s.device.kind == Device::Kind::cuda;
}

}  // namespace

void QueryRing::plan(const Spec& spec, MemoryPlan& plan) {
  plan.add(kName, static_cast<size_t>(spec.max_slots) * spec.slot_bytes(), spec.device);
  if (reads_copy(spec)) plan.add(kFetchedName, spec.slot_bytes());
}

QueryRing::QueryRing(const Spec& spec, Arena& arena, const Exec& exec)
    : spec_(spec),
      exec_(exec),
      rows_(static_cast<std::byte*>(arena.take(kName))),
      held_(static_cast<size_t>(spec.max_slots)) {
  if (reads_copy(spec)) fetched_ = static_cast<std::byte*>(arena.take(kFetchedName));
}

QueryRings QueryRing::rings() const {
  return {.rows = rows_,
          .n_layers = spec_.n_layers,
          .capacity = spec_.capacity(),
          .row_bytes = static_cast<int>(spec_.row_bytes())};
}

std::byte* QueryRing::place(int slot, int layer, int token) const {
  return rows_ + ring_offset(rings(), slot, layer, token);
}

const std::byte* QueryRing::row(int slot, int layer, int token) const {
  TANDEM_CHECK(token >= at(slot).begin && token < at(slot).end,
               "the query of token {} is not in the ring, which holds {} to {}", token,
               at(slot).begin, at(slot).end);
  return fetched_ == nullptr ? place(slot, layer, token)
                             : fetched_ + ring_offset(rings(), 0, layer, token);
}

void QueryRing::fetch(int slot) const {
  if (fetched_ == nullptr) return;
  exec_.queue->copy_out(fetched_, place(slot, 0, 0), spec_.slot_bytes());
  exec_.queue->wait();
}

void QueryRing::hold(int slot, int token, int n) {
  if (n == 0) return;
  Held& held = at(slot);
  if (token < held.begin || token > held.end) held.begin = token;
  held.end = token + n;
  held.begin = std::max(held.begin, held.end - spec_.capacity());
}

void QueryRing::expect(const Step& step) {
  for (int b = 0; b < step.n_seqs; ++b) {
    const auto i = static_cast<size_t>(b);
    const int before = step.tentative_of(b);
    TANDEM_CHECK(!step.drafted || before + step.rows_of(b) <= spec_.max_draft_rows,
                 "{} draft rows of a sequence exceed the planned {}", before + step.rows_of(b),
                 spec_.max_draft_rows);
    hold(step.slot[i], step.base[i] + before, step.rows_of(b) + step.ahead);
  }
}

void QueryRing::write(int layer, const Step& step, const Tensor& q) {
  ops::write_queries({.rings = rings(),
                      .q = q.raw(),
                      .slot = step.arrays.slot,
                      .row_begin = step.arrays.row_begin,
                      .base = step.arrays.base,
                      .tentative = step.arrays.tentative,
                      .n_seqs = step.arrays.n_seqs,
                      .n_rows = step.arrays.n_rows,
                      .layer = layer},
                     exec_.stream());
}

void QueryRing::write(int slot, int layer, int token, int n, const std::byte* rows) {
  hold(slot, token, n);  // every layer says the same
  for (int t = std::max(token, at(slot).begin); t < token + n; ++t) {
    const std::byte* from = rows + static_cast<size_t>(t - token) * spec_.row_bytes();
    if (exec_.on_gpu())
      exec_.queue->copy_in(place(slot, layer, t), from, spec_.row_bytes());
    else
      std::memcpy(place(slot, layer, t), from, spec_.row_bytes());
  }
}

void QueryRing::read(int slot, int layer, int token, int n, std::byte* rows) const {
  for (int t = token; t < token + n; ++t, rows += spec_.row_bytes()) {
    if (exec_.on_gpu())
      exec_.queue->copy_out(rows, place(slot, layer, t), spec_.row_bytes());
    else
      std::memcpy(rows, row(slot, layer, t), spec_.row_bytes());
  }
}

void QueryRing::move_paths(const PagedStore::AcceptedPaths& p, const Step& step) {
  ops::move_queries({.rings = rings(),
                     .path = p.path,
                     .n_accepted = p.n_accepted,
                     .position = p.position,
                     .slot = step.arrays.slot,
                     .n_seqs = p.n_seqs,
                     .n_nodes = p.n_nodes,
                     .n_nodes_held = p.n_nodes_held,
                     .max_moves = p.max_depth},
                    exec_.stream());
}

void QueryRing::fork(int from, int to) {
  at(to) = at(from);
  if (exec_.on_gpu())
    exec_.queue->copy_within(place(to, 0, 0), place(from, 0, 0), spec_.slot_bytes());
  else
    std::memcpy(place(to, 0, 0), place(from, 0, 0), spec_.slot_bytes());
}

}  // namespace tandem::kv
