#include "text/sentencepiece_windows.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/quote.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

struct Piece {
  int32_t id;
  size_t begin, end;  // bytes of the window; of pieces for bytes, the last has the character
};

bool ends_character(const Piece& piece) { return piece.begin < piece.end; }

void encode_window(const sentencepiece::SentencePieceProcessor& model, std::string_view prefix,
                   std::string_view window, std::vector<Piece>& pieces) {
  sentencepiece::ImmutableSentencePieceText found;
  const auto status = model.Encode(std::string(prefix).append(window), found.mutable_proto());
  if (!status.ok())
    throw input_error("text", "SentencePiece: {}", io::quote(status.message(), 200));
  const auto within = [&](size_t at) { return at - std::min(at, prefix.size()); };
  pieces.clear();
  for (size_t i = 0; i < found.pieces_size(); ++i) {
    const auto piece = found.pieces(static_cast<int>(i));
    pieces.push_back(
        {static_cast<int32_t>(piece.id()), within(piece.begin()), within(piece.end())});
  }
}

/// The last piece, after the first, that begins with a character before `margin`; 0 if there is
/// none.
size_t next_of(const std::vector<Piece>& pieces, size_t margin) {
  for (size_t i = pieces.size(); i-- > 1;)
    if (pieces[i].begin < margin && ends_character(pieces[i - 1])) return i;
  return 0;
}

/// Bytes of the token of BPE that piece i begins: a piece, or a character that has none.
size_t token_size(const std::vector<Piece>& pieces, size_t i) {
  size_t last = i;
  while (last + 1 < pieces.size() && !ends_character(pieces[last])) ++last;
  return pieces[last].end - pieces[i].begin;
}

}  // namespace

SentencePieceWindows::End SentencePieceWindows::apply(
    const sentencepiece::SentencePieceProcessor& first,
    const sentencepiece::SentencePieceProcessor& later, std::string_view prefix,
    std::string_view text, IdList& out) const {
  const size_t n_before = out.ids.size();
  const auto admit = [&](size_t n_done) {
    return out.admit(n_done, (text.size() - n_done + longest_ - 1) / longest_);
  };
  const auto uncertain = [&] {
    out.ids.resize(n_before);
    return End::uncertain;
  };
  if (!admit(0)) return End::stopped;
  std::vector<Piece> pieces;
  std::string_view last;  // the window that they are of
  size_t begin = 0;
  size_t first_size = 0;  // bytes of the token that a window begins with, but the first one
  while (true) {
    size_t end = std::min(begin + kWindow, text.size());
    while (end < text.size() && continues_char(text[end])) ++end;
    const std::string_view window = text.substr(begin, end - begin);
    if (begin == 0)
      encode_window(first, prefix, window, pieces);
    else if (window != last)  // else, in a long repetition, they are known
      encode_window(later, {}, window, pieces);
    last = begin == 0 ? std::string_view() : window;
    if (begin > 0 && token_size(pieces, 0) != first_size) return uncertain();
    const bool is_last = end == text.size();
    const size_t next = is_last ? pieces.size() : next_of(pieces, window.size() - kMargin);
    if (next == 0) return uncertain();
    for (size_t i = 0; i < next; ++i) out.ids.push_back(pieces[i].id);
    if (is_last) return out.admit(text.size(), 0) ? End::whole : End::stopped;
    first_size = token_size(pieces, next);
    begin += pieces[next].begin;
    if (!admit(begin)) return End::stopped;
  }
}

}  // namespace tandem::text
