#pragma once
#include <cstdint>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "train/data/settings.h"

namespace tandem::train {

/// A part of a sample, in tokens.
struct TokenSpan {
  int32_t begin = 0, end = 0;
};

/// The tokens of a sample, and those that the loss counts.
struct Sample {
  std::vector<int32_t> ids;
  std::vector<TokenSpan> supervised;  // rising, apart; none includes the first token

  int64_t n_supervised() const;
  /// Without the tokens from `n` on.
  void truncate(size_t n);
  /// Without those after the last supervised one: nothing is learned from them.
  void drop_tail();
};

/// Encodes a text. No token lies across the border of an answer, so a prompt has the ids that it
/// has when it is generated from. The tokenizer's prefix (BOS) is put in front of texts that do not
/// begin with it.
/// prefixed  false: the text has all that it needs in front, as chats do
/// errors    kind input: as Tokenizer::encode
Sample encode_sample(const text::Tokenizer& tokenizer, const text::RenderedChat& text, Mask mask,
                     bool prefixed);

}  // namespace tandem::train
