#pragma once
#include <atomic>
#include <cstdint>

#include "kv/key_list.h"
#include "tensor/arena.h"

namespace tandem::kv {

/// Which keys of each sequence of a step its lists have read so far, under each KV head: rows of a
/// tree choose many keys in common, and read these from memory once.
class ReadKeys {
 public:
  struct Spec {
    int max_seqs = 0;  // of a step; 0: nothing is noted
    int n_kv_heads = 0;
    int max_tokens = 0;  // of a sequence
  };
  static void plan(const Spec& spec, MemoryPlan& plan);
  ReadKeys(const Spec& spec, Arena& arena);

  /// Forgets the keys of the first n_seqs sequences.
  void clear(int n_seqs);
  /// Notes the keys of a list. Called by several threads at once.
  /// result   how many of them no list before it has read
  int note(int seq, int kv_head, const KeyList& list);

 private:
  size_t words() const;  // of a KV head

  Spec spec_;
  std::atomic<uint64_t>* bits_ = nullptr;  // [max_seqs, n_kv_heads, words()] by token
};

}  // namespace tandem::kv
