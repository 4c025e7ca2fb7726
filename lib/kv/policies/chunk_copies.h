#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kv/policies/chunk_keys.h"
#include "kv/policies/copied_keys.h"
#include "kv/policy.h"

namespace tandem::kv {

class HostedKeys;

/// Copies of chosen chunks, of layers whose keys another reader has in host memory: in the order of
/// the lists of a ChunkKeys, in pages of the near keys (kv/hosted/hosted_keys.h).
class ChunkCopies {
 public:
  /// keys     whose lists they follow; outlives this
  /// chunk    tokens
  /// bounds   with the layers (far_layers), all of which have lists
  ChunkCopies(ChunkKeys& keys, int chunk, const Bounds& bounds);

  void plan(MemoryPlan& plan, const std::string& prefix) const {
    copies_.plan(plan, prefix, /*own_pages=*/false);
  }
  void allocate(Arena& arena, const std::string& prefix) {
    copies_.allocate(arena, prefix, /*own_pages=*/false);
  }
  void run_on(const Exec& exec) { copies_.run_on(exec); }
  void read_hosted(HostedKeys& hosted, int i);

  /// Whether lists are ever chosen.
  bool any() const { return copies_.any(); }
  bool has(int layer) const { return is_far_[static_cast<size_t>(layer)] != 0; }
  bool is_first(int layer) const { return layer == bounds_.far_layers.front(); }
  bool is_last(int layer) const { return layer == bounds_.far_layers.back(); }
  /// Where all keys of such a layer are.
  const PagedStore& far() const;
  /// Tokens that a slot has copies of.
  int tokens(int slot) const { return copies_.tokens(slot); }

  /// Copies of n chunks take the place of a slot's.
  void begin(int slot, int n) { copies_.begin(slot, n * chunk_); }
  /// All of a slot's text, which is near where it is in part, is far, and what no range reads any
  /// more leaves near.
  void make_room(int slot);
  /// One layer, from a store with all its keys; or all layers, from host memory.
  void copy(int slot, int layer, const PagedStore& from);
  void copy_all(int slot);
  /// As CopiedKeys', n chunks. Copies that have gone are made again.
  void set_rest(int slot, int rest, int n);
  void fork(int from, int to) { copies_.fork(from, to); }
  void drop(int slot) { copies_.set_rest(slot, 0, 0); }
  /// Notes a choice under one layer of far: as many keys that it read.
  void count_choice(int n_keys);

  /// On a GPU, what a layer's rows read.
  KeyLists lists(int layer) const { return copies_.lists(layer); }
  /// On the CPU: a list names the first rows of the copies.
  ListedCopies listed() const { return {&copies_.store(), copies_.first_slot()}; }
  const int32_t* rows() const { return rows_.data(); }

 private:
  ChunkKeys& keys_;
  int chunk_;
  Bounds bounds_;
  CopiedKeys copies_;
  std::vector<uint8_t> is_far_;  // [layers of the model]
  std::vector<int32_t> rows_;    // 0, 1, ...
  HostedKeys* hosted_ = nullptr;
};

}  // namespace tandem::kv
