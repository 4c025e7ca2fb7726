#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kv/policies/kept_lists.h"
#include "kv/policies/scratch.h"
#include "kv/policy.h"

namespace tandem::kv {

/// Lists of tokens, one for each sequence, sparse layer and KV head, and the choosing of them, on
/// either device: by the attention of the last queries of a text, or by the scores that a step of
/// another reading left. Lists that are voted for may be passed on instead of kept, layer by layer
/// as they are chosen.
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
  /// The lists, each in ascending order; not of lists that are passed on.
  const KeptLists& kept() const { return *kept_; }
  KeptLists& kept() { return *kept_; }

 private:
  struct CpuScratch;
  /// A choice by votes: by the queries from first_query on, of n tokens.
  struct Choice {
    int slot, first_query, n;
  };

  bool on_gpu() const { return bounds_.on_gpu(); }
  const Geometry& geometry() const { return bounds_.geometry; }
  float scale(int layer) const;
  bool passes_on() const { return rule_.lists == Lists::passed_on; }
  size_t passed_ids() const;  // of the lists that are passed on at a time
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
  std::optional<KeptLists> kept_;
  std::byte* scratch_ = nullptr;
  int n_scratch_ = 1;
};

}  // namespace tandem::kv
