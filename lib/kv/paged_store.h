#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/key_rows.h"
#include "kv/pages.h"
#include "kv/sequences.h"
#include "ops/step_arrays.h"
#include "tensor/exec.h"

namespace tandem::kv {

/// Keys and values of all sequences in some layers: which pages hold whose tokens, and the pages.
class PagedStore {
 public:
  struct Spec {
    int n_layers = 0;                             // of the model
    std::optional<std::vector<int>> layers = {};  // those that it holds, rising; none: all
    int n_kv_heads = 0;
    int head_dim = 0;
    DType dtype = DType::bf16;
    int n_pages = 0;    // pool size
    int max_slots = 0;  // sequences
    int max_pages = 0;  // pages of one sequence, given-back ones included
    int max_moves = 0;  // tokens that one call of move_paths copies
    Device device = {};
    std::string prefix = "kv";  // names its buffers
    bool one_layer = false;     // room for one of the layers at a time
    bool eight_bit = false;     // as Pages'
    Device copied_by = {};      // the same
  };
  static void plan(const Spec& spec, MemoryPlan& plan);

  /// exec     where the pools are: the device of the spec
  PagedStore(const Spec& spec, Arena& arena, const Exec& exec = {});
  /// Other layers or another place of the sequences of `of`, with the same pages: what `of` copies
  /// is copied here too, but with room for one layer, where nothing lasts. Its sequences come and
  /// go with those of `of`, which outlives it.
  PagedStore(const Spec& spec, Arena& arena, const Exec& exec, PagedStore& of);
  /// The same, with room for one layer, in the memory of a store of other sequences from one of
  /// its pages on.
  PagedStore(const Spec& spec, const Exec& exec, PagedStore& of, const PagedStore& in,
             int32_t first);
  PagedStore(const PagedStore&) = delete;
  PagedStore& operator=(const PagedStore&) = delete;

  const Spec& spec() const { return spec_; }
  const Exec& exec() const { return exec_; }
  bool holds(int layer) const { return place_[static_cast<size_t>(layer)] >= 0; }
  /// Pools of one layer that it holds, [n_pages, n_kv_heads, 64, head_dim], and the scales of their
  /// rows, null unless these are of eight bits.
  Tensor k(int layer) const { return pages_.k(place(layer)); }
  Tensor v(int layer) const { return pages_.v(place(layer)); }
  const float* scales(int layer) const { return pages_.scales(place(layer)); }
  /// The keys, or the values, of a sequence under one KV head of a layer, read where that is in
  /// host memory.
  KeyRows keys(int layer, int slot, int kv_head) const {
    return {k(layer), pages(slot).data(), kv_head, scales(layer), spec_.dtype};
  }
  KeyRows values(int layer, int slot, int kv_head) const {
    return {v(layer), pages(slot).data(), kv_head, value_scales(layer), spec_.dtype};
  }
  /// Bytes of one token's key under one KV head.
  size_t row_bytes() const { return pages_.spec().row_bytes(); }
  /// Rows of a page of a sequence under one KV head of a layer, [64, head_dim] each, in host
  /// memory.
  struct HeadPage {
    void *k, *v;
  };
  HeadPage head_page(int layer, int slot, int page_index, int kv_head) const;
  /// A page of a layer that it holds.
  PageRun page_run(int layer, int32_t page) const { return {pages_, place(layer), page}; }

  /// All layers' pools, and the bytes of their keys, as many as of their values.
  PagePools pools() const { return pages_.pools(); }
  size_t pool_bytes() const {
    return pages_.spec().page_bytes() / 2 * static_cast<size_t>(spec_.n_pages);
  }
  /// Of all layers, and their bytes.
  float* all_scales() const { return pages_.scales(0); }
  size_t scale_bytes() const {
    return pages_.spec().page_scale_bytes() * static_cast<size_t>(spec_.n_pages);
  }

  /// As Sequences'.
  int acquire() { return sequences_->acquire(); }
  void release(int slot) { sequences_->release(slot); }
  int fork(int slot) { return sequences_->fork(slot); }
  void share(int from, int to) { sequences_->share(from, to); }
  int length(int slot) const { return sequences_->length(slot); }
  void set_length(int slot, int n) { sequences_->set_length(slot, n); }
  void adopt(int slot, int n, int begin) { sequences_->adopt(slot, n, begin); }
  /// A page that is unshared is copied, wherever its sequences have keys and values.
  void reserve(int slot, int n, Range gap = {0, 0});
  void own(int slot, int begin, int end);
  /// Calls `copy` when a page is unshared, for data of its tokens elsewhere.
  void on_copy(Sequences::CopyPage copy) { copies_.push_back(std::move(copy)); }
  void truncate(int slot, int n) { sequences_->truncate(slot, n); }
  void drop(int slot, int begin, int end) { sequences_->drop(slot, begin, end); }
  int32_t page(int slot, int page_index) const { return sequences_->page(slot, page_index); }
  const std::vector<int32_t>& pages(int slot) const { return sequences_->pages(slot); }
  uint64_t table_version(int slot) const { return sequences_->table_version(slot); }
  int pages_given_back(int slot) const { return sequences_->pages_given_back(slot); }
  int free_pages() const { return sequences_->free_pages(); }

  /// Copies the pages of tokens [begin, end) of a slot from another store that has them, in one
  /// layer or all that both hold: whole pages, which hold no less here afterwards (copy_pages).
  /// queue    of a GPU that one of them is on; null: that of its work
  void copy_layer_from(const PagedStore& from, int layer, int slot, int begin, int end,
                       cuda::Queue* queue = nullptr);
  void copy_from(const PagedStore& from, int slot, int begin, int end);

  /// Paths of token trees as verification leaves them, in the memory of the store's device.
  struct AcceptedPaths {
    const int32_t* path;        // [n_seqs, n_nodes] nodes in order, the root left out
    const int32_t* n_accepted;  // [n_seqs]
    const int32_t* position;    // [n_seqs] tokens of the text, the root the last of them
    int n_seqs, n_nodes;
    int n_nodes_held;  // nodes from this one on have no K and V
    int max_depth;     // no path is longer
  };
  /// The moves that close the gaps of paths; on a GPU work that a graph may record.
  /// step     of the sequences, with this store's page table
  void move_paths(const AcceptedPaths& paths, const ops::StepArrays& step);

 private:
  int place(int layer) const;
  const float* value_scales(int layer) const {
    const float* const of_keys = scales(layer);
    return of_keys == nullptr ? nullptr : of_keys + 1;
  }
  PagedStore(const Spec& spec, const Exec& exec, std::shared_ptr<Sequences> sequences, Pages pages);
  /// Copies a page wherever its sequences have data.
  void copy_page(int32_t from, int32_t to) const;

  Spec spec_;
  Exec exec_;
  std::vector<int> place_;  // of each layer of the model among those held, -1: not held
  std::shared_ptr<Sequences> sequences_;
  Pages pages_;
  std::vector<Sequences::CopyPage> copies_;  // where the same sequences have further data
  int32_t* moves_ = nullptr;                 // [2, max_moves]
};

}  // namespace tandem::kv
