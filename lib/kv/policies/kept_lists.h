#pragma once
#include <string>
#include <vector>

#include "kv/policy.h"

namespace tandem::kv {

/// Lists of chosen tokens, or of runs of tokens, that rows read until they are chosen again: one
/// for each sequence, sparse layer and KV head, as long in all of a sequence. On a GPU how long
/// they are and where the rest of the text begins lie there too, so that recorded graphs find and
/// change them.
class KeptLists {
 public:
  /// layers     of the model, those that have lists
  /// capacity   entries of a list at most; 0: none is ever kept
  /// run        tokens of an entry, a divisor of 64; 1 on the CPU
  KeptLists(std::vector<int> layers, int capacity, int run, const Bounds& bounds);

  void plan(MemoryPlan& plan, const std::string& prefix) const;
  void allocate(Arena& arena, const std::string& prefix);
  /// After allocate, before all below; where the lists are.
  void run_on(const Exec& exec);

  int capacity() const { return capacity_; }
  const std::vector<int>& layers() const { return layers_; }
  const Exec& exec() const { return exec_; }
  /// A list; those of a layer's heads lie capacity() apart, those of layers after each other.
  int32_t* at(int slot, int ordinal, int kv_head) const {
    return ids_ + static_cast<size_t>(slot) * slot_ids() +
           static_cast<size_t>(ordinal * bounds_.geometry.n_kv_heads + kv_head) *
               static_cast<size_t>(capacity_);
  }
  /// Entries of all lists of a slot.
  size_t slot_ids() const { return layers_.size() * layer_ids(); }
  size_t layer_ids() const;

  void fork(int from, int to);

  // On a GPU.
  /// Tokens of a slot from `rest` on are read too, beyond lists of n entries; 0: all, and no lists.
  void set_rest(int slot, int rest, int n);
  /// As it is there now; waits for the queue.
  int rest(int slot) const;
  /// The lists of a sparse layer.
  KeyLists of_layer(int ordinal) const;
  int32_t* counts() const { return counts_; }              // [slots, KV heads]
  int32_t* rests() const { return counts_ + n_counts(); }  // [slots]
  int32_t* device_layers() const { return rests() + bounds_.max_seqs; }

 private:
  size_t n_counts() const;  // of all slots

  std::vector<int> layers_;
  int capacity_, run_;
  Bounds bounds_;
  Exec exec_;
  int32_t* ids_ = nullptr;  // [slots, sparse layers, KV heads, capacity]
  // On a GPU: [slots, KV heads], then where each slot's rest begins, then the sparse layers.
  int32_t* counts_ = nullptr;
};

}  // namespace tandem::kv
