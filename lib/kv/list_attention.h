#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/shared_blocks.h"
#include "kv/policy.h"
#include "kv/read_keys.h"

namespace tandem::kv {

/// Lists are attended in blocks of keys, so that the work of a few heads divides among many
/// threads. Blocks follow from a list's length alone: bits depend neither on threads nor on timing.
inline constexpr int kMostListBlocks = 32;

/// Blocks of a list of `n` keys, 1 .. kMostListBlocks.
int n_list_blocks(int n);

/// The segments of the i-th of `n_blocks` blocks of a list.
void cut_block(std::span<const KeySegment> list, int n_blocks, int i,
               std::vector<KeySegment>& block);

/// Joins softmax states of disjoint keys, in their order.
/// shapes   o [d]; lse [1]; part_o [n, d]; part_lse [n] natural log
/// numerics f32 sums; a state without keys is left out
void join_states(float* o, float* lse, const float* part_o, const float* part_lse, int n, int d);

/// Sees the list of each row and query head of a step while it lasts. Called by several threads at
/// once.
using ListVisitor = std::function<void(int row, int head, const KeyList& list)>;

/// Attention of an extend step over the lists that a selector makes: one task a row and KV head (or
/// part of its query heads, where there are fewer tasks than threads and the selector allows it).
/// Its thread makes the lists and offers blocks of their keys, which it attends
/// itself while others have separate tasks. Rows of a sequence follow each other under each KV
/// head: what many rows of a tree read, of keys and of the index, stays in the cache that cores
/// share.
class ListAttention {
 public:
  struct Spec {
    Geometry geometry;
    size_t scratch_bytes = 0;  // of one thread
    ReadKeys::Spec drafted;    // steps with several drafted rows of a sequence
  };
  static void plan(const Spec& spec, MemoryPlan& plan);
  ListAttention(const Spec& spec, Arena& arena);
  ~ListAttention();

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
  /// errors   those of the selector and the visitor, of all threads the first; o and lse are then
  ///          undefined, and the next call is as after any other
  void run(const Call& call, KeyUsage& usage);

 private:
  struct Task;
  struct Block;
  struct Desk;
  class Team;

  /// Where the keys of lists are.
  static ListedCopies keys_of(const Call& call);
  std::vector<Task> tasks_of(const Call& call) const;
  void make_lists(const Call& call, const Task& task, Desk& desk) const;
  void attend_block(const Call& call, Desk& owner, int i, std::vector<KeySegment>& cut) const;
  void finish(const Call& call, Desk& desk);
  void count(const Call& call, const KeyList& list, Desk& desk);

  Geometry geometry_;
  std::vector<std::unique_ptr<Desk>> desks_;  // [threads]
  ReadKeys read_;
};

}  // namespace tandem::kv
