#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kv/policies/device_index.h"
#include "kv/policy.h"

namespace tandem::kv {

/// What policies that choose keys by content have in common, and which layers they serve.
class SelectingPolicy : public Policy, public KeySelector {
 public:
  Needs needs() const override;
  /// On a GPU policies make lists themselves.
  const KeySelector* selector() const override { return bounds_.on_gpu() ? nullptr : this; }

 protected:
  SelectingPolicy(const recipe::Cache& cache, const Bounds& bounds);

  const Bounds& bounds() const { return bounds_; }
  const std::string& kind() const { return needs_.kind; }
  const Geometry& geometry() const { return bounds_.geometry; }
  size_t group() const { return static_cast<size_t>(geometry().group()); }
  /// Position among the sparse layers, -1 for a dense one.
  int ordinal(int layer) const { return ordinal_[static_cast<size_t>(layer)]; }
  const std::vector<int>& layers() const { return layers_; }

  /// The plan of a layer whose rows read the tokens from begin_of(slot) on exactly, and of those
  /// before what select_keys says; 0: they read all exactly.
  void plan_from(int layer, const Step& step, const std::function<int(int slot)>& begin_of,
                 AttendPlan& plan);
  /// On a GPU, for policies whose rows and heads make separate lists: most keys of one.
  virtual int list_keys() const { return 0; }
  /// Rows that make lists at a time, of row_bytes of scratch each.
  int rows_at_a_time(size_t row_bytes, size_t most_bytes = size_t{128} << 20) const;
  static ChoosingRows choosing_rows(const Step& step, Range rows) {
    return {.slot = step.arrays.slot,
            .row_begin = step.arrays.row_begin,
            .pos = step.arrays.pos,
            .n_seqs = step.arrays.n_seqs,
            .rows = rows};
  }
  /// Gives all heads of a group one list: n tokens, the first n_static of them for every query.
  static void share_list(const int32_t* ids, int n, int n_static, std::span<KeyList> lists);

 private:
  Bounds bounds_;
  Needs needs_;
  std::vector<int> layers_, ordinal_;
  std::vector<int32_t> tail_begin_;  // of the step in hand, [B]
};

/// One that chooses among the keys of an index; rows read recent tokens exactly.
class SparsePolicy : public SelectingPolicy, public HostedIndex {
 public:
  /// least    tokens that an index begins with: fewer are read exactly
  SparsePolicy(const recipe::Cache& cache, const Bounds& bounds, int sinks, int unit, int max_block,
               int least = 1);

  void plan(MemoryPlan&, const std::string& prefix) const override;
  void set_up(Arena&, const std::string& prefix, const Connections&) override;
  void select(int layer, const Step&, const Tensor& q, AttendPlan&) override;
  void on_fork(int from, int to) override;
  void on_release(int slot) override;
  void on_truncate(int slot, int n, const PagedStore&) override;
  void on_layer(int layer, int slot, int length, const PagedStore&) override;
  void on_give_up(int slot) override;
  bool takes_read_prompts() const override { return bounds().device == bounds().prompts; }
  void on_prompt(int slot, const PagedStore&) override;
  void on_commit(std::span<const int32_t> slots, const PagedStore&) override;
  /// Null for a further reader, which has no copies of keys in host memory.
  const HostedIndex* hosted() const override { return bounds().hosted ? this : nullptr; }
  std::vector<int> hosted_layers() const override { return layers(); }
  int range_begin(int slot) const override { return index_.empty(slot) ? 0 : index_.end(slot); }
  int most_ranged() const override { return index_.most_outside(); }
  int next_change(int slot) const override { return index_.next_roll(slot); }
  KeysRead keys_read(int layer, int length) const override;
  Choosing choosing(int layer, int length) const override;

 protected:
  /// Writes the pieces of a slot's index for some layers.
  virtual void index_tokens(const TokenIndex::Work&, const PagedStore&) = 0;
  /// Keys that a query head is expected to choose from `n` indexed ones.
  virtual double expected_keys(int n) const = 0;
  /// The same of all heads of a KV head; what they share counts once.
  virtual double expected_group_keys(int n) const { return geometry().group() * expected_keys(n); }
  /// Bytes that the heads of a KV head are expected to read of an index of `n` keys.
  virtual double expected_index_bytes(int n) const = 0;

  HeadGrid grid() const { return {static_cast<int>(layers().size()), geometry().n_kv_heads}; }
  const TokenIndex& index() const { return index_; }
  /// The index in a GPU's memory, on one; in index_tokens up to date, and with the slot's pages.
  const DeviceIndex& device_index() const { return *device_index_; }
  const Exec& exec() const { return exec_; }
  /// Sinks as a segment of a list that does not depend on the query.
  KeySegment sinks_segment() const { return {sink_ids_.data(), index_.begin(), nullptr, nullptr}; }

 private:
  /// Tokens that the index of a prompt of `length` tokens holds.
  int indexed(int length) const;
  /// Lays out what a slot's index lacks of a text of some length.
  TokenIndex::Work lay_out(int slot, int length, bool prompt);
  void grow(int slot, bool prompt, const PagedStore&);
  void update_device(int slot);

  TokenIndex index_;
  std::optional<DeviceIndex> device_index_;  // on a GPU
  Exec exec_;
  std::vector<int32_t> sink_ids_;
  std::vector<TokenIndex::Work> by_layers_;  // [slots] of prompts that go through the layers
};

}  // namespace tandem::kv
