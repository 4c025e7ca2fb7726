#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "kv/paged_store.h"
#include "kv/step.h"
#include "recipe/sections.h"
#include "tensor/memory_plan.h"

namespace tandem::kv {

/// What attention needs to know of a model.
struct Geometry {
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int sliding_window = 0;       // the model's own, in tokens; 0 = none
  int sliding_window_from = 0;  // first layer that has it
  DType dtype = DType::bf16;

  int window(int layer) const { return layer >= sliding_window_from ? sliding_window : 0; }
};

/// A source over the paged store: rules on absolute key positions, evaluated per row in the kernel.
/// A row at position p sees key j if key_lo <= j < key_hi and (j < sinks or window == 0 or
/// p - j < window), and of the new rows those that chain or tree allow.
struct KeyRange {
  int32_t key_lo = 0;
  int32_t key_hi = std::numeric_limits<int32_t>::max();
  int32_t sinks = 0;
  int32_t window = 0;
  /// Rows beyond this position query as if they stood at it (kv-methods 1.6 b); -1 = true positions.
  int32_t q_position_max = -1;
};

/// Union of disjoint sources; the runtime merges their partial results.
struct AttendPlan {
  std::array<KeyRange, 4> sources;
  int n = 0;

  void add(const KeyRange& source) { sources[static_cast<size_t>(n++)] = source; }
};

/// What attention reads. Batched: every call serves all sequences of a step. README.md beside this
/// file gives the contract of each hook.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  /// Bytes beyond the shared store.
  virtual void plan(MemoryPlan&) const {}
  /// K and V of the step's rows are in the store; called after the layer's dense attention.
  virtual void on_prefill(int /*layer*/, const Step&, const PagedStore&) {}
  /// Which keys the rows of an extend step see. Reads persistent state, writes none.
  virtual void select(int layer, const Step&, const Tensor& q, AttendPlan&) = 0;
  /// `kept[b]` rows of each sequence are now part of it; old state may be dropped.
  virtual void commit(const Step&, std::span<const int> /*kept*/, PagedStore&) {}
  /// How many of the first tokens a row may need.
  virtual int sinks_needed() const { return 0; }
  /// How many of the newest tokens, its own included, a row may need beyond the sinks; older ones may
  /// be given back.
  virtual int recent_needed() const { return std::numeric_limits<int>::max(); }
  /// Keys that one new token of a sequence of `length` tokens reads in a layer, per KV head.
  virtual int keys_read(int layer, int length) const = 0;
};

std::unique_ptr<Policy> make_policy(const recipe::Cache& cache, const Geometry& geometry);

}  // namespace tandem::kv
