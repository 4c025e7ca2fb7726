#pragma once
#include <functional>
#include <span>
#include <vector>

#include "kv/policy.h"

namespace tandem::kv {

/// Sees the list of each row and query head of a step while it lasts. Called by several threads at
/// once.
using ListVisitor = std::function<void(int row, int head, const KeyList& list)>;

/// Attention of an extend step over the lists that a selector makes: one task a row and KV head (or
/// part of its query heads, where there are fewer tasks than threads and the selector allows it),
/// lists and attention in the same task, so that rows which several heads of a group read come from
/// memory once.
class ListAttention {
 public:
  static void plan(MemoryPlan& plan, const Geometry& g, size_t scratch_bytes);
  ListAttention(Arena& arena, const Geometry& g, size_t scratch_bytes);

  struct Call {
    const KeySelector& selector;
    int layer;
    const Step& step;
    const PagedStore& store;
    const Tensor& q;  // [R, Hq, d]
    float* o;         // [R, Hq, d]
    float* lse;       // [R, Hq]
    const ListVisitor* on_list = nullptr;
  };
  /// usage    gets what the call reads added
  void run(const Call& call, KeyUsage& usage);

 private:
  struct Task;
  void run_task(const Task& task, std::byte* scratch, std::span<KeyList> lists,
                KeyUsage& usage) const;

  Geometry geometry_;
  size_t scratch_bytes_;                     // of one thread
  std::byte* scratch_;                       // [threads]
  std::vector<std::vector<KeyList>> lists_;  // [threads][group]
  std::vector<KeyUsage> usage_;              // [threads]
};

}  // namespace tandem::kv
