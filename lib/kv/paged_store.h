#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kv/step.h"
#include "ops/paging.h"
#include "tensor/arena.h"
#include "tensor/exec.h"
#include "tensor/tensor.h"

namespace tandem::kv {

/// Keys and values of all sequences in pages of 64 tokens. A page id stands for the same tokens in
/// every layer. Pages are reference counted, so that sequences fork for the price of a page table;
/// a shared page is copied when a sequence is about to write into it.
class PagedStore {
 public:
  struct Spec {
    int n_layers = 0;
    int n_kv_heads = 0;
    int head_dim = 0;
    DType dtype = DType::bf16;
    int n_pages = 0;    // pool size
    int max_slots = 0;  // sequences
    int max_pages = 0;  // pages of one sequence, given-back ones included
    int max_moves = 0;  // tokens that one call of move_paths copies
    Device device = {};

    /// Bytes of K and V of one page in all layers.
    size_t page_bytes() const;
  };
  static void plan(const Spec& spec, MemoryPlan& plan);

  /// exec     where the pools are: the device of the spec
  PagedStore(const Spec& spec, Arena& arena, const Exec& exec = {});

  const Spec& spec() const { return spec_; }
  const Exec& exec() const { return exec_; }
  /// Pools of one layer, [n_pages, n_kv_heads, 64, head_dim].
  Tensor k(int layer) const { return pool(k_, layer); }
  Tensor v(int layer) const { return pool(v_, layer); }

  /// A free slot with length 0.
  /// errors   kind memory when all are in use
  int acquire();
  void release(int slot);
  /// A new slot that shares all pages of `slot`.
  int fork(int slot);

  /// Committed tokens.
  int length(int slot) const { return at(slot).length; }
  void set_length(int slot, int n) { at(slot).length = n; }
  /// Makes [length, n) writable: allocates missing pages and unshares others, of which only the one
  /// that length falls into has tokens to copy.
  /// errors   kind memory when the pool is exhausted
  void reserve(int slot, int n);
  /// Shortens a sequence and gives back the pages past the end.
  void truncate(int slot, int n);
  /// Gives back the pages that lie wholly inside [begin, end).
  void drop(int slot, int begin, int end);
  /// Page of a token's position, -1 when given back or not allocated.
  int32_t page(int slot, int page_index) const;
  const std::vector<int32_t>& pages(int slot) const { return at(slot).pages; }
  /// Changes whenever pages(slot) does; no two tables ever have the same, and none has 0.
  uint64_t table_version(int slot) const { return at(slot).version; }
  /// Entries of pages(slot) that are -1.
  int pages_given_back(int slot) const { return at(slot).n_given_back; }
  int free_pages() const { return static_cast<int>(free_.size()); }

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
  /// step     of the sequences
  void move_paths(const AcceptedPaths& paths, const ops::StepArrays& step);

 private:
  struct Slot {
    bool used = false;
    int length = 0;
    std::vector<int32_t> pages;
    uint64_t version = 0;
    int n_given_back = 0;
    int gone_begin = 0, gone_end = 0;  // given back, all of them: drop begins behind
  };

  Slot& at(int slot);
  const Slot& at(int slot) const;
  void touch(Slot& slot) { slot.version = ++last_version_; }
  int32_t allocate();
  void unref(int32_t page);
  Tensor pool(char* base, int layer) const;
  /// Bytes of one page of one layer, K or V.
  size_t layer_page_bytes() const;
  PagePools pools() const;

  Spec spec_;
  Exec exec_;
  char* k_;
  char* v_;
  int32_t* moves_ = nullptr;  // [2, max_moves]
  std::vector<int32_t> refs_;
  std::vector<int32_t> free_;
  std::vector<Slot> slots_;
  uint64_t last_version_ = 0;
};

}  // namespace tandem::kv
