#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kv/policies/key_hasher.h"
#include "kv/policies/lsh_tables.h"
#include "tensor/pinned_pages.h"

namespace tandem::kv {

/// Hash tables of prompts in host memory, made by the GPU that reads the prompts, from keys in its
/// memory: those of a block of tokens and one KV head at a time, in one of a few buffers, from
/// which a separate queue copies them into the CPU's tables while the GPU goes on. The GPU waits
/// only where all buffers are full still, the host not at all, if those are pinned. Centers are the
/// GPU's, and go to the CPU's with the tables.
class PromptTables {
 public:
  /// device   the GPU
  PromptTables(const recipe::Lsh& spec, const Bounds& bounds, const TokenIndex& index,
               HeadGrid grid, Device device);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);
  /// copies   the queue of copies to host memory
  /// tables, centers   where they go, pinned from now on if the system allows it; outlive this
  void run_on(const Exec& exec, cuda::Queue& copies, const LshTables& tables,
              const KeyCenters& centers);

  /// Hashes the tokens of a slot that had no index, in one sparse layer. The CPU may read its
  /// tables when the queue of copies is done.
  /// store    has its keys in the GPU's memory, for work that its queue has before their next
  ///          change
  void index_tokens(const TokenIndex::Work& work, int layer, const PagedStore& store);
  /// Why the CPU's tables are not pinned; empty where they are.
  const std::string& why_unpinned() const;

 private:
  /// Of tables and norms of a block and KV head.
  struct Buffer {
    KeyHasher::Place at;
    std::unique_ptr<cuda::Event> made, copied;
  };

  Geometry geometry_;
  const TokenIndex& index_;
  HeadGrid grid_;
  Device device_;
  KeyHasher hasher_;
  std::vector<Buffer> buffers_;
  size_t next_ = 0;           // buffer
  int32_t* pages_ = nullptr;  // of the slot in hand, in the GPU's memory
  Exec exec_;
  cuda::Queue* copies_ = nullptr;
  const LshTables* tables_ = nullptr;
  const KeyCenters* centers_ = nullptr;
  PinnedPages pinned_tables_, pinned_norms_, pinned_centers_;
};

}  // namespace tandem::kv
