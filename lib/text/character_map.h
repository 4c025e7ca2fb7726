#pragma once
#include <string_view>

namespace tandem::text {

/// Whether the character map of a SentencePiece model can be followed for any text: the library
/// looks at no bound. It is a 4-byte size, a Darts-clone double array of that many bytes, then
/// zero-terminated replacement texts, at which the array's values point.
bool is_sound_character_map(std::string_view map);

}  // namespace tandem::text
