#pragma once
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/page_tables.h"
#include "kv/paged_store.h"
#include "kv/policy.h"

namespace tandem::kv {

/// Layers that keep the same tokens of a sequence.
struct PageGroup {
  int window = 0;           // 0: they keep all tokens
  std::vector<int> layers;  // rising
};

/// Groups of a model by its windows, the one that keeps most tokens first. Windows of max_tokens or
/// more count as none. Windows beyond kMaxPageGroups share the last group.
std::vector<PageGroup> page_groups(const Geometry& geometry,
                                   int max_tokens = std::numeric_limits<int>::max());
/// Lists groups as "0: 0, 2; 64: 1, 3": windows and their layers.
std::string page_groups_text(std::span<const PageGroup> groups);

/// Stores and page tables of all groups. Their sequences come and go together, under the same
/// slots. docs/notes/page-groups.md describes how groups act together.
class PageGroups {
 public:
  struct Spec {
    PageGroup group;
    PagedStore::Spec store;
    std::string tables;  // names the memory of its page tables
  };
  static void plan(std::span<const Spec> specs, MemoryPlan& plan);
  /// specs    the first group first
  /// margin   committed tokens that a further group keeps before its window
  PageGroups(std::span<const Spec> specs, int margin, Arena& arena, const Exec& exec);

  size_t size() const { return groups_.size(); }
  PagedStore& store(size_t group) { return groups_[group]->store; }
  const PagedStore& store(size_t group) const { return groups_[group]->store; }
  PageTables& tables(size_t group) { return groups_[group]->tables; }
  /// Group of a layer, whose keys may be in host memory if it is the first.
  size_t of(int layer) const { return of_layer_[static_cast<size_t>(layer)]; }

  /// Each does to a sequence of every group what its namesake in Sequences does.
  int acquire();
  void release(int slot);
  int fork(int slot);
  void set_length(int slot, int n);
  void reserve(int slot, int n);
  void truncate(int slot, int n);
  /// Gives an empty sequence n tokens. `has` says whether a group with that layer gets a page; a
  /// further group gets only those that it needs.
  /// errors   kind memory when a pool is exhausted
  void adopt(int slot, int n, const Retention& needed,
             const std::function<bool(int layer, int page)>& has);

  /// Releases the pages without needed tokens.
  void evict(int slot, const Retention& needed);
  /// First evicted token that a row at position `n` needs; -1: none.
  int missing_token(int slot, int n, const Retention& needed) const;
  void lay_out_tables(std::span<const int32_t> slots);
  /// The pages of a slot in each further group.
  std::vector<std::span<const int32_t>> further_pages(int slot) const;

 private:
  struct Group {
    int layer;   // one of its layers
    int window;  // cuts what policies need; 0: in the first group they decide
    int margin;
    PagedStore store;
    PageTables tables;

    Group(const Spec& spec, bool first, int margin, Arena& arena, const Exec& exec);
    void evict(int slot, const Retention& needed);
  };

  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<size_t> of_layer_;
};

}  // namespace tandem::kv
