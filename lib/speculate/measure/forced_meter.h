#pragma once
#include <functional>
#include <span>
#include <vector>

#include "speculate/measure/overlap.h"
#include "speculate/reader.h"

namespace tandem::speculate {

/// A text whose tokens from `first` on are to be predicted.
struct ForcedText {
  std::span<const int32_t> tokens;
  int first = 1;
};

/// How often drafts would be accepted on given texts (teacher forcing), as sums over
/// distributions: at each position the overlap of what the target and what a draft draw from. The
/// text is read `gamma` tokens at a time, as rounds read it whose drafted tokens are all accepted:
/// a draft reads the tokens of a round by its own forward, those before by its keys of the
/// target's, and each round ends with a forward of the target under its own reading.
class ForcedMeter {
 public:
  /// drafts   readings of the target's cache, all at once; or one of another model
  ForcedMeter(Reader target, std::vector<Reader> drafts, std::vector<double> temperatures,
              int gamma);

  /// [drafts][temperatures][texts][positions from `first` on]
  using Overlaps = std::vector<std::vector<std::vector<std::vector<double>>>>;
  /// slots    [texts] of the target's cache, read by the target and by drafts of it; they hold the
  ///          tokens before first - 1, and afterwards all but the last
  /// errors   kind interrupted, numeric, memory
  Overlaps read(std::span<const int> slots, std::span<const ForcedText> texts);

  /// Rows of a round: of each text the tokens that it reads.
  struct Rows {
    std::vector<int32_t> tokens;
    std::vector<size_t> text, position;  // of each row; positions from `first` on
    std::vector<int> n;                  // of each text
  };
  /// Logits of a round's rows: [rows, vocab of the target] f32 on the host, valid during the call.
  using Visit =
      std::function<void(const Rows& rows, const Tensor& target, std::span<const Tensor> drafts)>;
  /// As read, for who makes something else of the logits.
  void visit(std::span<const int> slots, std::span<const ForcedText> texts, const Visit& visit);

 private:
  static Rows rows_at(int begin, int gamma, std::span<const ForcedText> texts);
  bool is_other_model() const { return !drafts_.empty() && drafts_[0].engine != target_.engine; }
  /// Runs the rows and leaves their logits.
  kv::Step forward(const Reader& reader, std::span<const int> slots, const Rows& rows,
                   std::vector<float>& logits);

  Reader target_;
  std::vector<Reader> drafts_;
  std::vector<double> temperatures_;
  int gamma_;
  std::vector<std::vector<float>> logits_;  // of a round: [drafts, then the target][rows * vocab]
};

}  // namespace tandem::speculate
