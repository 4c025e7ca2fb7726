#pragma once
#include <span>
#include <string>

#include "kv/policies/device_index.h"
#include "kv/policies/key_hasher.h"
#include "kv/policies/scratch.h"

namespace tandem::kv {

/// LshTables on a GPU, with the centers of keys: the same tables, norms and projections.
class DeviceLsh {
 public:
  DeviceLsh(const recipe::Lsh& spec, const Bounds& bounds, const TokenIndex& index, HeadGrid grid);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);
  /// Brings what does not change.
  void run_on(const Exec&, std::span<const float> log_u);

  /// Hashes the pieces' tokens into their blocks, in all layers; `fresh`: their mean becomes the
  /// slot's center.
  void index_tokens(const TokenIndex::Work& work, std::span<const int> layers,
                    const DeviceIndex& device_index, const PagedStore& store);
  void copy_center(int from, int to) { hasher_.copy_center(from, to); }

  /// What the lists of some rows take.
  struct Scratch {
    ScratchCutter cutter;
    uint16_t *codes, *hits;
    float *queries, *norms;
    int32_t *n_hits, *count, *ids;

    Scratch(std::byte* base, const DeviceLsh& lsh, int n_rows);
  };
  /// Makes the lists of some rows: sinks, then keys that collide with the query.
  void choose(int ordinal, const ChoosingRows& choosing, const void* q,
              const DeviceIndex& device_index, const Scratch& s) const;
  QueryLists lists(const Scratch& s) const;

 private:
  const Geometry& geometry() const { return bounds_.geometry; }
  KeyHasher::Place place_of(int block, int ordinal) const;

  recipe::Lsh spec_;
  Bounds bounds_;
  const TokenIndex& index_;
  HeadGrid grid_;
  KeyHasher hasher_;
  Exec exec_;
  uint16_t* tables_ = nullptr;
  float *norms_ = nullptr, *log_u_ = nullptr;
};

}  // namespace tandem::kv
