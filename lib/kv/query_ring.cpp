#include "kv/query_ring.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tandem::kv {
namespace {

constexpr const char* kName = "kv/queries";

}  // namespace

void QueryRing::plan(const Spec& spec, MemoryPlan& plan) {
  plan.add(kName, static_cast<size_t>(spec.max_slots) * spec.slot_bytes());
}

QueryRing::QueryRing(const Spec& spec, Arena& arena)
    : spec_(spec),
      rows_(static_cast<std::byte*>(arena.take(kName))),
      held_(static_cast<size_t>(spec.max_slots)) {}

std::byte* QueryRing::place(int slot, int layer, int token) const {
  const size_t ring =
      static_cast<size_t>(slot) * static_cast<size_t>(spec_.n_layers) + static_cast<size_t>(layer);
  const auto capacity = static_cast<size_t>(spec_.capacity());
  return rows_ + (ring * capacity + static_cast<size_t>(token) % capacity) * spec_.row_bytes();
}

const std::byte* QueryRing::row(int slot, int layer, int token) const {
  TANDEM_CHECK(token >= at(slot).begin && token < at(slot).end,
               "query of token {}, held are {} to {}", token, at(slot).begin, at(slot).end);
  return place(slot, layer, token);
}

void QueryRing::write(int slot, int layer, int token, int n, const std::byte* rows) {
  if (n == 0) return;
  // Every layer of a step says the same here.
  Held& held = at(slot);
  if (token < held.begin || token > held.end) held.begin = token;
  held.end = token + n;
  held.begin = std::max(held.begin, held.end - spec_.capacity());
  for (int i = std::max(0, held.begin - token); i < n; ++i)
    std::memcpy(place(slot, layer, token + i), rows + static_cast<size_t>(i) * spec_.row_bytes(),
                spec_.row_bytes());
}

void QueryRing::write(int layer, const Step& step, const Tensor& q) {
  const auto* rows = static_cast<const std::byte*>(q.raw());
  for (int b = 0; b < step.n_seqs; ++b) {
    const auto i = static_cast<size_t>(b);
    const int before = step.tentative_of(b);
    TANDEM_CHECK(!step.drafted || before + step.rows_of(b) <= spec_.max_draft_rows,
                 "{} drafted rows of a sequence, planned for {}", before + step.rows_of(b),
                 spec_.max_draft_rows);
    write(step.slot[i], layer, step.base[i] + before, step.rows_of(b),
          rows + static_cast<size_t>(step.row_begin[i]) * spec_.row_bytes());
  }
}

void QueryRing::move_paths(const PagedStore::AcceptedPaths& p, const Step& step) {
  for (int b = 0; b < p.n_seqs; ++b) {
    const int slot = step.slot[static_cast<size_t>(b)], root = p.position[b] - 1;
    for (int i = 0; i < std::min(p.n_accepted[b], p.max_depth); ++i) {
      const int node = p.path[int64_t{b} * p.n_nodes + i];
      if (node >= p.n_nodes_held || node == i + 1) continue;
      // Nodes of a path ascend, so none is written over before it has moved.
      for (int layer = 0; layer < spec_.n_layers; ++layer)
        std::memcpy(place(slot, layer, root + i + 1), place(slot, layer, root + node),
                    spec_.row_bytes());
    }
  }
}

void QueryRing::fork(int from, int to) {
  at(to) = at(from);
  std::memcpy(place(to, 0, 0), place(from, 0, 0), spec_.slot_bytes());
}

}  // namespace tandem::kv
