#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kv/policies/scratch.h"
#include "kv/policy.h"

namespace tandem::kv {

/// Tokens that the last queries of a text choose by their attention, a list for each sequence,
/// sparse layer and KV head, and the choosing of them, on either device. On a GPU a list's count
/// and where the rest of its text begins lie there too, so that recorded graphs find them. Lists
/// may be passed on instead, layer by layer as they are chosen.
class VotedKeys {
 public:
  enum class Lists { kept, passed_on };
  /// Takes the lists of the ordinal-th sparse layer, [KV heads, n_chosen()], and the page table of
  /// their sequence: device memory that holds them for the work that the call puts on the queue.
  using Taker = std::function<void(int ordinal, const int32_t* ids, const int32_t* pages)>;

  /// sinks    first tokens that are always chosen
  /// layers   of the model, those that have lists
  /// lists    passed on: on a GPU alone
  VotedKeys(const recipe::SnapKv& spec, int sinks, std::vector<int> layers, const Bounds& bounds,
            Lists lists = Lists::kept);

  void plan(MemoryPlan& plan, const std::string& prefix) const;
  void allocate(Arena& arena, const std::string& prefix);
  void read_queries(const QueryRing& queries) { queries_ = &queries; }

  /// Tokens of a list: none where no text is longer than the budget.
  int n_chosen() const { return bounds_.max_tokens > budget() ? budget() - spec_.window : 0; }
  /// Chooses among the tokens before the last `window` of n, all committed, by the queries of the
  /// tokens from first_query on.
  /// take     of lists that are passed on
  void choose(int slot, int first_query, int n, const PagedStore& store, const Taker& take = {});
  void fork(int from, int to);
  /// On a GPU: tokens of a slot from `rest` on are read too; 0: all, and no lists.
  void set_rest(int slot, int rest);

  /// A list, in ascending order, n_chosen() long; on the CPU.
  const int32_t* list(int slot, int ordinal, int kv_head) const {
    return ids_ + list_at(slot, ordinal, kv_head);
  }
  /// The lists of a sparse layer; on a GPU.
  KeyLists lists(int ordinal) const;

 private:
  struct CpuScratch;
  /// A run's choice: by the queries from first_query on, of n tokens.
  struct Choice {
    int slot, first_query, n;
  };

  bool on_gpu() const { return bounds_.on_gpu(); }
  bool passes_on() const { return lists_ == Lists::passed_on; }
  const Geometry& geometry() const { return bounds_.geometry; }
  int budget() const { return static_cast<int>(spec_.budget); }
  float scale() const;
  size_t layer_ids() const;   // of the lists of a layer
  size_t slot_ids() const;    // of those that are kept of a slot
  size_t passed_ids() const;  // of those that are passed on at a time
  size_t list_at(int slot, int ordinal, int kv_head) const;
  size_t counts() const;  // of all slots
  size_t scratch_bytes() const;
  void choose_list(const Choice& c, int ordinal, int kv_head, const PagedStore& store,
                   const CpuScratch& s);
  void choose_on_gpu(const Choice& c, const PagedStore& store, const Taker& take);

  recipe::SnapKv spec_;
  int sinks_;
  std::vector<int> layers_;
  Bounds bounds_;
  Lists lists_;
  const QueryRing* queries_ = nullptr;
  int32_t* ids_ = nullptr;     // [slots, sparse layers, KV heads, n_chosen]
  int32_t* counts_ = nullptr;  // on a GPU: [slots, KV heads], then where each slot's rest begins
  std::byte* scratch_ = nullptr;
  int n_scratch_ = 1;
};

}  // namespace tandem::kv
