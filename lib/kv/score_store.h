#pragma once
#include "kernels/attention/attention.h"
#include "kv/step.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::kv {

/// How much the rows of the last step that read all keys attended to each: the largest score of any
/// row and head of a KV group, less the head's lse in the step before, since that of the step
/// itself is known too late for one pass. What a step leaves follows from its arrays: a graph may
/// record all of it.
class ScoreStore {
 public:
  struct Spec {
    int n_layers = 0;
    int n_heads = 0;
    int n_kv_heads = 0;
    int max_slots = 0;
    int max_tokens = 0;  // of one sequence
    int max_rows = 0;    // of a step
    Device device = {};

    /// Of a KV head: whole pages.
    int stride() const { return (max_tokens + kPageTokens - 1) / kPageTokens * kPageTokens; }
    int64_t row_stride() const { return int64_t{n_layers} * n_kv_heads * stride(); }
    int64_t lse_stride() const { return int64_t{n_layers} * n_heads; }
  };
  static void plan(const Spec& spec, MemoryPlan& plan);
  /// exec     the device of the spec
  ScoreStore(const Spec& spec, Arena& arena, const Exec& exec = {});

  const Spec& spec() const { return spec_; }
  /// What an attention of this step under a layer is asked to leave.
  KeyScores request(int layer, const Step& step) const;
  /// Where it is to write the lse of its rows, [max_rows, n_heads].
  float* row_lse(int layer) const {
    return row_lse_ + int64_t{layer} * spec_.max_rows * spec_.n_heads;
  }
  /// A step has left scores under all layers: the mean of its rows' lse is taken off the next ones.
  void take(const Step& step);

  const f16* scores(int slot, int layer, int kv_head) const {
    return scores_ + slot * spec_.row_stride() +
           (int64_t{layer} * spec_.n_kv_heads + kv_head) * spec_.stride();
  }
  /// Taken off the scores of the next step: a number of each head, [n_heads].
  float* lse(int slot, int layer) const {
    return lse_ + slot * spec_.lse_stride() + int64_t{layer} * spec_.n_heads;
  }

  /// A sequence begins: nothing is taken off.
  void clear(int slot);
  /// The fork's next step is scored as its parent's would be.
  void fork(int from, int to);

 private:
  Spec spec_;
  Exec exec_;
  f16* scores_;     // [slots, layers, KV heads, stride]
  float* lse_;      // [slots, layers, heads]
  float* row_lse_;  // [layers, max_rows, heads]
};

}  // namespace tandem::kv
