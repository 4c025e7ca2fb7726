#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kv/policies/scratch.h"
#include "kv/policy.h"

namespace tandem::kv {

/// Lists of tokens, one for each sequence, sparse layer and KV head, and the choosing of them, on
/// either device: by the attention of the last queries of a text, or by the scores that a step of
/// another reading left. On a GPU a list's count and where the rest of its text begins lie there
/// too, so that recorded graphs find and change them. Lists that are voted for may be passed on
/// instead, layer by layer as they are chosen.
class VotedKeys {
 public:
  enum class Lists { kept, passed_on };
  /// Takes the lists of the ordinal-th sparse layer, [KV heads, n_chosen()], and the page table of
  /// their sequence: device memory that holds them for the work that the call puts on the queue.
  using Taker = std::function<void(int ordinal, const int32_t* ids, const int32_t* pages)>;

  struct Rule {
    int budget = 0;             // tokens of a list, and of the window after it
    int window = 0;             // tokens whose queries vote
    int pool = 1;               // neighbours that votes are averaged over
    int sinks = 0;              // first tokens that votes always choose
    bool scaled = true;         // products of votes by 1 / sqrt(head_dim)
    Lists lists = Lists::kept;  // passed on: on a GPU alone
  };
  /// layers   of the model, those that have lists
  VotedKeys(const Rule& rule, std::vector<int> layers, const Bounds& bounds);

  void plan(MemoryPlan& plan, const std::string& prefix) const;
  void allocate(Arena& arena, const std::string& prefix);
  void read_queries(const QueryRing& queries);
  /// Lists are chosen by scores, too: a choice by votes leaves the lse that the next scores count
  /// from.
  void read_scores(ScoreStore& scores) { scores_ = &scores; }

  /// Tokens of a list that was voted for, and of any at most: none where no text is longer than the
  /// budget.
  int n_chosen() const {
    return bounds_.max_tokens > rule_.budget ? rule_.budget - rule_.window : 0;
  }
  /// Chooses among the tokens before the last `window` of n, all committed, by the queries of the
  /// tokens from first_query on.
  /// take     of lists that are passed on
  void choose(int slot, int first_query, int n, const PagedStore& store, const Taker& take = {});
  /// Chooses for every sequence with more than `budget` tokens before the step, which has left
  /// scores: the best of those before the last `recent` of them, as many as the budget has room
  /// for. On a GPU work that a graph may record, which sets counts and rests.
  /// recent   at least the window
  void choose_scored(const Step& step, int recent);
  void fork(int from, int to);

  /// On a GPU: tokens of a slot from `rest` on are read too, beyond lists of n; 0: all, and no
  /// lists.
  void set_rest(int slot, int rest, int n);
  /// As it is there now; waits for the queue.
  int rest(int slot) const;

  /// A list, in ascending order; on the CPU.
  const int32_t* list(int slot, int ordinal, int kv_head) const {
    return ids_ + list_at(slot, ordinal, kv_head);
  }
  /// The lists of a sparse layer; on a GPU.
  KeyLists lists(int ordinal) const;

 private:
  struct CpuScratch;
  /// A choice by votes: by the queries from first_query on, of n tokens.
  struct Choice {
    int slot, first_query, n;
  };

  bool on_gpu() const { return bounds_.on_gpu(); }
  const Geometry& geometry() const { return bounds_.geometry; }
  float scale() const;
  bool passes_on() const { return rule_.lists == Lists::passed_on; }
  size_t layer_ids() const;   // of the lists of a layer
  size_t slot_ids() const;    // of those that are kept of a slot
  size_t passed_ids() const;  // of those that are passed on at a time
  size_t list_at(int slot, int ordinal, int kv_head) const;
  size_t counts() const;  // of all slots
  int32_t* rests() const { return counts_ + counts(); }
  int32_t* device_layers() const { return rests() + bounds_.max_seqs; }
  size_t scratch_bytes() const;
  template <class Work>
  void for_lists(int n, const Work& work) const;
  void choose_list(const Choice& c, int ordinal, int kv_head, const PagedStore& store,
                   const CpuScratch& s) const;
  void choose_scored_list(int slot, int ordinal, int kv_head, int n, int n_best,
                          const CpuScratch& s) const;
  void choose_on_gpu(const Choice& c, const PagedStore& store, const Taker& take);

  Rule rule_;
  std::vector<int> layers_;
  Bounds bounds_;
  const QueryRing* queries_ = nullptr;
  ScoreStore* scores_ = nullptr;
  int32_t* ids_ = nullptr;  // [slots, sparse layers, KV heads, n_chosen]
  // On a GPU: [slots, KV heads], then where each slot's rest begins, then the sparse layers.
  int32_t* counts_ = nullptr;
  std::byte* scratch_ = nullptr;
  int n_scratch_ = 1;
};

}  // namespace tandem::kv
