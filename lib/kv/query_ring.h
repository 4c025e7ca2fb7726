#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kv/paged_store.h"
#include "kv/step.h"
#include "tensor/arena.h"

namespace tandem::kv {

/// The newest queries of every sequence, for policies that choose by them. A row's query is written
/// where its key would be: at its token, modulo the ring. Rows that are not committed are written
/// over by those that follow, and accepted paths of trees move as their keys do.
class QueryRing {
 public:
  struct Spec {
    int n_layers = 0;
    int n_heads = 0;
    int head_dim = 0;
    DType dtype = DType::bf16;
    int max_slots = 0;
    int window = 0;          // committed queries that are held in any case
    int required = 0;        // of them, those that a restored sequence must bring
    int max_draft_rows = 0;  // rows of one sequence that may be kept in part, and Step::ahead
    Device device = {};
    bool read_on_host = false;  // by policies that choose keys there, though `device` is a GPU

    bool empty() const { return window == 0; }
    int capacity() const { return window + max_draft_rows; }
    size_t row_bytes() const {
      return static_cast<size_t>(n_heads) * static_cast<size_t>(head_dim) * dtype_bytes(dtype);
    }
    size_t slot_bytes() const {
      return static_cast<size_t>(n_layers) * static_cast<size_t>(capacity()) * row_bytes();
    }
  };
  static void plan(const Spec& spec, MemoryPlan& plan);
  /// exec     where the queries are: the device of the spec
  QueryRing(const Spec& spec, Arena& arena, const Exec& exec = {});

  const Spec& spec() const { return spec_; }
  const Exec& exec() const { return exec_; }
  /// The tokens whose queries are held, rows included that are not committed.
  int begin(int slot) const { return at(slot).begin; }
  int end(int slot) const { return at(slot).end; }
  /// Makes a slot's queries those that `row` reads, where it reads them on the host; waits for the
  /// queue.
  void fetch(int slot) const;
  /// Queries of a token from begin(slot) on under a layer, [n_heads, head_dim].
  const std::byte* row(int slot, int layer, int token) const;
  /// The queries of a slot under a layer: that of token t at row t % capacity().
  const std::byte* rows(int slot, int layer) const { return place(slot, layer, 0); }

  /// Notes that a step was laid out, whose rows' queries will be written. Of one that is ahead as
  /// many more tokens count as held at the end, and as not held at the beginning.
  void expect(const Step& step);
  /// Writes the queries of a step's rows, as many of the last as have room; on a GPU work that a
  /// graph may record.
  /// shapes   q [R, n_heads, head_dim]
  void write(int layer, const Step& step, const Tensor& q);
  /// Writes tokens [token, token + n) of a slot from the host's memory, as a step would.
  /// shapes   rows [n, n_heads, head_dim]
  void write(int slot, int layer, int token, int n, const std::byte* rows);
  /// Copies tokens [token, token + n), which must be held, to the host's memory; from a GPU the
  /// copy has arrived when its queue has been waited for.
  /// shapes   rows [n, n_heads, head_dim]
  void read(int slot, int layer, int token, int n, std::byte* rows) const;
  /// Moves the queries of accepted paths as PagedStore does their keys.
  void move_paths(const PagedStore::AcceptedPaths& paths, const Step& step);
  void fork(int from, int to);
  /// The slot's next sequence begins without queries.
  void release(int slot) { at(slot) = {}; }

 private:
  struct Held {
    int begin = 0, end = 0;  // tokens, uncommitted ones included
  };
  Held& at(int slot) { return held_[static_cast<size_t>(slot)]; }
  const Held& at(int slot) const { return held_[static_cast<size_t>(slot)]; }
  std::byte* place(int slot, int layer, int token) const;
  QueryRings rings() const;
  /// Notes that n tokens from `token` on are held.
  void hold(int slot, int token, int n);

  Spec spec_;
  Exec exec_;
  std::byte* rows_;               // [slots, layers, capacity, n_heads, head_dim]
  std::byte* fetched_ = nullptr;  // [layers, capacity, n_heads, head_dim] on the host
  std::vector<Held> held_;
};

}  // namespace tandem::kv
