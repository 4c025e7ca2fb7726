#pragma once
#include <vector>

#include "kernels/attention/attention.h"
#include "kv/step.h"
#include "tensor/arena.h"

namespace tandem::kv {

/// How much the rows of the last step that read all keys attended to each: the largest score of any
/// row and head of a KV group, less the head's lse in the step before, since that of the step
/// itself is known too late for one pass. On the CPU.
class ScoreStore {
 public:
  struct Spec {
    int n_layers = 0;
    int n_heads = 0;
    int n_kv_heads = 0;
    int max_slots = 0;
    int max_tokens = 0;  // of one sequence
    int max_rows = 0;    // of a step

    /// Of a KV head: whole pages.
    size_t stride() const {
      return static_cast<size_t>((max_tokens + kPageTokens - 1) / kPageTokens) * kPageTokens;
    }
  };
  static void plan(const Spec& spec, MemoryPlan& plan);
  ScoreStore(const Spec& spec, Arena& arena);

  /// What an attention of this step under a layer is asked to leave.
  KeyScores request(int layer, const Step& step) const;
  /// Where it is to write the lse of its rows, [max_rows, n_heads].
  float* row_lse() const { return row_lse_; }
  /// Takes note of a step that has left scores.
  void take(int layer, const Step& step);

  /// The first tokens of a slot, whose scores a step left that is being committed; 0 = none did.
  int tokens(int slot) const { return tokens_[static_cast<size_t>(slot)]; }
  const f16* scores(int slot, int layer, int kv_head) const;
  /// Taken off the scores of the next step: a number of each head, [n_heads].
  float* lse(int slot, int layer) const;

  /// The scores of a slot have served.
  void clear(int slot) { tokens_[static_cast<size_t>(slot)] = 0; }
  /// The fork's next step is scored as its parent's would be.
  void fork(int from, int to);
  void release(int slot);

 private:
  size_t cell(int slot, int layer) const {
    return static_cast<size_t>(slot) * static_cast<size_t>(spec_.n_layers) +
           static_cast<size_t>(layer);
  }

  Spec spec_;
  f16* scores_;  // [slots, layers, KV heads, stride]
  float* lse_;   // [slots, layers, heads]
  float* row_lse_;
  std::vector<int> tokens_;  // by slot
};

}  // namespace tandem::kv
