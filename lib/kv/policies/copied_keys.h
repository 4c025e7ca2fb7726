#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kv/policy.h"

namespace tandem::kv {

/// Derived pages: copies of chosen keys and values, which a GPU's attention reads as fast as a
/// range. A choice, of as many tokens in every layer and KV head, lies in the order of its lists in
/// pages of one page table: a page id stands for each head's own tokens in all layers. Sequences
/// share pages after a fork until one of them chooses again. Pages are of separate pools, or of
/// another store, where other sequences have the rest. On a GPU a sequence's page ids, its number
/// of tokens and where the rest of its text begins lie there too, so that recorded graphs find
/// them.
class CopiedKeys {
 public:
  /// n_tokens of a choice at most; 0: none is ever made
  /// layers   of the model, those of which copies are made
  CopiedKeys(int n_tokens, std::vector<int> layers, const Bounds& bounds);

  /// own_pages  separate pools, or those that read_from names
  void plan(MemoryPlan& plan, const std::string& prefix, bool own_pages) const;
  void allocate(Arena& arena, const std::string& prefix, bool own_pages);
  void run_on(const Exec& exec) { exec_ = exec; }
  /// Copies go to pages of `store`, which holds the layers and outlives this: those of slot s
  /// belong to its sequence first_slot + s, which exists.
  void keep_in(PagedStore& store, int first_slot);

  bool any() const { return n_tokens_ > 0 && !layers_.empty(); }
  /// The store with the copies, and the first of their sequences.
  const PagedStore& store() const { return *store_; }
  int first_slot() const { return first_slot_; }
  /// Tokens that a slot has copies of.
  int tokens(int slot) const { return store_->length(set_of(slot)); }

  /// A slot's next choice, of n tokens, is about to be copied to pages that no other slot has.
  void begin(int slot, int n);
  /// One layer of it.
  struct Lists {
    int layer;           // of the model
    const int32_t* ids;  // runs of tokens, of each KV head id_stride apart
    int64_t id_stride;
    int run;               // tokens
    const int32_t* pages;  // the sequence's page table in `from`; where the copy is made
  };
  void copy(int slot, const Lists& lists, const PagedStore& from);
  /// Tokens of a slot from `rest` on are read too, beyond the first n of its copies; 0: all, and no
  /// copies. Pages beyond are free again.
  void set_rest(int slot, int rest, int n);
  /// `to`, which has no copies, reads those of `from`.
  void fork(int from, int to);

  /// On a GPU, of a layer.
  KeyLists lists(int layer) const;

 private:
  const Geometry& geometry() const { return bounds_.geometry; }
  bool on_gpu() const { return bounds_.on_gpu(); }
  int set_of(int slot) const { return first_slot_ + slot; }
  int pages_a_set() const { return (n_tokens_ + kPageTokens - 1) / kPageTokens; }
  PagedStore::Spec own_spec(const std::string& prefix) const;
  size_t n_ids() const;  // of all slots
  size_t n_counts() const;
  void write_ids(int slot);

  int n_tokens_;
  std::vector<int> layers_;
  Bounds bounds_;
  Exec exec_;
  std::unique_ptr<PagedStore> own_;
  PagedStore* store_ = nullptr;
  int first_slot_ = 0;
  // On a GPU: [slots, pages], then [slots, KV heads] tokens, then [slots] rest.
  int32_t* tables_ = nullptr;
};

}  // namespace tandem::kv
