#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

struct CheckedSentencePieceModel {
  std::string bytes;
  bool in_windows =
      false;  // whether SentencePieceWindows reads texts of it: byte-pair encoding of the
              // text as it stands but for the mark of spaces, with no unused pieces
  std::vector<std::string> user_defined;
};

/// A serialized ModelProto rewritten from the parts that encoding needs, each value checked: the
/// SentencePiece library trusts its input, and crashes, allocates without bound or writes to the
/// terminal where that is malformed. Pieces keep their ids. Left out: training settings, the
/// denormalizer, self-tests, unknown fields.
/// errors   kind input at `where`: malformed; a piece that is empty, too long, not UTF-8, holds a
///          zero byte or has an unknown type or a score that is not finite; a character map that
///          points outside itself or in a circle; symbols nested deeper than the library's tables
CheckedSentencePieceModel checked_sentencepiece_model(std::string_view model,
                                                      const std::string& where);

/// A piece of a vocabulary.
struct SentencePiece {
  std::string_view text;
  float score = 0;
  uint64_t type = 1;  // ModelProto.SentencePiece.Type
};

/// Writes a serialized ModelProto of byte-pair encoding. Bytes stand in for unknown characters if
/// there are pieces of single bytes.
/// dummy_prefix  a space is put in front of each text
std::string sentencepiece_model(std::span<const SentencePiece> pieces, bool dummy_prefix);

/// The same model with normalizer_spec.add_dummy_prefix = false.
std::string without_dummy_prefix(std::string model);

/// Returns true if the character map of a SentencePiece model can be followed for any text: the
/// library checks no bound. It is a 4-byte size, a Darts-clone double array of that many bytes,
/// then zero-terminated replacement texts, at which the array's values point.
bool is_sound_character_map(std::string_view map);

}  // namespace tandem::text
