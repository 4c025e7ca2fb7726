#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/key_rows.h"
#include "ops/selection.h"

namespace tandem::kv {

/// The query heads of one KV head (or some of them) at one row of a step.
struct KeyQuery {
  int layer = 0;
  int slot = 0;
  int row = 0;       // of the step
  int position = 0;  // of the row; it may see tokens 0 .. position
  int kv_head = 0;
  KeyRows keys;        // of the sequence under the KV head
  int first_head = 0;  // of all query heads
  int n_heads = 0;
  const void* q = nullptr;  // [n_heads, head_dim] of the keys' dtype

  /// Reads queries from the h-th of these heads on.
  void read_q(size_t h, std::span<float> out) const {
    const size_t head_bytes = keys.head_dim() * dtype_bytes(keys.dtype());
    read_vector(static_cast<const char*>(q) + h * head_bytes, keys.dtype(), out);
  }
};

/// Weights and mean values that stand for keys which are in no list
/// (kernels/code/tail_means.h); none without rows.
struct TailMeans {
  std::span<const MeanRows> rows;
  const float* masses = nullptr;  // of all rows in turn, relative to exp(origin)
  float origin = 0;
};

/// What one query head reads, in pieces of disjoint keys.
struct KeyList {
  std::vector<KeySegment> segments;
  float q_norm = 0, q_center = 0;  // for segments with norms (kernels/gather/attend_list.h)
  int n_static = 0;                // keys of the lists that are read whatever the query
  int n_before = 0;                // keys that are read for the list before it already
  double index_bytes = 0;          // read from the policy's own data to make the list
  TailMeans tail;                  // in addition to the segments
  float error = -1;  // of the sum of weights, relative, not passed in 95 of 100 cases; < 0: unknown

  int n_keys() const {
    int n = 0;
    for (const KeySegment& s : segments) n += s.n;
    return n;
  }
};

/// What extend steps have read since the start. Counts are summed over rows, query heads and the
/// layers where a selector chose.
struct KeyUsage {
  double queries = 0;      // rows x sparse layers x query heads
  double visible = 0;      // keys that full attention would have read
  double selected = 0;     // keys of the lists
  double fixed = 0;        // sinks, recent and generated tokens
  double index_bytes = 0;  // of the policies' own data
  double error = 0;        // of lists whose error is known, summed
  double with_error = 0;   // such lists
  double key_bytes = 0;    // of keys and values, once where lists of a group have them together;
                         // of lists of drafted rows of a sequence, once where any of them has them
  /// Of keys and values in the layers without a selection: what each row of a chain reads, but what
  /// a tree reads only once, for its rows look at the same text together.
  double dense_bytes = 0;

  /// Share of the visible keys that a query head attended to beyond the fixed ones.
  double selected_share() const { return visible > 0 ? selected / visible : 0; }
  double fixed_share() const { return visible > 0 ? fixed / visible : 0; }
  /// Mean error bound of the lists that have one; 0 without.
  double mean_error() const { return with_error > 0 ? error / with_error : 0; }
  double bytes() const { return index_bytes + key_bytes + dense_bytes; }
  KeyUsage plus(const KeyUsage& other) const {
    return {.queries = queries + other.queries,
            .visible = visible + other.visible,
            .selected = selected + other.selected,
            .fixed = fixed + other.fixed,
            .index_bytes = index_bytes + other.index_bytes,
            .error = error + other.error,
            .with_error = with_error + other.with_error,
            .key_bytes = key_bytes + other.key_bytes,
            .dense_bytes = dense_bytes + other.dense_bytes};
  }
  /// Counts since `before`.
  KeyUsage since(const KeyUsage& before) const {
    return {.queries = queries - before.queries,
            .visible = visible - before.visible,
            .selected = selected - before.selected,
            .fixed = fixed - before.fixed,
            .index_bytes = index_bytes - before.index_bytes,
            .error = error - before.error,
            .with_error = with_error - before.with_error,
            .key_bytes = key_bytes - before.key_bytes,
            .dense_bytes = dense_bytes - before.dense_bytes};
  }
};

class PagedStore;

/// Where the keys of lists have copies: those of slot s are the tokens of sequence first_slot + s
/// of a store.
struct ListedCopies {
  const PagedStore* store = nullptr;  // null: there are none
  int first_slot = 0;
};

/// Chooses keys, once for every row and KV head. Called by several threads at once.
class KeySelector {
 public:
  virtual ~KeySelector() = default;
  /// Bytes of one thread's scratch, 64-byte aligned.
  virtual size_t scratch_bytes() const = 0;
  /// Whether a query has to have all heads of its KV head: their lists go by all of them.
  virtual bool takes_groups() const { return false; }
  /// Fills a list for each head of the query; `scratch` keeps them alive until the next call.
  virtual void select_keys(const KeyQuery& query, std::byte* scratch,
                           std::span<KeyList> lists) const = 0;
  /// Where lists of a layer name rows of copies and not tokens.
  virtual ListedCopies copies(int /*layer*/) const { return {}; }
  /// Table of log inclusion probabilities by cosine, for lists with norms; empty without.
  virtual std::span<const float> log_u() const { return {}; }
};

}  // namespace tandem::kv
