#pragma once
#include <functional>
#include <span>
#include <vector>

#include "decode/engine.h"

namespace tandem::speculate {

/// What both models say at every position of a text, some rows at a time.
class PairLogits {
 public:
  /// Rows of logits of each model that it keeps.
  static constexpr int kRowsAtOnce = 64;

  PairLogits(decode::Engine& target, decode::Engine& draft) : target_(target), draft_(draft) {}

  /// Logits after the tokens text[row], text[row + 1], ...; both [rows, vocab of the target] f32 on
  /// the host, valid during the call.
  using Visit = std::function<void(int row, const Tensor& target, const Tensor& draft)>;
  /// Visits the rows from first_row to the last but one token: what follows the last is not in the
  /// text. Nothing stays in the caches.
  /// errors   kind interrupted
  void read(std::span<const int32_t> text, int first_row, const Visit& visit);

 private:
  decode::Engine& target_;
  decode::Engine& draft_;
  std::vector<float> target_logits_, draft_logits_;  // [rows, vocab of each]
  std::vector<float> wide_logits_;                   // the draft's, if the vocabularies differ
};

}  // namespace tandem::speculate
