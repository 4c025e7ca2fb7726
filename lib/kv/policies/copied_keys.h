#pragma once
#include <string>
#include <vector>

#include "kv/policies/page_sets.h"
#include "kv/policy.h"

namespace tandem::kv {

/// Derived pages: copies of chosen keys and values on a GPU, where attention reads them as fast as
/// a range. A choice, of as many tokens in every sparse layer and KV head, lies in the order of its
/// lists in one set of pages: a page id stands for each head's own tokens in all layers. Sequences
/// share a set after a fork until one of them chooses again; sets are counted, one a sequence at
/// most. A sequence's page ids, its number of tokens and where the rest of its text begins lie on
/// the GPU too, so that recorded graphs find them.
class CopiedKeys {
 public:
  /// n_tokens of a choice; 0: none is ever made
  CopiedKeys(int n_tokens, int n_layers, const Bounds& bounds);

  void plan(MemoryPlan& plan, const std::string& prefix) const;
  void allocate(Arena& arena, const std::string& prefix);
  void run_on(const Exec& exec) { exec_ = exec; }

  /// A slot's next choice is about to be copied: it gets a set that no other slot has.
  void begin(int slot);
  /// One layer of it.
  struct Lists {
    int ordinal, layer;    // among the sparse layers, and of the model
    const int32_t* ids;    // [KV heads, n_tokens]
    const int32_t* pages;  // the sequence's page table; both on the GPU
  };
  void copy(int slot, const Lists& lists, const PagedStore& store);
  /// Tokens of a slot from `rest` on are read too; 0: all, and no copies, whose set is free again.
  void set_rest(int slot, int rest);
  /// `to`, which has no copies, reads those of `from`.
  void fork(int from, int to);

  KeyLists lists(int ordinal) const;

 private:
  const Geometry& geometry() const { return bounds_.geometry; }
  int pages_a_set() const { return (n_tokens_ + kPageTokens - 1) / kPageTokens; }
  size_t layer_bytes() const;  // of K, and of V
  size_t half_bytes() const { return static_cast<size_t>(n_layers_) * layer_bytes(); }
  size_t n_ids() const;  // of all slots
  size_t n_counts() const;
  void write_ids(int slot);

  int n_tokens_, n_layers_;
  Bounds bounds_;
  Exec exec_;
  std::byte *k_ = nullptr, *v_ = nullptr;  // [sparse layers, sets, pages, KV heads, 64, d]
  int32_t* tables_ = nullptr;  // [slots, pages], then [slots, KV heads] tokens, then [slots] rest
  PageSets sets_;
};

}  // namespace tandem::kv
