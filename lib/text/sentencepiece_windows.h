#pragma once
#include <cstdint>
#include <string_view>

#include "text/tokenizer.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace tandem::text {

/// Has the SentencePiece library encode a long text in windows: at once it takes some 200 bytes of
/// memory a character. Exact for the same reason as BpeWindows, whose rule of where a window begins
/// is followed here.
class SentencePieceWindows {
 public:
  static constexpr size_t kWindow = size_t{1} << 15, kMargin = kWindow / 4;  // bytes

  enum class End : uint8_t { whole, stopped, uncertain };

  /// longest  bytes of the longest piece
  explicit SentencePieceWindows(size_t longest) : longest_(longest) {}

  /// Appends the ids of `text`, unless `out` does not admit them (stopped) or a window changed the
  /// last token of the one before it (uncertain: `out` is as it was, encode at once).
  /// first    the model of the text's beginning, which stands after `prefix`
  /// later    the same that puts nothing before a text
  /// errors   kind input: as the library's
  End apply(const sentencepiece::SentencePieceProcessor& first,
            const sentencepiece::SentencePieceProcessor& later, std::string_view prefix,
            std::string_view text, IdList& out) const;

 private:
  size_t longest_;
};

}  // namespace tandem::text
