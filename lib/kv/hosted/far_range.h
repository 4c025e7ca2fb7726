#pragma once
#include <cstdint>
#include <vector>

#include "kv/page_tables.h"
#include "kv/paged_store.h"
#include "kv/step.h"
#include "ops/attention.h"
#include "tensor/arena.h"

namespace tandem::kv {

/// Attention of an extend step on the CPU over all tokens before the near ones, whose keys are in
/// host memory (kv/hosted/hosted_keys.h): every key of a KV head is read once for the query heads
/// of all rows of its sequence, up to 16 of them at a time.
class FarRange {
 public:
  /// bounds   of the steps; the threads are those of the CPU as they are
  static void plan(const AttentionBounds& bounds, MemoryPlan& plan);
  FarRange(const AttentionBounds& bounds, Arena& arena);

  /// A layer of a step whose near_begin are whole pages.
  struct Call {
    int layer;
    const Step& step;
    const PagedStore& far;     // has the tokens before near_begin
    const PageTables& tables;  // its pages, as they were when the step was laid out, or more
    Tensor q;                  // [R, Hq, d] on the host
    float scale;               // multiplies scores
    float* o;                  // [R, Hq, d]
    float* lse;                // [R, Hq] natural log; of rows without far keys -inf
  };
  /// numerics, errors   those of ops::attention
  void attend(const Call& call);

 private:
  ops::AttentionWorkspace workspace_;
  std::vector<uint64_t> no_path_;  // [R, words] zeros
};

}  // namespace tandem::kv
